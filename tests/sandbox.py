"""The simulated cluster of the tests: it keeps the requests that it has received, and has faults for future ones."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from aiohttp import web

from lab.sandbox.api import Api, Call, call_of, json_answer
from lab.sandbox.cluster import CRD_NAME
from lab.sandbox.errors import REASONS, StatusError
from lab.sandbox.metrics import Metrics as _Metrics
from lab.sandbox.resources import CRDS, Resource
from lab.sandbox.server import Sandbox as _Sandbox

__all__ = ["Call", "Drop", "Fault", "Faults", "Metrics", "Raw", "Sandbox", "Which"]

MAX_CALLS = 100_000
"""How many of the last requests are kept at least; at most twice as many."""

Which = Callable[[Call], bool]


class Drop(Enum):
    """When a connection is dropped."""

    BEFORE = "before"
    """Before the request is handled."""
    WITHIN = "within"
    """The request is handled, and half of the answer is sent."""
    AFTER = "after"
    """The request is handled, and no answer is sent."""


@dataclass(slots=True, kw_only=True)
class Fault:
    """What happens to the next `times` matching requests."""

    which: Which
    times: int
    status: int | None = None
    retry_after: int | None = None
    delay_seconds: float = 0.0
    drop: Drop | None = None
    released: asyncio.Event | None = None
    """Until it is set, the requests wait before they are handled; None: they do not wait."""


class Faults:
    """Faults for future requests. If several faults match a request, only the first one applies."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []

    @property
    def waiting(self) -> int:
        """How many requests will still fail."""
        return sum(fault.times for fault in self._waiting)

    def answer(
        self, status: int, *, times: int = 1, which: Which = lambda _: True, retry_after: int | None = None
    ) -> Fault:
        """The next `times` matching requests get this status and change nothing.

        A 404 is a plain page, as for a path that is not served; other codes are a Status with the reason of the
        code. `retry_after` is in seconds, in the header and in the details.
        """
        return self._add(Fault(which=which, times=times, status=status, retry_after=retry_after))

    def delay(self, seconds: float, *, times: int = 1, which: Which = lambda _: True) -> Fault:
        """The next `times` matching requests are handled after a delay."""
        return self._add(Fault(which=which, times=times, delay_seconds=seconds))

    def hold(self, *, times: int = 1, which: Which = lambda _: True) -> asyncio.Event:
        """The next `times` matching requests are handled once the returned event is set, also without their client."""
        released = asyncio.Event()
        self._add(Fault(which=which, times=times, released=released))
        return released

    def drop(self, when: Drop = Drop.BEFORE, *, times: int = 1, which: Which = lambda _: True) -> Fault:
        """The connections of the next `times` matching requests are dropped."""
        return self._add(Fault(which=which, times=times, drop=when))

    def clear(self) -> None:
        """Removes all faults."""
        self._waiting.clear()

    def take(self, call: Call) -> Fault | None:
        """The fault for this request, and counts it as used; None if there is none."""
        for fault in self._waiting:
            if fault.which(call):
                fault.times -= 1
                if fault.times <= 0:
                    self._waiting.remove(fault)
                return fault
        return None

    def _add(self, fault: Fault) -> Fault:
        self._waiting.append(fault)
        return fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """An answer that a test has set, instead of the answer from the values."""

    body: bytes
    content_type: str = "application/json"


class Metrics(_Metrics):
    """The metrics of nodes, or answers that a test has set."""

    def __init__(self) -> None:
        super().__init__()
        self._raw: dict[str, Raw] = {}

    def answer_with(self, body: bytes | None, *, to: str, content_type: str = "application/json") -> None:
        """Answers paths that end with `to` with 200 and `body`; None: with the values again."""
        if body is None:
            self._raw.pop(to, None)
        else:
            self._raw[to] = Raw(body=body, content_type=content_type)

    def raw(self, path: str) -> Raw | None:
        return next((raw for ending, raw in self._raw.items() if path.endswith(ending)), None)


