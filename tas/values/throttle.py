"""Limits how often an event of one key is reported, for example a log line."""

from collections.abc import Hashable
from math import inf

SAID_SECONDS = 60.0
"""How often it is told that events of too many keys were suppressed."""


class Throttle:
    """Admits the first event of each key, then one per `seconds`, and counts the suppressed ones.

    At most `keys` keys are distinguished; all others share one entry, so that many different keys do not flood the log.
    """

    def __init__(self, *, seconds: float = 10.0, keys: int = 256) -> None:
        self._seconds = seconds
        self._keys = keys
        self._last: dict[Hashable, tuple[float, int]] = {}
        self._left_out = 0
        self._said = -inf

    def admit(self, key: Hashable, now: float) -> int | None:
        """How many events of this key were suppressed since the last admitted one; None: suppress this one as well.

        `now` is in seconds of a monotonic clock.
        """
        is_shared = False
        if key not in self._last and len(self._last) >= self._keys:
            self._last = {key: last for key, last in self._last.items() if key is None or now - last[0] < self._seconds}
            if len(self._last) >= self._keys:
                key, is_shared = None, True
        last = self._last.get(key)
        if last is None:
            self._last[key] = (now, 0)
            return 0
        since, suppressed = last
        if now - since < self._seconds:
            self._last[key] = (since, suppressed + 1)
            self._left_out += is_shared
            return None
        self._last[key] = (now, 0)
        return suppressed

    def left_out(self, now: float) -> int:
        """How many events of keys without an entry were suppressed since this was last told; 0 within `SAID_SECONDS`.

        None of these keys may ever have been admitted.
        """
        if not self._left_out or now - self._said < SAID_SECONDS:
            return 0
        count, self._left_out, self._said = self._left_out, 0, now
        return count
