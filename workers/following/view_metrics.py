"""What a view knows of itself, as metrics: the ages of its newest values, and whom last known values reject."""

import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tas.policy.policy import PolicyKey
from tas.view.view import KeptRejections as Rejections


class ValueAges(Collector):
    """`tas_view_value_age_seconds`: for each source, how old the newest value is that the view has from it.

    A process has one view, so one of these. A source without a value of the last hour has no series.
    """

    def __init__(self, newest: Callable[[], Mapping[str, float]]) -> None:
        """`newest` gives for each source the time of its newest value, in seconds since 1970."""
        self._newest = newest

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The metric now."""
        ages = GaugeMetricFamily(
            "tas_view_value_age_seconds",
            "Seconds since the newest value of a source in the view was measured; of tables, of the one most behind.",
            labels=["source"],
        )
        now = time.time()
        for source, newest in sorted(self._newest().items()):
            ages.add_metric([source], max(0.0, now - newest))
        yield ages


class KeptRejections(Collector):
    """`tas_policy_kept_rejections` and `tas_policy_selected_nodes`, for each policy with `onStale: keep`.

    And `tas_policy_kept_age_seconds`, while the first one is not 0. A process has one view, so one of these.
    """

    def __init__(self, rejections: Callable[[], Mapping[PolicyKey, Rejections]]) -> None:
        """`rejections` gives for each policy whom it rejects by last known values."""
        self._rejections = rejections

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The metrics now."""
        names = ["namespace", "policy"]
        rejections = GaugeMetricFamily(
            "tas_policy_kept_rejections",
            "Nodes without a fresh value that filter rejects by their last known values.",
            labels=names,
        )
        selected = GaugeMetricFamily(
            "tas_policy_selected_nodes", "Nodes that the policy selects; 0 while it keeps no value.", labels=names
        )
        ages = GaugeMetricFamily(
            "tas_policy_kept_age_seconds", "Age of the oldest last known value of the nodes so rejected.", labels=names
        )
        now = time.time()
        for key, found in sorted(self._rejections().items()):
            rejections.add_metric([key.namespace, key.name], found.nodes)
            selected.add_metric([key.namespace, key.name], found.selected)
            if found.oldest is not None:
                ages.add_metric([key.namespace, key.name], max(0.0, now - found.oldest))
        yield from (rejections, selected, ages)
