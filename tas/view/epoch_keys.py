"""Which keys a bucket holds in its present epoch, so that a reader knows after a wipe which keys are missing.

After a wipe a bucket is empty for a while. A reader keeps its records until it has read a complete list of the new
epoch; only then the records that the list does not have are deleted. An absence alone never is a deletion.
"""

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class EpochKeys(Generic[K]):
    """The keys seen in the present epoch of a bucket."""

    __slots__ = ("_complete", "_keys", "epoch")

    def __init__(self) -> None:
        self.epoch: str | None = None
        self._keys: set[K] = set()
        self._complete = False

    @property
    def complete(self) -> bool:
        """Whether a complete list of this epoch has been read."""
        return self._complete

    def start_epoch(self, epoch: str) -> None:
        """Starts a new epoch of the bucket, without keys."""
        self.epoch = epoch
        self._keys.clear()
        self._complete = False

    def add(self, key: K) -> None:
        """Notes that `key` is in the bucket."""
        if not self._complete:
            self._keys.add(key)

    def discard(self, key: K) -> None:
        """Notes that `key` was deleted from the bucket."""
        self._keys.discard(key)

    def complete_epoch(self, epoch: str, known: Collection[K]) -> list[K]:
        """After a complete list of `epoch` was read: the keys of `known` that are missing in it.

        None are missing if `epoch` is not the present one, or if its list was complete before.
        """
        if epoch != self.epoch or self._complete:
            return []
        self._complete = True
        missing = [key for key in known if key not in self._keys]
        self._keys.clear()
        return missing
