"""The worker `notify`: takes the public events to the sinks of its settings."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence

import structlog

from bus.connection import Bus
from bus.errors import BusError
from bus.lease import Lease
from tas.values.backoff import Backoff
from workers.notify.sinks.base import Sink, SinkMetrics

log = structlog.get_logger("notify")

STABLE_SECONDS = 60.0
"""A sink that ran for so long starts again without a longer wait."""

RESTART = Backoff(first=1.0, longest=60.0)
"""The waits before a sink that failed by a bug starts again."""


class Notify:
    """Runs each sink by itself: a sink that fails, hangs or has a bug affects no other sink.

    A sink that sends each event once runs on one replica at a time, by a lease of its own.
    """

    name = "notify"

    def __init__(
        self,
        bus: Bus,
        sinks: Sequence[Sink],
        *,
        metrics: SinkMetrics,
        changed: Callable[[], Awaitable[Sequence[Sink]]] | None = None,
    ) -> None:
        """`changed` waits for other settings, and returns all sinks; None: the sinks are always the same.

        A sink whose settings did not change must be the same object.
        """
        self._bus = bus
        self._sinks = sinks
        self._metrics = metrics
        self._changed = changed

    def unready(self) -> str | None:
        """Why the worker cannot work. A sink that fails does not change readiness: see its metrics."""
        return None

    def concerns(self) -> Iterator[str]:
        """Sinks that accept no event."""
        for sink, seconds in self._metrics.late().items():
            yield f"the sink {sink} has not accepted an event for {seconds:.0f} s"

    async def run(self) -> None:
        """Runs until cancelled."""
        running: dict[Sink, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                gone = {sink: task for sink, task in running.items() if sink not in self._sinks}
                for task in gone.values():
                    task.cancel()
                if gone:
                    await asyncio.wait(gone.values())  # a sink with other settings needs the lease of the one before
                for sink in gone:
                    del running[sink]
                    self._metrics.stop(sink.name)  # also if another one has the name now, maybe of another type
                for sink in self._sinks:
                    if sink not in running:
                        self._metrics.start(sink.name)
                        running[sink] = tasks.create_task(self._run(sink), name=f"sink {sink.name}")
                if self._changed is None:
                    return
                self._sinks = await self._changed()

    async def _run(self, sink: Sink) -> None:
        failures, started = 0, 0.0
        loop = asyncio.get_running_loop()
        held = self._metrics.lease_held.labels(sink.name)
        held.set(0)
        while True:
            started = loop.time()
            try:
                if not sink.shared:
                    await sink.run()
                async with Lease(self._bus, f"notify.{sink.name}").hold():
                    held.set(1)
                    started = loop.time()
                    await sink.run()
            except BusError as error:
                log.info("sink_released", sink=sink.name, error=str(error))
            except Exception:
                log.exception("sink_broken", sink=sink.name)
                failures = 1 if loop.time() - started > STABLE_SECONDS else failures + 1
                await asyncio.sleep(RESTART.after(failures))
            finally:
                held.set(0)
