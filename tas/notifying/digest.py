"""Groups what happened, so that a hundred nodes that change at once make one message."""

from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from tas.notifying.notice import Notice
from tas.values.nouns import counted

T = TypeVar("T")

SHOWN = 5
"""How many objects of a group a message names; of the others it gives the number."""

MAX_GROUPS = 20
"""How many groups one message has; of the others it gives the number."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to several objects: `notices` has the newest of each object, in order of time."""

    notices: tuple[Notice, ...]
    transitions: int

    @property
    def text(self) -> str:
        """One line for people."""
        first = self.notices[0]
        names = list(dict.fromkeys(notice.object for notice in self.notices))
        if len(names) == 1:
            repeated = f" ({self.transitions} changes)" if self.transitions > 1 else ""
            return f"{self.notices[-1].text}{repeated}"
        shown = ", ".join(names[:SHOWN])
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        text = first.group_text.replace("{count}", str(len(names)))
        return f"{text}: {shown}{more}"


class Digest(Generic[T]):
    """Collects notices until they are due, and gives them as groups. `T` is what the caller acknowledges with.

    The first message comes `wait` seconds after its first notice, each other one at least `interval` seconds after the
    message before it, so the number of messages does not depend on the number of events. All methods are given the
    time, in seconds of a clock that does not go back.
    """

    def __init__(self, *, wait: float, interval: float, capacity: int) -> None:
        """`capacity`: with so many notices the digest is due at once."""
        self._wait = wait
        self._interval = interval
        self._capacity = capacity
        self._held: list[tuple[Notice, T]] = []
        self._since = 0.0
        self._not_before = 0.0

    def __len__(self) -> int:
        return len(self._held)

    def add(self, notice: Notice, item: T, now: float) -> None:
        """Adds a notice."""
        if not self._held:
            self._since = now
        self._held.append((notice, item))

    def due_at(self) -> float | None:
        """When a message is due; None without a notice."""
        if not self._held:
            return None
        if len(self._held) >= self._capacity:
            return self._since
        return max(self._since + self._wait, self._not_before)

    def take(self, now: float) -> tuple[list[Group], list[T]]:
        """The groups of the message that is due, with what the caller acknowledges with after sending it."""
        held, self._held = self._held, []
        self._not_before = now + self._interval
        return list(_groups(notice for notice, _ in held)), [item for _, item in held]


def digest_text(groups: list[Group]) -> str:
    """The message of several groups: a line for each, warnings first."""
    ordered = sorted(groups, key=lambda group: not group.notices[0].warning)
    lines = [group.text for group in ordered[:MAX_GROUPS]]
    if len(ordered) > MAX_GROUPS:
        lines.append(f"and {counted(len(ordered) - MAX_GROUPS, 'other group')} of events")
    return "\n".join(lines)


def _groups(notices: Iterator[Notice]) -> Iterator[Group]:
    """One group for each kind of end state: an object that changed several times counts where it ended."""
    newest: dict[tuple[str, str, str], Notice] = {}
    counts: dict[tuple[str, str, str], int] = {}
    for notice in notices:
        key = (notice.condition, notice.scope, notice.object)
        newest.pop(key, None)  # in order of the last change
        newest[key] = notice
        counts[key] = counts.get(key, 0) + 1
    groups: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for key, notice in newest.items():
        groups.setdefault((notice.reason, notice.scope), []).append(key)
    for keys in groups.values():
        yield Group(notices=tuple(newest[key] for key in keys), transitions=sum(counts[key] for key in keys))
