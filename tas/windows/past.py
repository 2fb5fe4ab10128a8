"""When the values of new statistics are read from the past: by a second reader, beside the one of the table."""

FILL_SECONDS = 1.0
"""The least pause between two times at which the table gets other statistics."""

PAUSES = 3
"""So many times the time of a reading is the pause after it."""


def pause_after(seconds: float) -> float:
    """The seconds until the past is read again, after a reading that took so long: at most a quarter of the time."""
    return max(FILL_SECONDS, PAUSES * seconds)


def has_read_as_far(read: int | None, other: int | None, *, behind: int) -> bool:
    """Whether a reader has all that another one has read, so that the other one can go on with its series.

    Args:
        read: The last sequence that it has read; None before the first.
        other: That of the other reader.
        behind: How many messages it knows to be still to come. There are always some under a flood, so they count only
            before the first.
    """
    return not behind if read is None else read >= (other or 0)
