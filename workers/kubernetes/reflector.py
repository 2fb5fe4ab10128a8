"""Follows a resource: a complete list, then every change; a new list if changes may have been missed.

One list and one watch serve all consumers of a resource in a process. A list serves the consumers that were ready for
it when it was requested, and only these: the others go on with the watch, or wait for the next list.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from math import inf
from typing import Generic, NamedTuple, TypeVar

import structlog

from bus.shared_task import SharedTask
from tas.values.backoff import Backoff
from tas.values.throttle import Throttle
from workers.kubernetes.admission import Admission
from workers.kubernetes.client import (
    SILENT_SECONDS,
    WATCH_SECONDS,
    Change,
    ChangeType,
    KubernetesClient,
    Listing,
)
from workers.kubernetes.errors import ForbiddenError, GoneError, KubernetesError, SilentError, ThrottledError
from workers.kubernetes.followers import Follower, Shared, Whole
from workers.kubernetes.resources import Object, Resource, version_number
from workers.process.tasks import together

LASTING_SECONDS = 10.0
"""A permission that is refused for so long is missing.

An API server that has just started refuses everything until it has read the roles.
"""


class Report(NamedTuple):
    """A problem to log. `suppressed`: how many like it were left out since the last one."""

    lasts: bool
    suppressed: int


class Problem:
    """The problem of one resource. Each kind is reported at once, then at intervals while it lasts.

    Times are in seconds of a monotonic clock.
    """

    def __init__(self) -> None:
        self._kind: tuple[type[KubernetesError], int, bool] | None = None
        self._refused_since: float | None = None
        self._throttle = Throttle()

    def failed(self, error: KubernetesError, now: float) -> Report | None:
        """Notes a failed request, and returns what to log; None for nothing.

        `lasts` is true for a permission that has been refused without a break for `LASTING_SECONDS`.
        """
        if not isinstance(error, ForbiddenError):
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = now
        lasts = self._refused_since is not None and now - self._refused_since >= LASTING_SECONDS
        kind = (type(error), error.code, lasts)
        is_new, self._kind = self._kind != kind, kind
        suppressed = self._throttle.admit(kind, now)
        return Report(lasts, suppressed or 0) if is_new or suppressed is not None else None

    def ended(self) -> bool:
        """Notes that a request succeeded, and returns whether there was a problem."""
        was_known = self._kind is not None
        self._kind = self._refused_since = None
        return was_known


log = structlog.get_logger("kubernetes")

RETRY = Backoff(first=0.2, longest=10.0)
"""Delays after failures."""

HEALTHY_WATCH_SECONDS = 5.0
"""After a watch of at least this duration the backoff starts again from its first delay."""

ADMISSION_SECONDS = 30.0
"""How often a list is requested because something else is admitted: a list of many large objects costs much."""

NOT_LISTED = "not listed yet"

T = TypeVar("T", bound=Object)


class Consumer(Generic[T]):
    """One of those who follow a resource by a `Reflector`: gets a complete list, then each change after it, in order.

    Attributes:
        listed: How many complete lists it has got.
    """

    def __init__(
        self, reflector: "Reflector[T]", follower: Follower[T], before_list: Callable[[], Awaitable[None]] | None
    ) -> None:
        self.listed = 0
        self.follower = follower
        self.admission: Admission[T] | None = None
        self._reflector = reflector
        self._before_list = before_list
        self._wanted = asyncio.Event()  # a list
        self._answered = asyncio.Event()  # no list that it is ready for is outstanding
        self._answered.set()
        self._follows = False  # all changes since its last list have been handed over
        self._version = 0  # of its last list
        self._during: list[Change[T]] | None = None  # the changes since its list was requested; None without one
        self._later: asyncio.TimerHandle | None = None
        self._later_at = -inf  # of the last list that was requested so

    @property
    def problem(self) -> str | None:
        """Why the resource is currently not followed, or None."""
        if not self.listed:
            return self._reflector.list_problem or NOT_LISTED
        watch = self._reflector.watch_problem
        return self._reflector.list_problem or watch if self._needs_list else watch

    def concerns(self) -> Iterator[str]:
        """For a worker that stays ready with what was listed: a sentence about why that may be out of date by now."""
        if self.listed and (problem := self.problem) is not None:
            yield f"it hears of no change of {self._reflector.resource}: {problem}"

    @property
    def _needs_list(self) -> bool:
        """Whether a list is to come that it cannot do without, or has requested."""
        return not self._follows or self._wanted.is_set() or not self._answered.is_set()

    @property
    def follows(self) -> bool:
        """Whether it needs the changes from where the watch is."""
        return self._follows

    def relist(self) -> None:
        """Requests a complete list as soon as possible. Until it arrives, the changes go on."""
        self._wanted.set()

    def relist_later(self) -> None:
        """Requests a complete list, at least `ADMISSION_SECONDS` after the last list that was requested so."""
        if self._later is None:
            loop = asyncio.get_running_loop()
            self._later_at = max(loop.time(), self._later_at + ADMISSION_SECONDS)
            self._later = loop.call_at(self._later_at, self.relist)

    async def run(self) -> None:
        """Follows from a new list on, until cancelled."""
        self._follows = False
        self._wanted.set()
        try:
            await together(self._reflector.run(self), self._ask_for_lists())
        finally:
            self._follows, self._during = False, None
            self._answered.set()

    async def _ask_for_lists(self) -> None:
        while True:
            await self._wanted.wait()
            if self._before_list is not None:
                await self._before_list()
            self._wanted.clear()  # a request from here on is for a list after this one
            self._answered.clear()
            self._reflector.ask(self)
            await self._answered.wait()

    # For the reflector

    def begin_list(self) -> None:
        """The list that it is ready for is requested now."""
        self._during = []
        if self._later is not None:
            self._later.cancel()
            self._later, self._later_at = None, asyncio.get_running_loop().time()

    def drop_list(self) -> None:
        """The list has failed: it is still needed."""
        if self._during is None:
            return  # it has left since
        during, self._during = self._during, None
        for each in during:
            self.change(each)
        self._wanted.set()
        self._answered.set()

    def end_list(self, version: str, *, is_watched_again: bool) -> None:
        """The list is complete. Hands it over, and then the changes after it that arrived before its end.

        `is_watched_again`: the watch begins again at this version, so that these changes arrive again.
        """
        if self._during is None:
            return  # it has left since
        during, self._during = self._during, None
        self.listed += 1
        self._version = version_number(version)
        self._follows = True
        self.follower.end(version)
        for each in () if is_watched_again else during:
            self.change(each)
        self._answered.set()

    def change(self, change: Change[T]) -> None:
        """Takes a change of the watch, unless its list has it already."""
        if self._during is not None:
            self._during.append(change)
        elif self._follows and not 0 < version_number(change.resource_version) <= self._version:
            self.follower.change(change)

    def lose(self) -> None:
        """Changes may have been missed."""
        self._follows = False
        if self._answered.is_set():
            self._wanted.set()


class Reflector(Generic[T]):
    """Lists and watches a resource while at least one of its consumers runs.

    Until the next list the last state stays valid: neither an error nor silence means that an object is missing. All
    functions of consumers but `before_list` are plain, and called on the event loop; an exception of one is a bug, and
    ends all.

    Attributes:
        resource_version: The version that the watch has reached; empty while there is none to watch from.
        list_problem: Why the last list has failed, or None.
        watch_problem: Why there is no watch, or None.
    """

    def __init__(
        self,
        client: KubernetesClient,
        resource: Resource[T],
        *,
        label_selector: str = "",
        watch_seconds: float = WATCH_SECONDS,
        silent_seconds: float = SILENT_SECONDS,
        admission: Callable[[Follower[T], Callable[[], None]], Admission[T]] | None = None,
    ) -> None:
        """`admission` makes the admission of a consumer, from its follower and its `relist_later`."""
        self.resource = resource
        self._admission = admission
        self.resource_version = ""
        self.list_problem: str | None = None
        self.watch_problem: str | None = None
        self._client = client
        self._label_selector = label_selector
        self._watch_seconds = watch_seconds
        self._silent_seconds = silent_seconds
        self._consumers: list[Consumer[T]] = []
        self._ready: list[Consumer[T]] = []  # for the next list
        self._asked = asyncio.Event()
        self._is_listed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._opened_at = inf  # of the current watch
        self._reported = Problem()
        self._following = SharedTask(self._follow)

    def consumer(
        self,
        *,
        on_list: Callable[[Listing[T]], None] = lambda _: None,
        on_change: Callable[[Change[T]], None] = lambda _: None,
        follower: Follower[T] | None = None,
        before_list: Callable[[], Awaitable[None]] | None = None,
    ) -> Consumer[T]:
        """A new consumer, which follows while its `run` is awaited.

        The list goes to `on_list` once it is complete, or to a `follower` while it arrives, which gets the changes,
        too. An object that is not in a list was deleted. `before_list` is awaited before each list request, so that the
        consumer can record its state for the comparison; nobody else waits for it.
        """
        consumer = Consumer(self, follower or Whole(on_list, on_change), before_list)
        if self._admission is not None:
            consumer.follower = consumer.admission = self._admission(consumer.follower, consumer.relist_later)
        return consumer

    # For consumers

    async def run(self, consumer: Consumer[T]) -> None:
        """Serves a consumer until cancelled."""
        self._consumers.append(consumer)
        try:
            await self._following.run()
        finally:
            self._consumers.remove(consumer)
            if consumer in self._ready:
                self._ready.remove(consumer)

    def ask(self, consumer: Consumer[T]) -> None:
        """Has the next list serve a consumer, which is ready for it now."""
        self._ready.append(consumer)
        self._asked.set()

    # Lists

    async def _follow(self) -> None:
        try:
            with self._client.silence.followed():
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._list_on())
                    tasks.create_task(self._watch_on())
        finally:
            self._lose_version()

    async def _list_on(self) -> None:
        """Requests a list whenever a consumer is ready for one. Never ends."""
        failures = 0
        while True:
            await self._asked.wait()
            self._asked.clear()
            served, self._ready = self._ready, []
            if not served:
                continue  # they have left
            retry_after = 0.0
            for each in served:
                each.begin_list()
            try:
                await self._list(served)
            except KubernetesError as error:
                for each in served:
                    each.drop_list()
                self.list_problem = str(error)
                if isinstance(error, GoneError):
                    log.info("kubernetes_watch_expired", resource=str(self.resource), error=str(error))
                else:
                    self._report(error)
                retry_after = error.retry_after if isinstance(error, ThrottledError) else 0.0
                failures += 1
                await asyncio.sleep(max(retry_after, RETRY.after(failures)))
            else:
                failures = 0

    async def _list(self, served: list[Consumer[T]]) -> None:
        """Hands a list over to the consumers that were ready for it. Raises KubernetesError."""
        reached, were_following = self.resource_version, any(each.follows for each in served)
        reader = Shared(*(each.follower for each in served))
        version = await self._client.read_list(self.resource, reader, label_selector=self._label_selector)
        self.list_problem = None
        for each in served:
            if each.admission is not None:
                await each.admission.settle()
        others = [each for each in self._consumers if each.follows and each not in served]
        if version_number(version) < version_number(reached):  # the API server has another history now
            for each in others:
                each.lose()
            others = []
        if not others:  # else they need the changes from where the watch is
            self.resource_version = version
            self._is_listed.set()
        if self._watching is not None and (were_following or not others):
            self._watching.cancel()  # who lists again doubts the watch: it is opened again
        self._note_healthy()
        for each in served:
            each.end_list(version, is_watched_again=not others)

    # Changes

    async def _watch_on(self) -> None:
        """Watches from the version that has been reached. Never ends."""
        failures = 0
        while True:
            await self._is_listed.wait()
            self._opened_at = inf
            retry_after, is_lost = 0.0, False
            watching = self._watching = asyncio.create_task(self._watch())
            try:
                await asyncio.wait((watching,))
            finally:
                self._watching = None
                watching.cancel()
                await asyncio.wait((watching,))
            try:
                if not watching.cancelled():
                    watching.result()
                failures = 0
            except GoneError as error:
                log.info("kubernetes_watch_expired", resource=str(self.resource), error=str(error))
                is_lost = True
                failures += 1
            except SilentError:
                failures += 1  # nothing to report: the next watch finds out whether the API server answers
            except KubernetesError as error:
                self.watch_problem = str(error)
                self._report(error)
                # The server refuses to continue from this version: our state may be of another history.
                is_lost = bool(error.code) and not isinstance(error, ThrottledError)
                retry_after = error.retry_after if isinstance(error, ThrottledError) else 0.0
                failures += 1
            was_healthy = time.monotonic() - self._opened_at > HEALTHY_WATCH_SECONDS
            if was_healthy:
                failures = 0
            if watching.cancelled():
                continue
            if is_lost:  # at once: a list that ends during the pause is of a later state
                self._lose_version()
                for each in self._consumers:
                    each.lose()
            pause = 0.0 if was_healthy and self.watch_problem is None else RETRY.after(failures)
            await asyncio.sleep(max(retry_after, pause))

    def _lose_version(self) -> None:
        self.resource_version = ""
        self._is_listed.clear()

    async def _watch(self) -> None:
        changes = self._client.watch(
            self.resource,
            resource_version=self.resource_version,
            label_selector=self._label_selector,
            seconds=self._watch_seconds,
            silent_seconds=self._silent_seconds,
            on_open=self._opened,
        )
        async with aclosing(changes):
            async for change in changes:
                self.resource_version = change.resource_version or self.resource_version
                if change.type is not ChangeType.BOOKMARK:
                    for each in tuple(self._consumers):
                        each.change(change)

    def _opened(self) -> None:
        self._opened_at = time.monotonic()
        self.watch_problem = None
        self._note_healthy()

    # Reports

    def _note_healthy(self) -> None:
        if self.list_problem is None and self.watch_problem is None and self._reported.ended():
            log.info("kubernetes_request_recovered", resource=str(self.resource))

    def _report(self, error: KubernetesError) -> None:
        report = self._reported.failed(error, time.monotonic())
        if report is None:
            return
        fields = {
            "resource": str(self.resource),
            "server": self._client.server,
            "error": str(error),
            "suppressed": report.suppressed,
        }
        if not isinstance(error, ForbiddenError):
            log.warning("kubernetes_request_failed", **fields)
        elif report.lasts:
            log.error("kubernetes_permission_missing", **fields)
        else:
            log.info("kubernetes_permission_missing", **fields)
