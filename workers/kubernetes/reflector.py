"""A resource followed for ever: a complete list, then every change; and the list again where changes were missed."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from math import inf
from typing import Generic, TypeVar

import structlog

from workers.kubernetes.client import (
    SILENT_SECONDS,
    WATCH_SECONDS,
    Change,
    ChangeType,
    KubernetesClient,
    Listing,
)
from workers.kubernetes.errors import ForbiddenError, GoneError, KubernetesError, ThrottledError
from workers.kubernetes.resources import Object, Resource
from workers.logs import Throttle

log = structlog.get_logger("kubernetes")

RETRY_SECONDS = (0.2, 10.0)
"""The first and the longest wait after a failure; each is shortened by up to a half at random."""

STEADY_SECONDS = 5.0
"""A watch that held so long had nothing wrong with it: the next failure is a first one."""

T = TypeVar("T", bound=Object)


class Reflector(Generic[T]):
    """Tells `on_list` a complete list, then `on_change` each change after it, in order, for ever.

    Whenever changes may have been missed, `on_list` comes again: what it does not hold is gone. What was told stands
    meanwhile: neither an error nor silence is an absence. `before_list` is awaited before a list is asked for, so that
    a consumer can note what it has to compare with. All but that are plain functions, called on the event loop.

    Attributes:
        listed: How many complete lists have been told.
        resource_version: Up to where it has come; empty before the first list.
        problem: Why it does not follow just now, or None.
    """

    def __init__(
        self,
        client: KubernetesClient,
        resource: Resource[T],
        *,
        on_list: Callable[[Listing[T]], None],
        on_change: Callable[[Change[T]], None],
        before_list: Callable[[], Awaitable[None]] | None = None,
        label_selector: str = "",
        field_selector: str = "",
        watch_seconds: float = WATCH_SECONDS,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self.listed = 0
        self.resource_version = ""
        self.problem: str | None = "not listed yet"
        self._client = client
        self._resource = resource
        self._on_list = on_list
        self._on_change = on_change
        self._before_list = before_list
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._watch_seconds = watch_seconds
        self._silent_seconds = silent_seconds
        self._again = asyncio.Event()
        self._again.set()
        self._opened_at = inf  # the present watch; a list that fails slowly is no sign that all was well
        self._told: tuple[type[KubernetesError], int] | None = None
        self._lines = Throttle()

    def list_again(self) -> None:
        """Asks for a complete list, as soon as may be."""
        self._again.set()

    async def run(self) -> None:
        """Follows until cancelled."""
        wait, longest = RETRY_SECONDS
        while True:
            self._opened_at = inf
            pause, at_least = wait, 0.0
            try:
                if self._again.is_set():
                    await self._list()
                await self._watch_until_asked()
                wait = pause = RETRY_SECONDS[0]
            except GoneError as error:
                log.info("kubernetes_watch_expired", resource=str(self._resource), error=str(error))
                self._again.set()
                wait = min(2 * wait, longest)
            except KubernetesError as error:
                self._tell(error)
                if error.code and not isinstance(error, ThrottledError):
                    # It answers, and does not let us watch on from here: what we know may be of another history.
                    self._again.set()
                if isinstance(error, ThrottledError):
                    at_least = error.retry_after
                wait = min(2 * wait, longest)
            if time.monotonic() - self._opened_at > STEADY_SECONDS:
                wait, _ = RETRY_SECONDS
                pause = 0.0 if self.problem is None else wait
            await asyncio.sleep(max(at_least, pause * random.uniform(0.5, 1)))  # noqa: S311 - spreads them

    async def _list(self) -> None:
        if self._before_list is not None:
            await self._before_list()
        self._again.clear()  # asked for once more from here on means: after what this list shows
        try:
            listing = await self._client.list(
                self._resource, label_selector=self._label_selector, field_selector=self._field_selector
            )
        except BaseException:  # whatever it was, also a cancellation: there is no list, so it is asked for still
            self._again.set()
            raise
        self.resource_version = listing.resource_version
        self.listed += 1
        self._well()
        self._on_list(listing)

    async def _watch_until_asked(self) -> None:
        """Watches until the API server ends it, or a list is asked for."""
        watching = asyncio.create_task(self._watch())
        asked = asyncio.create_task(self._again.wait())
        try:
            await asyncio.wait((watching, asked), return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.cancel()
            asked.cancel()
            await asyncio.wait((watching, asked))
            error = None if watching.cancelled() else watching.exception()
        if error is not None:
            raise error

    async def _watch(self) -> None:
        changes = self._client.watch(
            self._resource,
            resource_version=self.resource_version,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            seconds=self._watch_seconds,
            silent_seconds=self._silent_seconds,
            on_open=self._opened,
        )
        async with aclosing(changes):
            async for change in changes:
                self.resource_version = change.resource_version or self.resource_version
                if change.type is not ChangeType.BOOKMARK:
                    self._on_change(change)

    def _opened(self) -> None:
        self._opened_at = time.monotonic()
        self._well()

    def _well(self) -> None:
        self.problem = None
        if self._told is not None:
            self._told = None
            log.info("kubernetes_problem_over", resource=str(self._resource))

    def _tell(self, error: KubernetesError) -> None:
        """Once for each kind of problem, and again every now and then while it lasts."""
        self.problem = str(error)
        kind = (type(error), error.code)
        new = self._told != kind
        self._told = kind
        held_back = self._lines.admit(kind, time.monotonic())
        if not new and held_back is None:
            return
        fields = {"resource": str(self._resource), "server": self._client.server, "error": str(error)}
        if isinstance(error, ForbiddenError):
            log.error("kubernetes_right_missing", **fields, alike_before=held_back or 0)
        else:
            log.warning("kubernetes_problem", **fields, alike_before=held_back or 0)
