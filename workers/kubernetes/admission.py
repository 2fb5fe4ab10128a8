"""What is kept of the objects of a resource before a consumer has them: one author must not fill the memory of all."""

import asyncio
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import msgspec
import structlog

from tas.policy.policy import PolicyKey
from tas.policy.room import PolicyRoom, without_room
from workers.kubernetes.client import Change, ChangeType, ListReader
from workers.kubernetes.resources import Object, PolicyObject
from workers.process.logs import ThrottledLog

log = structlog.get_logger("kubernetes")

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


class PolicyAdmission:
    """Keeps no rules of the policies for which their namespace has no room (`tas.policy.room`)."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._room = PolicyRoom()
        self._seen: set[PolicyKey] = set()
        self._log = ThrottledLog(log, seconds=60.0)

    def begin(self) -> None:
        """A list begins."""
        self._seen = set()

    def kept(self, found: PolicyObject) -> PolicyObject:
        """The policy, without its rules if there is no room for it."""
        metadata = found.metadata
        key = PolicyKey(metadata.namespace, metadata.name)
        self._seen.add(key)
        created = metadata.creation_timestamp
        size = len(msgspec.json.encode(found.spec))
        if self._room.put(key, 0.0 if created is None else created.timestamp(), size):
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
        self._remove(PolicyKey(found.metadata.namespace, found.metadata.name))

    def _remove(self, key: PolicyKey) -> None:
        if self._room.remove(key):
            self.changed.set()
