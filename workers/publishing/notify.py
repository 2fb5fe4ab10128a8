"""The worker `notify`: takes the public events to the sinks of its settings."""

import asyncio
from collections.abc import Sequence

import structlog

from bus.connection import Bus
from bus.errors import BusError
from bus.lease import Lease
from tas.values.backoff import Backoff
from workers.publishing.sinks.base import Sink, SinkMetrics

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

    def __init__(self, bus: Bus, sinks: Sequence[Sink], *, metrics: SinkMetrics) -> None:
        self._bus = bus
        self._sinks = sinks
        self._metrics = metrics
        for sink in sinks:
            metrics.start(sink.name)

    def unready(self) -> str | None:
        """Why the worker cannot work. A sink that fails does not change readiness: see its metrics."""
        return None

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for sink in self._sinks:
                tasks.create_task(self._run(sink), name=f"sink {sink.name}")

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
                async with Lease(self._bus, f"notify-{sink.name}").hold():
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
