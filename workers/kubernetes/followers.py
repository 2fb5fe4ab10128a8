"""Who takes in the list of a resource and its changes, from a `Reflector`."""

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from workers.kubernetes.client import Change, Collected, Listing, ListReader
from workers.kubernetes.resources import Object

T = TypeVar("T", bound=Object)
V = TypeVar("V")


class Follower(ListReader[T], Protocol[T]):
    """Takes the objects of a list in while they arrive, and then each change."""

    def end(self, resource_version: str) -> None:
        """The list is complete: it has all objects as of this version."""
        ...

    def change(self, change: Change[T]) -> None:
        """Takes in a change."""
        ...


class Whole(Collected[T]):
    """Gathers a list, and hands it over at once."""

    def __init__(self, on_list: Callable[[Listing[T]], None], on_change: Callable[[Change[T]], None]) -> None:
        super().__init__()
        self._on_list = on_list
        self._on_change = on_change

    def end(self, resource_version: str) -> None:
        """Hands the list over."""
        listing = Listing(items=tuple(self.items), resource_version=resource_version)
        self.begin()
        self._on_list(listing)

    def change(self, change: Change[T]) -> None:
        """Hands a change over."""
        self._on_change(change)


class Gathered(Generic[T, V]):
    """Keeps what is needed of each object, and hands it over by key once the list is complete.

    `read` returns the key and what is needed; None: the object does not matter.
    """

    def __init__(
        self,
        read: Callable[[T], tuple[str, V] | None],
        *,
        on_list: Callable[[dict[str, V]], None],
        on_change: Callable[[Change[T]], None],
    ) -> None:
        self._read = read
        self._on_list = on_list
        self._on_change = on_change
        self._arrived: dict[str, V] = {}

    def begin(self) -> None:
        """A list begins."""
        self._arrived = {}

    def read(self, items: Sequence[T]) -> None:
        """Keeps what is needed of some objects."""
        self._arrived.update(kept for each in items if (kept := self._read(each)) is not None)

    def end(self, _resource_version: str) -> None:
        """Hands over what was kept."""
        arrived, self._arrived = self._arrived, {}
        self._on_list(arrived)

    def change(self, change: Change[T]) -> None:
        """Hands a change over."""
        self._on_change(change)


class Shared(Generic[T]):
    """Hands everything to several followers."""

    def __init__(self, *followers: Follower[T]) -> None:
        self.followers = list(followers)

    def begin(self) -> None:
        """A list begins."""
        for each in self.followers:
            each.begin()

    def read(self, items: Sequence[T]) -> None:
        """Some objects of the list."""
        for each in self.followers:
            each.read(items)

    def end(self, resource_version: str) -> None:
        """The list is complete."""
        for each in self.followers:
            each.end(resource_version)

    def change(self, change: Change[T]) -> None:
        """A change."""
        for each in self.followers:
            each.change(change)
