"""Writes the state of a source to SOURCES, conditionally, and no more often than needed."""

import time

import structlog

from bus.connection import Bus
from bus.errors import BusError, RefusedError
from bus.kinds import SOURCE_STATES
from tas.sources.state import MAX_WRITE_INTERVAL_SECONDS, SourceState, as_stored, is_write_due
from workers.process.logs import ThrottledLog

log = structlog.get_logger("samples")

EXPIRE_SECONDS = 3600
"""When a state expires that no replica writes any more."""

HELD_SECONDS = MAX_WRITE_INTERVAL_SECONDS + 10
"""A holder whose state is older no longer runs: it would have written again."""


class SourceStates:
    """Writes the state of one source."""

    def __init__(self, bus: Bus, source: str) -> None:
        self._bus = bus
        self._source = source
        self._written: SourceState | None = None
        self._throttled = ThrottledLog(log, source=source)

    async def write(self, state: SourceState, *, keep_other_holder: bool = False) -> None:
        """Writes `state` if a write is due. With `keep_other_holder` the state of another running holder stays.

        After a failed write the next call tries again. The state is written as far as a message has room for it.
        """
        state = as_stored(state)
        if not is_write_due(self._written, state):
            return
        read_at = time.monotonic()
        try:
            stored = await SOURCE_STATES.get(self._bus, self._source)
            current = stored.readable()  # an invalid state has no holder
            other = current if current is not None and current.holder != state.holder else None
            if not (keep_other_holder and other is not None and state.time - other.time < HELD_SECONDS):
                await SOURCE_STATES.put(
                    self._bus,
                    self._source,
                    state,
                    revision=stored.revision,
                    read_at=read_at,
                    ttl_seconds=EXPIRE_SECONDS,
                )
                self._log_left_out(state)
            self._written = state
        except RefusedError as error:  # it does not pass by itself
            self._throttled.warning("source_state_refused", error=str(error))
        except BusError as error:
            log.debug("source_state_not_written", source=self._source, error=str(error))

    def _log_left_out(self, state: SourceState) -> None:
        before = 0 if self._written is None else self._written.metrics_left_out
        if state.metrics_left_out not in (0, before):
            self._throttled.warning(
                "source_state_shortened", metrics=state.metric_count, left_out=state.metrics_left_out
            )
