"""The state of one source in SOURCES, written by who has the source, on a condition, and no more often than needed."""

import time

import structlog

from bus.buckets import SOURCES
from bus.connection import Bus
from bus.errors import BusError
from bus.messages import decode_source_state, encode_source_state
from tas.errors import InvalidInputError
from tas.sources.state import SourceState, is_due

log = structlog.get_logger("collect")

EXPIRE_SECONDS = 3600
"""So long the last word on a source stands that nobody has any more."""


class SourceStates:
    """Writes for one source."""

    def __init__(self, bus: Bus, source: str) -> None:
        self._bus = bus
        self._source = source
        self._written: SourceState | None = None

    async def write(self, state: SourceState, *, give_way: bool = False) -> None:
        """Writes if that says something new. With `give_way` the state of another holder stays as it is.

        What cannot be written now is tried again with the next call.
        """
        if not is_due(self._written, state):
            return
        read_at = time.monotonic()
        try:
            stands = await self._bus.get(SOURCES, self._source)
            if not (give_way and stands is not None and self._is_anothers(stands.value, state.holder)):
                await self._bus.put(
                    SOURCES,
                    self._source,
                    encode_source_state(state),
                    revision=0 if stands is None else stands.revision,
                    read_at=read_at,
                    ttl_seconds=EXPIRE_SECONDS,
                )
            self._written = state
        except BusError as error:
            log.debug("source_state_not_written", source=self._source, error=str(error))

    def _is_anothers(self, value: bytes | None, holder: str) -> bool:
        try:
            return value is not None and decode_source_state(value).holder != holder
        except InvalidInputError:
            return False  # nobody's
