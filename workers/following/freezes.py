"""Which labels are frozen now, by the pause and the breakers on the bus."""

from collections.abc import Callable, Iterable, Iterator

from bus.buckets import BREAKERS
from bus.connection import Bus
from bus.kinds import BREAKER_RECORDS, PAUSE_RECORDS
from bus.record_kind import Entry
from tas.policy.policy import Policy
from tas.verdict.freeze import ALL, UNREADABLE_BREAKER, UNREADABLE_PAUSE, Breaker, Pause, freeze_of
from tas.verdict.ownership import LABEL_STRATEGIES
from workers.following.synced import SyncedWatch


class Freezes:
    """Follows BREAKERS. `on_change` is called when all is known, and when something else is frozen than before.

    A new epoch of BREAKERS says nothing until `labels` has written its `_synced`: the freezes of the epoch before are
    in the bucket again then.
    """

    name = "freezes"

    def __init__(self, bus: Bus, *, on_change: Callable[[], None] = lambda: None) -> None:
        self._bus = bus
        self._tripped: dict[str, Breaker] = {}
        self._pause: Pause | None = None
        self._reported: tuple[Pause | None, frozenset[str]] | None = None
        self._on_change = on_change
        self._watch = SyncedWatch(
            bus,
            PAUSE_RECORDS.to(self._take_in_pause),
            BREAKER_RECORDS.to(self._take_in_breaker),
            on_epoch=lambda _: self._clear(),
            on_complete=lambda _: self._report(),
        )

    def unready(self) -> str | None:
        """Why it is not known yet what is frozen."""
        return self._watch.unready()

    async def run(self) -> None:
        """Follows until cancelled."""
        await self._watch.run()

    async def are_current(self) -> bool:
        """Whether everything is known that was frozen when this was called. Raises BusError."""
        now = await self._bus.epoch(BREAKERS)
        return self.unready() is None and self._watch.status.has_all(now)

    def are_frozen(self, policy: str | None) -> bool:
        """Whether the labels of the policies of a name are frozen; None: of deleted policies."""
        return self._pause is not None or ALL in self._tripped or policy in self._tripped

    def texts(self, policies: Iterable[Policy]) -> Iterator[str]:
        """A text for each policy with labels that are frozen."""
        for policy in policies:
            freeze = freeze_of(policy.key, self._tripped, self._pause)
            if freeze is not None and set(LABEL_STRATEGIES) & policy.strategies.keys():
                yield f"{str(policy.key).removeprefix('default/')}: {freeze.text}"

    def _clear(self) -> None:
        self._tripped.clear()
        self._pause = self._reported = None

    def _report(self) -> None:
        frozen = self._pause, frozenset(self._tripped)
        if self.unready() is None and frozen != self._reported:
            self._reported = frozen
            self._on_change()

    def _take_in_pause(self, entry: Entry[str, Pause]) -> None:
        self._pause = entry.read_or(UNREADABLE_PAUSE)
        self._report()

    def _take_in_breaker(self, entry: Entry[str, Breaker]) -> None:
        self._tripped.pop(entry.key, None)
        if (breaker := entry.read_or(UNREADABLE_BREAKER)) is not None and breaker.trip is not None:
            self._tripped[entry.key] = breaker
        self._report()
