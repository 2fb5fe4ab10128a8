"""The live view of an installation that is already running."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from bus.buckets import NODES, SYNCED
from bus.connection import Bus
from bus.invalid import InvalidEntries
from bus.kinds import POD_RECORDS, synced_of
from bus.record_kind import Entry
from bus.records.pods import PodRecord
from bus.watch import Watch
from cli.console import new_console
from cli.queries.query import time_of_bus
from cli.top.cards import Cards
from cli.top.live import LiveView, cluster_rows
from tas.enforcing.pod import PodKey
from workers.following.followed_view import FollowedView
from workers.following.freezes import Freezes
from workers.process.log_form import LogFormat, LogLevel
from workers.process.logs import configure_logging
from workers.process.signals import stop_signals
from workers.settings import Settings

CLOCK_SECONDS = 2.0
"""A clock that differs by more from that of the bus is reported."""


async def show_running(bus: Bus, url: str, settings: Settings, *, pattern: str) -> int:
    """Shows the view until a stop signal; returns the exit code. Raises BusError if the bus is of another program.

    `pattern`: only nodes with such names, as in a shell.
    """
    await synced_of(NODES).get(bus, SYNCED)  # an error says what is missing on a bus of another program
    asked, there, answered = time.time(), await time_of_bus(bus), time.time()
    configure_logging(LogFormat.CONSOLE, LogLevel.WARNING)
    bus.on_invalid = InvalidEntries()  # in the section `events`: a line on standard error would move the screen
    followed = FollowedView(bus, default_stale_after=settings.stale_after)
    pods = _Pods(bus)
    freezes = Freezes(bus)
    cards = Cards(bus)
    live = LiveView(
        followed,
        answers_url=f"http://{settings.extender_health.near}/answers",
        hints=[
            *clock_hints(max(asked - there, 0.0) or min(answered - there, 0.0)),
            f"Ctrl-C ends the view      # {url}   http://{settings.extender_health.near}/answers",
        ],
        console=new_console(),
        cluster=lambda: pods.rows(followed, pattern),
        file_problems=lambda: followed.file_problems,
        freezes=freezes,
        cards=lambda: cards.rows(pattern),
        no_events="no warning of tas top itself; the workers have logs of their own",
        pattern=pattern,
    )
    async with stop_signals() as stop:
        tasks = [asyncio.create_task(part.run()) for part in (followed, pods, freezes, cards, live)]
        stopped = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (stopped, *tasks):
                task.cancel()
        for task in done:
            error = task.exception()
            while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]  # the command ends by it as by its own error, such as a closed pipe
            if error is not None:
                raise error
    return 0


def clock_hints(ahead: float) -> Iterator[str]:
    """A hint if this clock, by which the view counts, is at least so many seconds ahead of that of the bus."""
    if abs(ahead) > CLOCK_SECONDS:
        differs = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'}"
        yield f"this clock is {differs} the bus      # so ages and states are wrong"


class _Pods:
    """The pods that the bus has."""

    def __init__(self, bus: Bus) -> None:
        self._pods: dict[PodKey, PodRecord] = {}
        self._watch = Watch(bus, POD_RECORDS.to(self._apply), on_epoch=lambda _: self._pods.clear())

    async def run(self) -> None:
        """Follows until cancelled."""
        await self._watch.run()

    def rows(self, followed: FollowedView, pattern: str) -> Mapping[str, str]:
        """The rows of the section `cluster` about nodes of this pattern; none without a cluster."""
        view = followed.view
        labels = {node: view.labels(node) or {} for node in sorted(view.labelled_nodes) if fnmatchcase(node, pattern)}
        pods = [
            (key.name, pod.policy, pod.node)
            for key, pod in sorted(self._pods.items())
            if not pod.node or pod.node in labels
        ]
        return cluster_rows(labels, pods) if labels else {}

    def _apply(self, entry: Entry[PodKey, PodRecord]) -> None:
        pod = entry.readable()
        if pod is None:
            self._pods.pop(entry.key, None)
        else:
            self._pods[entry.key] = pod
