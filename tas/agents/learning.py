"""When a replica stores what an agent has learned, and when it takes what another replica has stored.

Each replica learns by itself from the same log, in the same order, so equal replicas know the same. What is stored says
up to where of the log it goes, so nothing counts twice after a restart. Of two states, the one that has learned for
longer is right: so a replica that began without a state takes that of another one. Of two that have learned for the
same time, the one that goes further is right: the log may have lost the events in between.
"""

from dataclasses import dataclass
from enum import Enum, auto
from math import inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """From where to where of the log an agent has learned.

    Attributes:
        sequence: The last sequence of the log; 0 before the first.
        since: When the first event was stored, in seconds since 1970; infinite if there was none.
    """

    sequence: int = 0
    since: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """What is stored under the name of the agent.

    Attributes:
        revision: Of the key; 0 without the key.
        position: Of the state; None if there is none that this agent can read.
    """

    revision: int
    position: Position | None


class Step(Enum):
    """What a replica does now."""

    NOTHING = auto()
    WRITE = auto()
    """Store its state, if the revision is still the same."""
    RESTORE = auto()
    """Take the stored state, and continue from there."""


def next_step(own: Position, stored: StoredState, *, known_revision: int) -> Step:
    """What a replica does that looks at the stored state from time to time.

    `known_revision` is the revision that it saw or wrote the last time: if another replica has written since, it has
    nothing to do until the next time. So replicas share the writes.
    """
    if stored.position is None:
        return Step.NOTHING if own.since == inf else Step.WRITE
    if stored.position.since < own.since:
        return Step.RESTORE
    if own.since < stored.position.since:
        return Step.WRITE  # whoever wrote it: else a younger state would stay
    if stored.position.sequence > own.sequence:
        return Step.RESTORE
    if stored.revision != known_revision or stored.position.sequence == own.sequence:
        return Step.NOTHING
    return Step.WRITE
