"""Which watch asks a silent API server whether it still answers.

An API server may send nothing for as long as nothing changes (facts.md c90), and so does one that is paused, or whose
packets are lost: only a request tells them apart. A watch that is opened again is such a request, and what is heard by
one connection of a client proves that the API server answers. So the watches of a client take turns.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf, nan

from workers.kubernetes.errors import SilentError

PARTS = 3
"""Within the time after which a silent watch is opened again, at least so many requests are sent if nothing comes.

So one watch alone asks as soon as one of three does.
"""


class Silence:
    """When the API server was last heard by a client, and by each of its open watches. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._heard_at = -inf
        self._asked_at = -inf  # when a watch last ended because it was silent: its reader asks then
        self._watches: dict[object, float] = {}  # when each last got something
        self._followers = 0
        self._followed_since = inf

    @property
    def age(self) -> float:
        """For how many seconds nothing has come, since something is followed; NaN while nothing is."""
        if not self._followers:
            return nan
        return time.monotonic() - max(self._heard_at, self._followed_since)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Within it somebody follows a resource, with or without an open watch."""
        if not self._followers:
            self._followed_since = time.monotonic()
        self._followers += 1
        try:
            yield
        finally:
            self._followers -= 1

    @contextmanager
    def watching(self) -> Iterator[object]:
        """Within it a watch is open; what comes by it is noted with the object.

        After a SilentError its reader opens the watch again, which asks. If its reader leaves, nobody asks.
        """
        watch = object()
        self._watches[watch] = time.monotonic()
        try:
            yield watch
        except SilentError:
            self._asked_at = time.monotonic()
            raise
        finally:
            del self._watches[watch]

    def heard(self, watch: object | None = None) -> None:
        """Something has come, by this watch or as another answer."""
        self._heard_at = time.monotonic()
        if watch is not None:
            self._watches[watch] = self._heard_at

    def remaining(self, watch: object, seconds: float) -> float:
        """For how many seconds the watch is still to be waited for; 0 or less: it is to be opened again.

        Each is opened again after `seconds` without anything. If nothing at all comes, their turns are spread evenly
        over this time, the one first that has been silent for the longest time: so three watches or more send no more
        requests than each for itself, and the API server is asked after a part of the time.
        """
        now = time.monotonic()
        until = self._watches[watch] + seconds
        turn = max(self._heard_at, self._asked_at) + seconds / max(PARTS, len(self._watches))
        if watch is not min(self._watches, key=self._watches.__getitem__):
            turn = max(turn, now + seconds / 100)  # that of another one: look again soon
        return min(until, turn) - now
