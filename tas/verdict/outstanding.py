"""Outstanding verdicts: those that follow from the same change as others, and are not stored yet.

One poll may turn all nodes of a policy. The breaker counts the nodes that want a label, so it can trip before the first
label only if it knows all of them. Each replica of `evaluate` therefore *announces* outstanding verdicts before it
stores the first one that sets a label, and ends the announcement when it has handled all. `labels` admits no node
meanwhile: at most for `HOLD_SECONDS`, so that nothing that hangs keeps labels away.

Times are monotonic, in seconds, of one process.
"""

from collections.abc import Mapping

import msgspec

from tas.policy.policy import PolicyKey
from tas.samples.parts import Part
from tas.samples.table import TableKey
from tas.verdict.verdict import DesiredKind, PolicyVerdict, Seconds

HOLD_SECONDS = 2.0
"""How long outstanding verdicts keep first labels away, at most."""

GIVE_UP_SECONDS = 10.0
"""A node that has had no verdict for so long keeps no label away."""

TOGETHER_SECONDS = 1.0
"""Nodes that violated a policy within so long of each other may have turned by one poll: `for` ends as they began."""

MAX_ANNOUNCED = 64
"""The most announcements in the record: of as many replicas."""

_SETTING = (DesiredKind.SET, DesiredKind.SET_IF_ABSENT)


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """That a replica of `evaluate` has outstanding verdicts, `since` (since 1970, by its clock)."""

    since: Seconds


Announcements = Mapping[str, Announcement]
"""By replica of `evaluate`. Only a change of `since` means anything to other clocks."""


def with_announcement(known: Announcements, replica: str, announcement: Announcement | None) -> dict[str, Announcement]:
    """All announcements after that of a replica; None: it has none.

    Those of replicas that ended are dropped: each other one that is older by `GIVE_UP_SECONDS`, or one too many.
    """
    others = {each: found for each, found in known.items() if each != replica}
    if announcement is None:
        return others
    recent = sorted(
        (each for each in others if abs(others[each].since - announcement.since) < GIVE_UP_SECONDS),
        key=lambda each: others[each].since,
    )
    return {each: others[each] for each in recent[1 - MAX_ANNOUNCED :]} | {replica: announcement}


def sets_more(before: Mapping[PolicyKey, PolicyVerdict], after: Mapping[PolicyKey, PolicyVerdict]) -> bool:
    """Whether a verdict sets a label that the one before did not set."""
    return bool(_set_by(after) - _set_by(before))


def _set_by(policies: Mapping[PolicyKey, PolicyVerdict]) -> set[tuple[PolicyKey, str]]:
    return {
        (key, label)
        for key, policy in policies.items()
        for strategy in policy.strategies.values()
        for label, verdict in strategy.labels.items()
        if verdict.desired.kind in _SETTING
    }


class _Poll:
    """The parts of a source that belong to the poll that began at `began`, and have not come yet."""

    __slots__ = ("began", "missing")

    def __init__(self, began: float, missing: set[Part]) -> None:
        self.began = began
        self.missing = missing


class PollParts:
    """Which tables of a poll have not come: a source with many nodes publishes a table for each part of them.

    Nothing in a table says to which poll it belongs. A part that comes begins a poll, unless it was awaited. Then each
    other part of the source is awaited, unless it has come since half of the time between this part and the one before:
    it was of the same poll, and earlier. A part that was also missing in the poll before is not awaited.
    """

    def __init__(self) -> None:
        self._arrived: dict[TableKey, tuple[float, float | None]] = {}  # the last time, and the one before
        self._polls: dict[str, _Poll] = {}

    def take_in(self, key: TableKey, at: float) -> None:
        """Applies that a table has come."""
        before, _ = self._arrived.get(key, (None, None))
        self._arrived[key] = at, before
        poll = self._polls.get(key.source)
        if poll is not None and key.part in poll.missing and at - poll.began < HOLD_SECONDS:
            poll.missing.discard(key.part)
        else:
            self._polls[key.source] = _Poll(at, self._awaited(key, at, before))
        if not self._polls[key.source].missing:
            del self._polls[key.source]

    def drop(self, key: TableKey) -> None:
        """Applies that a table is deleted."""
        self._arrived.pop(key, None)
        if (poll := self._polls.get(key.source)) is not None:
            poll.missing.discard(key.part)

    def are_awaited(self, at: float) -> bool:
        """Whether a part of a poll is awaited."""
        return any(poll.missing and at - poll.began < HOLD_SECONDS for poll in self._polls.values())

    def _awaited(self, key: TableKey, at: float, before: float | None) -> set[Part]:
        awaited: set[Part] = set()
        for number in range(key.part.of):
            part = Part(key.part.of, number)
            if part == key.part:
                continue
            last, _ = self._arrived.get(TableKey(key.source, part), (None, None))
            if before is None:
                is_awaited = last is None or at - last >= HOLD_SECONDS
            else:
                half = (at - before) / 2
                is_awaited = last is not None and before - half < last < at - half
            if is_awaited:
                awaited.add(part)
        return awaited
