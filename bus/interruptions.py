"""Log lines about what is interrupted and begins again by itself."""

import time

import structlog

from bus.errors import BusError
from tas.values.throttle import Throttle

REPEAT_SECONDS = 60.0
"""How often one kind of error is logged while it lasts: a full store or a missing stream lasts for hours."""


class Interruptions:
    """Logs each kind of error at once, then once a minute with `suppressed`: how many lines were left out since."""

    def __init__(self, log: structlog.stdlib.BoundLogger, event: str, **fields: object) -> None:
        """All lines have `fields`."""
        self._log = log
        self._event = event
        self._fields = fields
        self._lines = Throttle(seconds=REPEAT_SECONDS)

    def note(self, error: BaseException, **fields: object) -> None:
        """Logs the error at level info, unless suppressed."""
        code = error.code if isinstance(error, BusError) else None  # a text may name what changes
        suppressed = self._lines.admit((type(error), code), time.monotonic())
        if suppressed is not None:
            self._log.info(self._event, **self._fields, error=str(error), **fields, suppressed=suppressed)
