"""What a consumer gets of the objects of a resource: one author must not fill the memory of all."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from bus.kinds import POLICY_RECORDS
from bus.records.policies import PolicyRecord
from tas.policy.manifest import ParsedSpec, parse_policy
from tas.policy.policy import PolicyKey
from tas.policy.room import PolicyRoom, without_room
from workers.kubernetes.client import Change, ChangeType
from workers.kubernetes.followers import Follower
from workers.kubernetes.resources import Object, PolicyObject
from workers.process.logs import ThrottledLog

PARSED_AT_ONCE = 10
"""So many policies are parsed without a pause: each takes up to 2 ms."""

T = TypeVar("T", bound=Object)


class Admission(Follower[T], Protocol[T]):
    """Follows for another follower, which gets what is kept of each object."""

    async def settle(self) -> None:
        """Decides what is kept of a list that has been read, before its end."""
        ...


def policy_record(found: PolicyObject) -> tuple[PolicyKey, PolicyRecord]:
    """The record of a TASPolicy for the bus, with all its problems.

    Invalid parts have no effect (`tas.policy.manifest`), so an invalid policy is stored, too.
    """
    metadata, key = found.metadata, found.key
    policy, problems = parse_policy(key, found.spec)
    return key, PolicyRecord(
        policy=policy,
        uid=metadata.uid,
        generation=metadata.generation,
        problems=problems,
        resource_version=metadata.resource_version,
        created=None if metadata.creation_timestamp is None else metadata.creation_timestamp.timestamp(),
    )


def _created(found: PolicyObject) -> float:
    created = found.metadata.creation_timestamp
    return 0.0 if created is None else created.timestamp()


class PolicyAdmission:
    """Keeps no rules of the policies for which their namespace has no room (`tas.policy.room`).

    It is exact because it has what its follower has: each list as of one time, and each later change once, in order.
    A policy takes as much as its spec, or as its record on the bus if that has more: with the problems, that may be
    many times the spec. So the specs say, without parsing, which policies a list may have that count.
    """

    def __init__(self, log: ThrottledLog, follower: Follower[PolicyObject], list_again: Callable[[], None]) -> None:
        """`list_again` is called when something else would be kept of policies that the follower has already."""
        self._log = log
        self._follower = follower
        self._list_again = list_again
        self._room = PolicyRoom()
        self._coming = PolicyRoom()  # of the list that is read
        self._held: dict[PolicyKey, PolicyObject] = {}

    def begin(self) -> None:
        """A list begins. Until its end the follower gets no changes."""
        self._follower.begin()
        self._coming, self._held = PolicyRoom(), {}

    def read(self, items: Sequence[PolicyObject]) -> None:
        """Holds some objects of the list: a later one may be older, and take their room."""
        for found in items:
            key = found.key
            self._held[key] = found
            if self._coming.is_refused(key, _created(found)):
                self._empty({key})
            else:
                self._empty(self._coming.put(key, _created(found), len(msgspec.json.encode(found.spec))))

    async def settle(self) -> None:
        """Parses the policies that count, the oldest first."""
        for number, key in enumerate(self._coming.counting(), 1):
            parsed, displaced = self._parsed(self._coming, self._held[key])
            self._empty(displaced)
            if key not in displaced:
                self._held[key] = parsed
            if number % PARSED_AT_ONCE == 0:
                await asyncio.sleep(0)

    def end(self, resource_version: str) -> None:
        """Hands the list on."""
        held, self._held, self._room = self._held, {}, self._coming
        self._follower.read(tuple(held.values()))
        self._follower.end(resource_version)

    def change(self, change: Change[PolicyObject]) -> None:
        """Hands a change on."""
        found = change.object
        if change.type is ChangeType.DELETED:
            self._room.remove(found.key)
        elif self._room.is_refused(found.key, _created(found)):
            found = self._without_room(found)
        else:
            parsed, displaced = self._parsed(self._room, found)
            found = self._without_room(found) if found.key in displaced else parsed
            if displaced - {found.key}:
                self._list_again()
        if self._room.has_room_again(found.key.namespace):
            self._list_again()
        self._follower.change(msgspec.structs.replace(change, object=found))

    @staticmethod
    def _parsed(room: PolicyRoom, found: PolicyObject) -> tuple[PolicyObject, set[PolicyKey]]:
        """The policy with its spec parsed, and the policies for which there is no room any more."""
        key, record = policy_record(found)
        size = max(len(msgspec.json.encode(found.spec)), POLICY_RECORDS.size(record))
        parsed = msgspec.structs.replace(found, spec=ParsedSpec(record.policy, record.problems))
        return parsed, room.put(key, _created(found), size)

    def _empty(self, keys: set[PolicyKey]) -> None:
        for key in keys:
            self._held[key] = self._without_room(self._held[key])

    def _without_room(self, found: PolicyObject) -> PolicyObject:
        spec = without_room(found.key, found.spec)
        self._log.warning("policy_without_room", found.key.namespace, policy=str(found.key), reason=spec.reason)
        return msgspec.structs.replace(found, spec=spec)
