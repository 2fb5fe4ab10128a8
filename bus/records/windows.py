"""What the worker `windows` has of a series, in WINDOWS."""

from bus.records.codec import reader
from bus.subjects import WindowKey
from tas.errors import InvalidInputError
from tas.windows.key import StoredSeries

SUBJECT = "series of a window"

_read = reader(SUBJECT, StoredSeries)


def decode_series(key: WindowKey, data: bytes) -> StoredSeries:
    """The value of `<node>.<metric>.<seconds>.<family>` in WINDOWS. Raises InvalidInputError."""
    from tas.windows.series import Series  # noqa: PLC0415 - only who reads series loads numpy: 0.1 s and 20 MB

    stored = _read(data)
    try:
        Series.restored(key.series, stored)
    except ValueError as error:
        name = f"{SUBJECT} of {key.series.metric} over {key.series.seconds:.0f} s of {key.node}"
        raise InvalidInputError(name, key.series.family.value, "stored", str(error)) from error
    return stored
