"""The only place that logs and counts entries that cannot be decoded."""

import time
from collections.abc import Callable

import structlog

from bus.buckets import Bucket
from tas.errors import InvalidInputError
from tas.values.throttle import Throttle

log = structlog.get_logger(__name__)

OnInvalid = Callable[[Bucket, str, InvalidInputError], None]


class InvalidEntries:
    """Logs invalid entries, throttled for each key; `count` gets the bucket of each attempt to read one."""

    def __init__(self, count: Callable[[str], None] = lambda _: None) -> None:
        self._count = count
        self._lines = Throttle()

    def __call__(self, bucket: Bucket, key: str, error: InvalidInputError) -> None:
        """Logs and counts the entry at `key`."""
        self._count(bucket.name)
        held_back = self._lines.admit((bucket.name, key), time.monotonic())
        if held_back is not None:
            log.warning(
                "entry_invalid",
                bucket=bucket.name,
                key=key,
                object=error.subject,
                field=error.field,
                value=error.value,
                reason=error.reason,
                suppressed=held_back,
            )
