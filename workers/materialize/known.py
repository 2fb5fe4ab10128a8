"""What a replica knows of a record of NODES that any replica writes."""

from collections.abc import Collection, Mapping
from typing import Any, Generic, Protocol, Self, TypeVar

from bus.record_kind import Entry


class _Record(Protocol):
    """A record that says of which values it was written without."""

    @property
    def left_out(self) -> Collection[str]: ...

    @property
    def unseen(self) -> Mapping[Any, int]: ...


R = TypeVar("R", bound=_Record)


class Known(Generic[R]):
    """A record at `revision` (0: never written), decoded when first needed."""

    __slots__ = ("_entry", "_record", "_unseen", "revision")

    def __init__(self, revision: int, *, entry: Entry[Any, R] | None = None, record: R | None = None) -> None:
        self.revision = revision
        self._entry = entry
        self._record = record
        self._unseen: Mapping[Any, int] = {}

    @property
    def record(self) -> R | None:
        """The record; None if there is none, or if it is invalid: the next write replaces it."""
        if self._entry is not None:
            self._record, self._entry = self._entry.readable(), None
        return self._record

    @property
    def is_present(self) -> bool:
        """Whether there is something to delete."""
        return self._record is not None or (self._entry is not None and self._entry.present)

    def follows(self, current: Self | None) -> bool:
        """Whether it is to replace what is known: then it keeps what that said about values that were left out.

        Of one revision, the answer to a write or read replaces what came by the watch, which is often faster.
        """
        if current is None:
            return True
        if not (current.revision < self.revision or (current.revision == self.revision and current._entry is not None)):
            return False
        if self.is_present:
            self._unseen = current._last_unseen
        return True

    @property
    def _last_unseen(self) -> Mapping[Any, int]:
        return self._record.unseen if self._record is not None and self._record.left_out else self._unseen

    def _unsaid(self, left_out: Mapping[Any, int]) -> set[Any]:
        """Of these series, with the last sequence of their values: those of which no version says so."""
        unseen = self._last_unseen
        return {each for each, sequence in left_out.items() if sequence >= unseen.get(each, 0)}
