"""Which series there are, and how a series is stored. Many read these, and do not compute with numpy."""

from enum import StrEnum
from typing import Annotated

import msgspec

from tas.values.window import Kind, Window
from tas.windows.slots import SLOTS

COVERED = 0.5
"""A statistic is known once the values in its window span this part of its duration."""


class Family(StrEnum):
    """Statistics that are computed from the same sums."""

    MOMENTS = "moments"
    QUANTILES = "quantiles"
    AVERAGE = "average"


_FAMILY = {Kind.PERCENTILE: Family.QUANTILES, Kind.EWMA: Family.AVERAGE}


class SeriesKey(msgspec.Struct, frozen=True, gc=False):
    """A series of a node: `cpu` over 300 seconds for percentiles."""

    metric: str
    seconds: float
    family: Family


def series_key(window: Window) -> SeriesKey:
    """The series from which a statistic is computed."""
    return SeriesKey(window.metric, window.seconds, _FAMILY.get(window.kind, Family.MOMENTS))


_Number = Annotated[float, msgspec.Meta(ge=-1e100, le=1e100)]


class StoredSeries(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A series as it is stored, of the node with this uid (empty: unknown).

    `times` has the time of the last value of each source. Of the others only the field of its family is given.
    """

    times: dict[str, _Number]
    node_uid: str = ""
    moments: Annotated[list[list[_Number]], msgspec.Meta(max_length=SLOTS + 1)] = []
    quantiles: Annotated[list[tuple[int, _Number, list[_Number], bytes]], msgspec.Meta(max_length=SLOTS + 1)] = []
    average: list[_Number] = []
