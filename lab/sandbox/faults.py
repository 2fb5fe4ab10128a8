"""The requests that were received, and faults that tests inject."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


@dataclass(slots=True, kw_only=True)
class Call:
    """One request over HTTP."""

    verb: str
    """`get`, `list`, `watch`, `create`, `patch` or `delete`; the HTTP method for paths that are not of a resource."""
    path: str
    resource: str = ""
    """The plural of the resource; empty for discovery."""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    user_agent: str = ""
    status: int = 0
    """The status of the answer; 0 before the answer, and if the connection was dropped before."""
    answered: float = 0.0
    """When the complete answer was ready to be sent, in seconds since 1970; 0 if no complete answer was sent."""


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
