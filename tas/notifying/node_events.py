"""Which changes of nodes get an Event of their own: each while they are few, and the first ones while they are many.

The Event on the policy has the number and some names of all that changed (`tas.notifying.digest`).
"""

from tas.notifying.notice import Notice

WINDOW_SECONDS = 60.0

MAX_ALIKE = 10
"""The most nodes with an Event of their own in a window, for one policy and reason."""

MAX_EVENTS = 100
"""The most nodes with one in a window, for all policies together."""


class NodeEvents:
    """Counts the Events on nodes. Times are in seconds of a clock that does not go back."""

    def __init__(self) -> None:
        self._began = float("-inf")
        self._alike: dict[tuple[str, str], int] = {}
        self._all = 0

    def admits(self, notice: Notice, now: float) -> bool:
        """Whether the node of a notice about a policy gets an Event, which counts then."""
        if now - self._began >= WINDOW_SECONDS:
            self._began, self._alike, self._all = now, {}, 0
        key = (notice.reason, notice.scope)
        count = self._alike.get(key, 0)
        if count >= MAX_ALIKE or self._all >= MAX_EVENTS:
            return False
        self._alike[key] = count + 1
        self._all += 1
        return True
