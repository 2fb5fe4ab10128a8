"""What is kept of the objects of a resource before a consumer has them: one author must not fill the memory of all."""

import asyncio
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import msgspec
import structlog

from bus.kinds import POLICY_RECORDS
from bus.records.policies import PolicyRecord
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tas.policy.room import PolicyRoom, without_room
from workers.kubernetes.client import Change, ChangeType, ListReader
from workers.kubernetes.resources import Object, PolicyObject
from workers.process.logs import ThrottledLog

log = structlog.get_logger("kubernetes")

MAX_GONE = 4096
"""Of so many deleted policies the uids are remembered: of each that a list or a late answer may still have."""

T = TypeVar("T", bound=Object)


class Admission(Protocol[T]):
    """Attributes: changed: set when something else would be kept of objects that consumers have already."""

    changed: asyncio.Event

    def begin(self) -> None:
        """A list begins."""
        ...

    def kept(self, found: T) -> T:
        """What is kept of an object."""
        ...

    def end(self) -> None:
        """The list was complete: what it did not have is gone."""
        ...

    def gone(self, found: T) -> None:
        """An object was deleted."""
        ...


class Admitted(Generic[T]):
    """Reads a list for another reader, which gets what is kept of each object."""

    def __init__(self, reader: ListReader[T], admission: Admission[T]) -> None:
        self._reader = reader
        self._admission = admission

    def begin(self) -> None:
        """A list begins."""
        self._admission.begin()
        self._reader.begin()

    def read(self, items: Sequence[T]) -> None:
        """Some objects of the list."""
        self._reader.read([self._admission.kept(each) for each in items])


def admitted(change: Change[T], admission: Admission[T]) -> Change[T]:
    """A change with what is kept of its object."""
    if change.type is ChangeType.DELETED:
        admission.gone(change.object)
        return change
    return msgspec.structs.replace(change, object=admission.kept(change.object))


def policy_record(found: PolicyObject) -> tuple[PolicyKey, PolicyRecord]:
    """The record of a TASPolicy for the bus, with all its problems.

    Invalid parts have no effect (`tas.policy.manifest`), so an invalid policy is stored, too.
    """
    metadata = found.metadata
    key = PolicyKey(metadata.namespace, metadata.name)
    policy, problems = parse_policy(key, found.spec)
    return key, PolicyRecord(
        policy=policy,
        uid=metadata.uid,
        generation=metadata.generation,
        problems=problems,
        resource_version=metadata.resource_version,
        created=None if metadata.creation_timestamp is None else metadata.creation_timestamp.timestamp(),
    )


class PolicyAdmission:
    """Keeps no rules of the policies for which their namespace has no room (`tas.policy.room`).

    A policy takes what its record takes on the bus: with the problems, that may be many times its spec.
    """

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._room = PolicyRoom()
        self._seen: set[PolicyKey] = set()
        self._gone: dict[str, None] = {}  # the uids of those that the watch has reported as deleted, the newest last
        self._sizes: dict[PolicyKey, tuple[tuple[str, int], int]] = {}  # of the record of a uid and a generation
        self._log = ThrottledLog(log, seconds=60.0)

    def begin(self) -> None:
        """A list begins."""
        self._seen = set()

    def kept(self, found: PolicyObject) -> PolicyObject:
        """The policy, without its rules if there is no room for it."""
        metadata = found.metadata
        if metadata.uid in self._gone:
            return found  # of a list that began before its deletion, or of a late answer: it takes no room again
        key = PolicyKey(metadata.namespace, metadata.name)
        self._seen.add(key)
        created = metadata.creation_timestamp
        if self._room.put(key, 0.0 if created is None else created.timestamp(), self._size(key, found)):
            self.changed.set()
        if not self._room.is_refused(key):
            return found
        spec = without_room(key, found.spec)
        self._log.warning("policy_without_room", key.namespace, policy=str(key), reason=spec.reason)
        return msgspec.structs.replace(found, spec=spec)

    def end(self) -> None:
        """The list was complete."""
        for key in {*self._room.keys()} - self._seen:
            self._remove(key)

    def gone(self, found: PolicyObject) -> None:
        """A policy was deleted."""
        self._gone[found.metadata.uid] = None
        if len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]
        self._remove(PolicyKey(found.metadata.namespace, found.metadata.name))

    def _size(self, key: PolicyKey, found: PolicyObject) -> int:
        """The bytes of its record. Each spec is parsed once: those without room may be many, and each list has all."""
        version = (found.metadata.uid, found.metadata.generation)
        known = self._sizes.get(key)
        if known is None or known[0] != version:
            known = self._sizes[key] = (version, POLICY_RECORDS.size(policy_record(found)[1]))
        return known[1]

    def _remove(self, key: PolicyKey) -> None:
        self._sizes.pop(key, None)
        if self._room.remove(key):
            self.changed.set()
