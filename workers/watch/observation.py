"""Decides what to do with a key that the API server has reported and a bucket contains.

Only the comparison lives here, without I/O: the resource version in a record says which replica is right. A replica
whose watch is behind leaves later records unchanged.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

import msgspec

from bus.record_kind import RecordKind
from workers.following.records import Stored
from workers.kubernetes.resources import version_number


class Versioned(Protocol):
    """A record with its resource version; empty if the record is not of an API server."""

    @property
    def resource_version(self) -> str: ...  # noqa: D102


K = TypeVar("K")
R = TypeVar("R", bound=Versioned)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation(Generic[R]):
    """What the API server reported of a key.

    Attributes:
        record: The record of the object; None if there is no object.
        version: The resource version of the object, or of a complete list.
        at: The monotonic time of the report.
        applied: The revision up to which the bucket was known at the list's request, or at the watch event.
    """

    record: R | None
    version: int
    at: float
    applied: int


class Step(Enum):
    """What to do with a key."""

    LEAVE = auto()
    WRITE = auto()
    WAIT = auto()
    """The bucket differs, and may be newer than the observation."""


def agree(kind: RecordKind[K, R], key: K, observed: Observation[R] | None, stored: Stored[R]) -> bool:
    """Whether the stored record is as observed. A later resource version alone is not a difference."""
    if observed is None or observed.record is None:
        return observed is not None and not stored.present
    if stored.record is None:
        return False
    as_read_before = msgspec.structs.replace(observed.record, resource_version=stored.record.resource_version)  # type: ignore[type-var]
    return kind.same(key, as_read_before, stored.record)


def next_step(observed: Observation[R] | None, stored: Stored[R], *, same: bool) -> Step:
    """What to do with a key, given its last observation (None: none yet) and the stored record.

    `same` is whether they agree.
    """
    if same:
        return Step.LEAVE
    if observed is None:
        return Step.WAIT if stored.present else Step.LEAVE  # another replica may have seen the object earlier
    later = stored.revision > observed.applied
    if stored.record is None:
        # A tombstone has no resource version. A tombstone that was stored after the observation may be of a later one.
        return Step.WAIT if later else Step.WRITE
    version = version_number(stored.record.resource_version)
    if version > observed.version or (version == observed.version and later):
        return Step.WAIT
    return Step.WRITE
