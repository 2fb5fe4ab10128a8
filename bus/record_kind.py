"""A kind of record in a bucket, with the encoding of its keys and values.

Other packages exchange keys and records with the bus, never bytes.
"""

from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from bus.buckets import Bucket
from bus.connection import Bus
from bus.entry import RawEntry
from bus.invalid import OnInvalid
from bus.records.codec import encode
from tas.errors import InvalidInputError

K = TypeVar("K")
V = TypeVar("V")

FEW_TEXTS = 32
"""So many texts are searched in a record one by one."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Takes the place of a stored value that cannot be decoded: the key is present."""

    error: InvalidInputError


class Packed(Generic[K, V]):
    """A record in memory as it is stored, decoded at each `read`: it takes a hundredth of the memory."""

    __slots__ = ("_key", "_kind", "value")

    def __init__(self, kind: "RecordKind[K, V]", key: K, value: bytes) -> None:
        self._kind = kind
        self._key = key
        self.value = value

    def read(self) -> V:
        """The record."""
        return self._kind.decode(self._key, self.value)


class Entry(Generic[K, V]):
    """One revision of a key.

    It keeps the stored bytes and decodes them at each `read`: most entries are never needed, and a decoded record
    takes ten times the memory.

    Attributes:
        key: The decoded key.
        revision: 0 if there is no such key and no tombstone.
        created: When the server stored it, seconds since 1970.
        previous: The revision of the key that it replaced, 0 for none; None if that is not known.
    """

    __slots__ = ("_decoded", "_keeps", "_kind", "_on_invalid", "_value", "created", "key", "previous", "revision")

    def __init__(self, kind: "RecordKind[K, V]", key: K, raw: RawEntry | None, on_invalid: OnInvalid) -> None:
        self.key = key
        self.revision = 0 if raw is None else raw.revision
        self.created = 0.0 if raw is None else raw.created
        self.previous = None if raw is None else raw.previous
        self._value = None if raw is None else raw.value
        self._kind = kind
        self._on_invalid = on_invalid
        self._keeps = False
        self._decoded: V | Unreadable | None = None

    @property
    def present(self) -> bool:
        """Whether a value is stored, valid or not; False for a tombstone."""
        return self._value is not None

    def read(self) -> V | Unreadable | None:
        """The record; None without the key. An invalid value is logged and counted."""
        if self._value is None or self._decoded is not None:
            return self._decoded
        try:
            found: V | Unreadable = self._kind.decode(self.key, self._value)
        except InvalidInputError as error:
            self._on_invalid(self._kind.bucket, self._kind.key(self.key), error)
            found = Unreadable(error)
        if self._keeps:
            self._decoded = found
        return found

    def keep_decoded(self, *, keeps: bool) -> None:
        """Whether the decoded record is kept for the next `read`: while several readers of one process are called."""
        self._keeps, self._decoded = keeps, None

    def readable(self) -> V | None:
        """The record; None without the key, and for an invalid value."""
        record = self.read()
        return None if isinstance(record, Unreadable) else record

    def read_or(self, unreadable: V) -> V | None:
        """The record; None without the key, and `unreadable` for an invalid value."""
        record = self.read()
        return unreadable if isinstance(record, Unreadable) else record

    def packed(self) -> Packed[K, V]:
        """The record to be kept in memory. The entry must have been read before, and have a record."""
        assert self._value is not None
        return Packed(self._kind, self.key, self._value)

    def mentioned(self, texts: Set[str]) -> Collection[str]:
        """Which of these strings the JSON contains as a name or a value: much cheaper than `read`.

        Many texts cost no more than some: each string of the JSON is looked up. They must be free of what JSON escapes.
        """
        if self._value is None:
            return ()
        json = self._kind.json(self._value)
        if len(texts) <= FEW_TEXTS:
            return [text for text in texts if f'"{text}"'.encode() in json]
        return texts & set(json.decode(errors="replace").split('"'))

    def document(self) -> Any:
        """The stored JSON, decoded, to be shown. The entry must have been read before."""
        return None if self._value is None else msgspec.json.decode(self._kind.json(self._value))


