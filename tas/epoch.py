"""What outlives a wipe of the bus, and until when.

After a wipe the bucket is empty for a while. What was known before is held until a complete list of the new life has
been taken in; only then what that list did not name is let go. An absence alone never is a deletion.
"""

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Survivors(Generic[K]):
    """Which keys have been named since the present life of a bucket began."""

    __slots__ = ("_complete", "_named", "epoch")

    def __init__(self) -> None:
        self.epoch: str | None = None
        self._named: set[K] = set()
        self._complete = False

    @property
    def complete(self) -> bool:
        """Whether a complete list of this life has been taken in."""
        return self._complete

    def begin(self, epoch: str) -> None:
        """A new life of the bucket: nothing has been named in it yet."""
        self.epoch = epoch
        self._named.clear()
        self._complete = False

    def name(self, key: K) -> None:
        """`key` stands in the bucket."""
        if not self._complete:
            self._named.add(key)

    def unname(self, key: K) -> None:
        """`key` was deleted from the bucket."""
        self._named.discard(key)

    def finish(self, epoch: str, known: Collection[K]) -> list[K]:
        """A complete list of `epoch` has been taken in: which of `known` to let go, once a life; else none."""
        if epoch != self.epoch or self._complete:
            return []
        self._complete = True
        gone = [key for key in known if key not in self._named]
        self._named.clear()
        return gone
