"""How old the tables of a view are, as a metric."""

import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


class TableAges(Collector):
    """`tas_view_table_age_seconds`: for each source with tables, how old its part is that is most behind.

    A process has one view, so one of these. Without tables there is no series.
    """

    def __init__(self, newest: Callable[[], Mapping[str, float]]) -> None:
        """`newest` gives for each source the time of the newest value of that part, in seconds since 1970."""
        self._newest = newest

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The metric now."""
        ages = GaugeMetricFamily(
            "tas_view_table_age_seconds",
            "Seconds since the newest value was measured of that table of a source which is most behind in the view.",
            labels=["source"],
        )
        now = time.time()
        for source, newest in sorted(self._newest().items()):
            ages.add_metric([source], max(0.0, now - newest))
        yield ages
