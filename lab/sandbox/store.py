"""Objects in memory, a version for every write, and the history for watches.

Stored objects are never changed in place: each write stores a new object, so history and answers can share objects.
"""

import asyncio
import json
from collections import defaultdict, deque
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from lab.sandbox.resources import Object, Resource

HISTORY = 20_000
"""How many writes of one resource are kept for watches; older writes are forgotten, as after a compaction."""

Key = tuple[str, str]
"""Namespace (empty for a cluster-scoped resource) and name."""


@dataclass(frozen=True)
class Change:
    """One write."""

    version: int
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    resource: Resource
    now: Object
    """The written object; for a deletion its last state, with the version of the deletion."""
    before: Object | None

    @property
    def key(self) -> Key:
        """Namespace and name of the object."""
        return key_of(self.now)

    @cached_property
    def whole(self) -> bytes:
        """The object as JSON, encoded once for all watches."""
        return encode(whole(self.resource, self.now))

    @cached_property
    def partial(self) -> bytes:
        """Only the metadata of the object, as JSON."""
        return encode(partial(self.now))

    def as_deletion(self) -> "Change":
        """The deletion for a watch whose selector no longer matches: the previous object with the change's version."""
        if self.type == "DELETED" or self.before is None:
            return self
        metadata = self.before["metadata"] | {"resourceVersion": str(self.version)}
        return Change(self.version, "DELETED", self.resource, self.before | {"metadata": metadata}, self.before)


class ForgottenError(Exception):
    """The requested version is older than the history; `oldest` is the first version that can still be watched from."""

    def __init__(self, version: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {version} ({oldest})")


class Store:
    """Every object by resource, namespace and name."""

    def __init__(self) -> None:
        self.version = 0
        self._objects: dict[str, dict[Key, Object]] = {}
        self._history: dict[str, deque[Change]] = {}
        self._forgotten: defaultdict[str, int] = defaultdict(int)
        self._changed = asyncio.Event()

    def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """The object; None if it does not exist."""
        return self._of(resource).get((namespace, name))

    def items(self, resource: Resource, namespace: str = "") -> list[Object]:
        """All objects, or those of one namespace, sorted by namespace and name."""
        return [found for key, found in sorted(self._of(resource).items()) if namespace in ("", key[0])]

    def items_at(self, resource: Resource, namespace: str, version: int) -> list[Object]:
        """The result of `items` at this version.

        Raises ForgottenError if the history does not reach back to this version.
        """
        objects: dict[Key, Object | None] = dict(self._of(resource))
        for change in reversed(self.changes_after(resource, version)):
            objects[change.key] = change.before
        present = sorted((key, found) for key, found in objects.items() if found is not None)
        return [found for key, found in present if namespace in ("", key[0])]

    def put(self, resource: Resource, new: Object) -> Object:
        """Writes an object with the next version, and returns the stored object."""
        before = self.get(resource, *key_of(new))
        stored = self._next(new)
        self._of(resource)[key_of(stored)] = stored
        self._remember(
            Change(self.version, "ADDED" if before is None else "MODIFIED", resource, stored, before),
        )
        return stored

    def remove(self, resource: Resource, old: Object) -> Object:
        """Deletes an object and returns its last state, with the version of the deletion."""
        del self._of(resource)[key_of(old)]
        deleted = self._next(old)
        self._remember(Change(self.version, "DELETED", resource, deleted, old))
        return deleted

    def changes_after(self, resource: Resource, version: int) -> list[Change]:
        """The writes after this version, oldest first. Raises ForgottenError if some of them are forgotten."""
        if version < (oldest := self._forgotten[resource.plural]):
            raise ForgottenError(version, oldest)
        newer: list[Change] = []
        for change in reversed(self._history.get(resource.plural, ())):  # most callers need only the last changes
            if change.version <= version:
                break
            newer.append(change)
        newer.reverse()
        return newer

    def forget(self) -> None:
        """Forgets the history: older versions can neither be watched from nor listed."""
        forgotten = self.version
        self._history.clear()
        self._forgotten = defaultdict(lambda: forgotten)

    async def wait_beyond(self, version: int) -> None:
        """Waits until a later version is written, or `wake` is called."""
        if self.version <= version:
            await self._changed.wait()

    def wake(self) -> None:
        """Ends all calls of `wait_beyond`."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _of(self, resource: Resource) -> dict[Key, Object]:
        return self._objects.setdefault(resource.plural, {})

    def _next(self, stored: Object) -> Object:
        self.version += 1
        return stored | {"metadata": stored["metadata"] | {"resourceVersion": str(self.version)}}

    def _remember(self, change: Change) -> None:
        history = self._history.setdefault(change.resource.plural, deque())
        history.append(change)
        if len(history) > HISTORY:
            self._forgotten[change.resource.plural] = history.popleft().version
        self.wake()


def key_of(stored: Object) -> Key:
    """The namespace and name of an object."""
    metadata = stored["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def whole(resource: Resource, stored: Object) -> Object:
    """The object with `kind` and `apiVersion`."""
    return {"kind": resource.kind, "apiVersion": resource.group_version} | stored


def partial(stored: Object) -> Object:
    """The object as PartialObjectMetadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": stored["metadata"]}


def encode(value: object) -> bytes:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
