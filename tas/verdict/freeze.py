"""What holds labels back: a tripped breaker, and a pause. As stored, and as status and `tas get policies` report them.

The rules of the breaker are in `tas.enforcing.breaker`.
"""

from collections.abc import Mapping

import msgspec

from tas.policy.policy import PolicyKey, Problem
from tas.values.nouns import counted

ALL = "_all"
"""The key of the breaker over all policies; no policy has this name."""


class Trip(msgspec.Struct, frozen=True, kw_only=True):
    """Why a breaker tripped: `wanted` nodes were to have labels, of `selected` nodes, and at most `limit` may.

    `wanted` counts the nodes that were known at that moment, `since`, in seconds since 1970.
    """

    since: float
    limit: int
    wanted: int
    selected: int


class Breaker(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that may have labels of the policies of one name, or of all policies, and whether the breaker tripped.

    `nodes` maps each node to a resource version of the node: `tas.enforcing.breaker` says which.
    """

    nodes: Mapping[str, int] = {}
    trip: Trip | None = None


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A pause of all labels: who paused, when (seconds since 1970), and why."""

    by: str
    since: float
    reason: str = ""

    def __str__(self) -> str:
        return f"paused by {self.by}" + (f": {self.reason}" if self.reason else "")


UNREADABLE_BREAKER = Breaker(trip=Trip(since=0.0, limit=0, wanted=0, selected=0))
UNREADABLE_PAUSE = Pause(by="a record that cannot be read", since=0.0)
"""They stand for records that cannot be read: these freeze, too, as the breaker may have tripped."""


class Freeze(msgspec.Struct, frozen=True):
    """Why all labels of a policy stay unchanged: the reason of its condition `Ready`, and a text with what to do."""

    reason: str
    text: str

    def problem(self) -> Problem:
        """The freeze as a problem of the policy."""
        return Problem(field="spec.strategies", value=self.reason, reason=self.text, refused=False)


TRIPPED, PAUSED = "BreakerTripped", "Paused"
"""The reasons of a freeze."""


def freeze_of(policy: PolicyKey, breakers: Mapping[str, Breaker], pause: Pause | None) -> Freeze | None:
    """Why the labels of a policy are frozen; None if they are not. `breakers` are by name of policies, or `ALL`."""
    if pause is not None:
        return Freeze(PAUSED, f"{pause}; no label is set or removed until: tas resume")
    for name, what, reset in (
        (policy.name, "this policy", f"tas reset {policy}"),
        (ALL, "all policies together", "tas reset --all"),
    ):
        breaker = breakers.get(name)
        if breaker is None or (trip := breaker.trip) is None:
            continue
        if breaker == UNREADABLE_BREAKER:
            why = "cannot be read, and may have tripped"
        else:
            nodes = f"of {counted(trip.selected, 'node')}"
            many = counted(trip.wanted, f"{nodes} was", f"{nodes} were")
            why = f"tripped: {many} to have labels, at most {trip.limit} may"
        return Freeze(TRIPPED, f"the breaker of {what} {why}; no label is set or removed until: {reset}")
    return None
