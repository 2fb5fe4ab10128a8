"""Follows a resource: a complete list, then every change; a new list if changes may have been missed."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from math import inf
from typing import Generic, TypeVar

import structlog

from tas.values.backoff import Backoff
from workers.kubernetes.client import (
    SILENT_SECONDS,
    WATCH_SECONDS,
    Change,
    ChangeType,
    KubernetesClient,
    Listing,
)
from workers.kubernetes.errors import ForbiddenError, GoneError, KubernetesError, SilentError, ThrottledError
from workers.kubernetes.followers import Follower, Whole
from workers.kubernetes.problem import Problem
from workers.kubernetes.resources import Object, Resource

log = structlog.get_logger("kubernetes")

RETRY = Backoff(first=0.2, longest=10.0)
"""Delays after failures."""

HEALTHY_WATCH_SECONDS = 5.0
"""After a watch of at least this duration the backoff starts again from its first delay."""

T = TypeVar("T", bound=Object)


class Reflector(Generic[T]):
    """Hands a complete list over, then calls `on_change` with each change after it, in order, until cancelled.

    The list goes to `on_list` once it is complete, or to a `follower` while it arrives, which gets the changes, too.
    If changes may have been missed, there is another list: an object that is not in the list was deleted. Until then
    the last state stays valid: neither an error nor silence means that an object is missing. `before_list` is awaited
    before each list request, so that a consumer can record its state for the comparison. All functions but this one are
    plain, and called on the event loop.

    Attributes:
        listed: How many complete lists have been handed over.
        resource_version: The version that has been reached; empty before the first list.
        problem: Why the resource is currently not followed, or None.
    """

    def __init__(
        self,
        client: KubernetesClient,
        resource: Resource[T],
        *,
        on_list: Callable[[Listing[T]], None] = lambda _: None,
        on_change: Callable[[Change[T]], None] = lambda _: None,
        follower: Follower[T] | None = None,
        before_list: Callable[[], Awaitable[None]] | None = None,
        label_selector: str = "",
        watch_seconds: float = WATCH_SECONDS,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self.listed = 0
        self.resource_version = ""
        self.problem: str | None = "not listed yet"
        self._client = client
        self._resource = resource
        self._follower: Follower[T] = follower or Whole(on_list, on_change)
        self._before_list = before_list
        self._label_selector = label_selector
        self._watch_seconds = watch_seconds
        self._silent_seconds = silent_seconds
        self._relist_requested = asyncio.Event()
        self._relist_requested.set()
        self._opened_at = inf  # of the current watch; a slow failing list does not count as healthy
        self._reported = Problem()

    def relist(self) -> None:
        """Requests a complete list as soon as possible."""
        self._relist_requested.set()

    async def run(self) -> None:
        """Follows until cancelled."""
        failures = 0
        while True:
            self._opened_at = inf
            retry_after = 0.0
            try:
                if self._relist_requested.is_set():
                    await self._list()
                await self._watch_until_relist()
                failures = 0
            except GoneError as error:
                log.info("kubernetes_watch_expired", resource=str(self._resource), error=str(error))
                self._relist_requested.set()
                failures += 1
            except SilentError:
                failures += 1  # nothing to report: the next watch finds out whether the API server answers
            except KubernetesError as error:
                self._report(error)
                if error.code and not isinstance(error, ThrottledError):
                    # The server refuses to continue from this version: our state may be of another history.
                    self._relist_requested.set()
                if isinstance(error, ThrottledError):
                    retry_after = error.retry_after
                failures += 1
            was_healthy = time.monotonic() - self._opened_at > HEALTHY_WATCH_SECONDS
            if was_healthy:
                failures = 0
            pause = 0.0 if was_healthy and self.problem is None else RETRY.after(failures)
            await asyncio.sleep(max(retry_after, pause))

    async def _list(self) -> None:
        if self._before_list is not None:
            await self._before_list()
        self._relist_requested.clear()  # a request from here on is for a list after this one
        try:
            version = await self._client.read_list(self._resource, self._follower, label_selector=self._label_selector)
        except BaseException:  # any error or cancellation: the list is still needed
            self._relist_requested.set()
            raise
        self.resource_version = version
        self.listed += 1
        self._set_healthy()
        self._follower.end(version)

    async def _watch_until_relist(self) -> None:
        """Watches until the API server ends the watch, or a list is requested."""
        watching = asyncio.create_task(self._watch())
        relist = asyncio.create_task(self._relist_requested.wait())
        try:
            await asyncio.wait((watching, relist), return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.cancel()
            relist.cancel()
            await asyncio.wait((watching, relist))
            error = None if watching.cancelled() else watching.exception()
        if error is not None:
            raise error

    async def _watch(self) -> None:
        changes = self._client.watch(
            self._resource,
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
                    self._follower.change(change)

    def _opened(self) -> None:
        self._opened_at = time.monotonic()
        self._set_healthy()

    def _set_healthy(self) -> None:
        self.problem = None
        if self._reported.ended():
            log.info("kubernetes_request_recovered", resource=str(self._resource))

    def _report(self, error: KubernetesError) -> None:
        self.problem = str(error)
        report = self._reported.failed(error, time.monotonic())
        if report is None:
            return
        fields = {
            "resource": str(self._resource),
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
