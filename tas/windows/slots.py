"""A window moves in slots: a part of a window leaves it at once, so that no single value has to be kept."""

SLOTS = 20
"""Into so many slots a window is divided: it covers its duration, and up to a twentieth more."""


def slot_of(time: float, seconds: float) -> int:
    """The number of the slot of a time in a window of `seconds`."""
    return int(time * SLOTS // seconds)