class FaultyApi(Api):
    """Answers requests, or does what a fault says, and keeps them in `calls`."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.faults = Faults()
        self.calls: list[Call] = []
        self._holding: set[asyncio.Task[web.StreamResponse]] = set()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        call, resource = call_of(request)
        self.calls.append(call)
        if len(self.calls) > 2 * MAX_CALLS:  # bounds the memory of a long-running sandbox
            del self.calls[:MAX_CALLS]
        fault = self.faults.take(call)
        if fault is not None:
            await asyncio.sleep(fault.delay_seconds)
            if fault.released is not None:
                return await self._held(fault.released, request, call, resource)
            if fault.status is not None:
                call.status = fault.status
                return _fault_response(fault.status, fault.retry_after)
            if fault.drop is Drop.BEFORE:
                return _dropped(request)
        response = await self._respond(request, call, resource)
        call.status = response.status
        if fault is not None and fault.drop is Drop.WITHIN and isinstance(response, web.Response):
            return await _cut_in_half(request, response)
        if fault is not None and fault.drop is not None:  # a watch has sent all its events
            return _dropped(request)
        call.answered = time.time()
        return response

    async def _held(
        self, released: asyncio.Event, request: web.Request, call: Call, resource: Resource | None
    ) -> web.StreamResponse:
        """Handles the request later, also if the client has gone: it is only on its way for longer."""
        await request.read()

        async def handle() -> web.StreamResponse:
            await released.wait()
            response = await self._respond(request, call, resource)
            call.status, call.answered = response.status, time.time()
            return response

        self._holding.add(handling := asyncio.create_task(handle()))
        handling.add_done_callback(self._holding.discard)
        return await asyncio.shield(handling)

    def _discover(self, path: str) -> web.Response:
        raw = self._metrics.raw(path) if isinstance(self._metrics, Metrics) else None
        return super()._discover(path) if raw is None else web.Response(body=raw.body, content_type=raw.content_type)

    def cut_watches(self) -> None:
        """Aborts the connection of every watch, as when a server is killed."""
        for transport in self._watching:
            transport.abort()


class Sandbox(_Sandbox):
    """A running sandbox."""

    api_type = FaultyApi
    metrics_type = Metrics
    metrics: Metrics
    _api: FaultyApi

    @property
    def faults(self) -> Faults:
        return self._api.faults

    def remove_crd(self) -> None:
        """Deletes the CRD and all TASPolicies: requests for TASPolicies get a plain 404, and their watches end."""
        self.cluster.delete(CRDS, "", CRD_NAME)

    def forget_history(self) -> None:
        """Compacts the history: watches and continued lists from earlier versions get 410 Expired.

        Open watches are not affected; after `cut_watches` their clients watch again.
        """
        self.cluster.store.forget()

    @property
    def watches(self) -> int:
        """How many watches are open."""
        return self._api.watches

    def cut_watches(self) -> None:
        self._api.cut_watches()

    @property
    def calls(self) -> list[Call]:
        """The requests over HTTP so far, at least the last 100,000, oldest first. A watch counts once, at its start."""
        return self._api.calls

    def count(self, *, since: int = 0, which: Callable[[Call], bool] = lambda _: True) -> Counter[tuple[str, str]]:
        """How many requests there were for each verb and resource, from index `since` of `calls` on."""
        return Counter((call.verb, call.resource) for call in self.calls[since:] if which(call))


def _fault_response(status: int, retry_after: int | None) -> web.Response:
    if status == 404:
        return web.Response(status=404, text="404 page not found\n")
    details = {} if retry_after is None else {"retryAfterSeconds": retry_after}
    error = StatusError(status, f"the sandbox is set up to answer {status} {REASONS.get(status, '')}", details=details)
    response = json_answer(error.to_object(), status)
    if retry_after is not None:
        response.headers["Retry-After"] = str(retry_after)
    return response


async def _cut_in_half(request: web.Request, response: web.Response) -> web.StreamResponse:
    body = response.body
    assert isinstance(body, bytes)
    half = web.StreamResponse(status=response.status, headers={"Content-Type": response.content_type})
    half.content_length = len(body)
    await half.prepare(request)
    await half.write(body[: len(body) // 2])
    return _dropped(request)


def _dropped(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)  # is never sent
