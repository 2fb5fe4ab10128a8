"""Why labels are frozen now, for the live view."""

from collections.abc import Iterable, Iterator

from bus.connection import Bus
from bus.kinds import BREAKER_RECORDS, PAUSE_RECORDS
from bus.record_kind import Entry
from bus.watch import Watch
from tas.policy.policy import Policy
from tas.verdict.brake import UNREADABLE_BREAKER, UNREADABLE_PAUSE, Breaker, Pause, freeze_of
from tas.verdict.ownership import LABEL_STRATEGIES


class Freezes:
    """Follows BREAKERS."""

    name = "freezes"

    def __init__(self, bus: Bus) -> None:
        self._breakers: dict[str, Breaker] = {}
        self._pause: Pause | None = None
        self._watch = Watch(
            bus,
            PAUSE_RECORDS.to(self._take_in_pause),
            BREAKER_RECORDS.to(self._take_in_breaker),
            on_epoch=lambda _: self._clear(),
        )

    def unready(self) -> str | None:
        """Always ready."""
        return None

    async def run(self) -> None:
        """Follows until cancelled."""
        await self._watch.run()

    def texts(self, policies: Iterable[Policy]) -> Iterator[str]:
        """A text for each policy with labels that are frozen."""
        for policy in policies:
            freeze = freeze_of(policy.key, self._breakers, self._pause)
            if freeze is not None and set(LABEL_STRATEGIES) & policy.strategies.keys():
                yield f"{str(policy.key).removeprefix('default/')}: {freeze.text}"

    def _clear(self) -> None:
        self._breakers.clear()
        self._pause = None

    def _take_in_pause(self, entry: Entry[str, Pause]) -> None:
        self._pause = entry.read_or(UNREADABLE_PAUSE)

    def _take_in_breaker(self, entry: Entry[str, Breaker]) -> None:
        self._breakers.pop(entry.key, None)
        if (breaker := entry.read_or(UNREADABLE_BREAKER)) is not None:
            self._breakers[entry.key] = breaker
