"""The signals for an orderly stop of a process."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

log = structlog.get_logger("runtime")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals for an orderly stop: from a supervisor, Ctrl-C, or a closed terminal."""


@asynccontextmanager
async def stop_signals() -> AsyncIterator[asyncio.Event]:
    """An event that is set by the first stop signal within the body."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def request_stop(received: signal.Signals) -> None:
        log.info("stop_requested", signal=received.name)
        stop.set()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, request_stop, number)
    try:
        yield stop
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
