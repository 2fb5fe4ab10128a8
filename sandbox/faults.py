"""What was asked, and what a test lets go wrong."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


@dataclass(slots=True, kw_only=True)
class Call:
    """One request over HTTP."""

    verb: str
    """`get`, `list`, `watch`, `create`, `patch` or `delete`; the HTTP method where no object is meant."""
    path: str
    resource: str = ""
    """Its plural; empty for discovery."""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    user_agent: str = ""
    status: int = 0
    """What was answered; 0 while it is not, and for a connection that was dropped before."""


Which = Callable[[Call], bool]


class Drop(Enum):
    """When a connection goes."""

    BEFORE = "before"
    """Nothing is done."""
    WITHIN = "within"
    """All is done, and half of the answer is sent."""
    AFTER = "after"
    """All is done, and only the answer is lost."""


@dataclass(slots=True, kw_only=True)
class Fault:
    """What becomes of the next matching requests."""

    which: Which
    times: int
    status: int | None = None
    retry_after: int | None = None
    delay_seconds: float = 0.0
    drop: Drop | None = None


class Faults:
    """Faults that wait for their requests. Of several that match one request, the first given acts alone."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []

    @property
    def waiting(self) -> int:
        """How many requests are still to fail."""
        return sum(fault.times for fault in self._waiting)

    def answer(
        self, status: int, *, times: int = 1, which: Which = lambda _: True, retry_after: int | None = None
    ) -> Fault:
        """The next `times` matching requests get this status and change nothing.

        A 404 comes as a plain page, as while nothing is served there; the others as a Status with the reason of
        their code. `retry_after` is in seconds, in the header and in the details.
        """
        return self._add(Fault(which=which, times=times, status=status, retry_after=retry_after))

    def delay(self, seconds: float, *, times: int = 1, which: Which = lambda _: True) -> Fault:
        """The next `times` matching requests are looked at only after this time."""
        return self._add(Fault(which=which, times=times, delay_seconds=seconds))

    def drop(self, when: Drop = Drop.BEFORE, *, times: int = 1, which: Which = lambda _: True) -> Fault:
        """The connections of the next `times` matching requests go without an answer."""
        return self._add(Fault(which=which, times=times, drop=when))

    def clear(self) -> None:
        """From now on nothing goes wrong."""
        self._waiting.clear()

    def take(self, call: Call) -> Fault | None:
        """The fault of this request, which counts as used."""
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