@dataclass(frozen=True, slots=True)
class Handler(Generic[K, V]):
    """A function for each entry of a kind."""

    kind: "RecordKind[K, V]"
    handle: Callable[[Entry[K, V]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKind(Generic[K, V]):
    """The records of one kind in a bucket.

    `parse_key` returns the decoded key, or None for a key of another kind, and raises InvalidInputError for an invalid
    key, as `decode` does for an invalid value. `json` returns the JSON of a valid value. `keys` is a pattern of the
    keys of this kind.
    """

    bucket: Bucket
    key: Callable[[K], str]
    parse_key: Callable[[str], K | None]
    decode: Callable[[K, bytes], V]
    encode: Callable[[V], bytes] = encode
    json: Callable[[bytes], bytes] = bytes
    keys: str = ">"

    async def get(self, bus: Bus, key: K) -> Entry[K, V]:
        """The key's last entry, by the stream's leader. Raises UnavailableError, RefusedError."""
        return Entry(self, key, await bus.get(self.bucket, self.key(key)), bus.on_invalid)

    async def entries(self, bus: Bus, keys: Collection[str] = (">",)) -> list[Entry[K, V]]:
        """All entries without tombstones, complete at some time during the call. Raises UnavailableError.

        `keys` are patterns with wildcards, of which no two match the same key.
        """
        found: list[Entry[K, V]] = []
        await read_entries(bus, self.bucket, self.to(found.append), keys=keys)
        return found

    async def listed(self, bus: Bus) -> list[K]:
        """The valid keys of all entries, of tombstones as well, by the stream's leader.

        Raises UnavailableError, RefusedError.
        """
        found: list[K] = []
        for name in await bus.keys(self.bucket, self.keys):
            try:
                key = self.parse_key(name)
            except InvalidInputError as error:
                bus.on_invalid(self.bucket, name, error)
                continue
            if key is not None:
                found.append(key)
        return found

    async def put(
        self, bus: Bus, key: K, record: V | Packed[K, V], *, revision: int, read_at: float, ttl_seconds: int = 0
    ) -> int:
        """Writes if the key is still at `revision`, and returns the new one. Raises as `Bus.put`."""
        return await bus.put(
            self.bucket,
            self.key(key),
            record.value if isinstance(record, Packed) else self.encode(record),
            revision=revision,
            read_at=read_at,
            ttl_seconds=ttl_seconds,
        )

    async def delete(self, bus: Bus, key: K, *, revision: int, read_at: float, ttl_seconds: int = 0) -> int:
        """Deletes on the same condition as `put`, leaving a tombstone that watchers see, for `ttl_seconds` if given."""
        return await bus.delete(self.bucket, self.key(key), revision=revision, read_at=read_at, ttl_seconds=ttl_seconds)

    def to(self, handle: Callable[[Entry[K, V]], None]) -> Handler[K, V]:
        """A handler for a watch: `handle` gets each entry of this kind."""
        return Handler(self, handle)

    def same(self, key: K, record: V, stored: V | None) -> bool:
        """Whether `stored` equals `record`, or equals it after encoding and decoding."""
        return stored is not None and (stored == record or stored == self.decode(key, self.encode(record)))

    def packed(self, key: K, record: V) -> Packed[K, V]:
        """A record to be kept in memory."""
        return Packed(self, key, self.encode(record))

    def size(self, record: V) -> int:
        """The size of the record on the bus in bytes."""
        return len(self.encode(record))


async def read_entries(bus: Bus, bucket: Bucket, *handlers: Handler[Any, Any], keys: Collection[str] = (">",)) -> None:
    """Gives all entries of a bucket, without tombstones, to the handlers of their kinds: one read for several kinds.

    `keys` are patterns with wildcards, of which no two match the same key. Complete at some time during the call.
    Raises UnavailableError.
    """
    for raw in await bus.entries(bucket, keys):
        hand_on(bucket, handlers, bus.on_invalid, raw)


def hand_on(bucket: Bucket, handlers: Sequence[Handler[Any, Any]], on_invalid: OnInvalid, raw: RawEntry) -> None:
    """Gives an entry to the handler of its kind, if any. An invalid key is reported to `on_invalid`."""
    for handler in handlers:
        try:
            key = handler.kind.parse_key(raw.key)
        except InvalidInputError as error:
            on_invalid(bucket, raw.key, error)
            return
        if key is not None:
            handler.handle(Entry(handler.kind, key, raw, on_invalid))
            return
