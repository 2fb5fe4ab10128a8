"""The metrics of sources."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class SourceMetrics:
    """Metrics of sources, of all workers of a process that have one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, labelnames=["source"], registry=registry)
        gauge = partial(Gauge, labelnames=["source"], registry=registry)
        self.polls = counter(
            "tas_source_polls",
            "Polls of a source, by whether they gave all, some or none of the metrics.",
            labelnames=["source", "result"],
        )
        self.seconds = Histogram(
            "tas_source_poll_seconds",
            "Seconds that a source takes to answer.",
            labelnames=["source"],
            registry=registry,
        )
        self.messages = counter("tas_source_messages", "Messages published on SAMPLES and TABLES.")
        self.lost = counter("tas_source_polls_lost", "Polls whose values could not all be published.")
        self.behind = gauge(
            "tas_source_behind_seconds",
            "By how many seconds the newest published values of a source are older than its period; 0 on standby.",
        )
        self.overdue = gauge(
            "tas_source_overdue_seconds",
            "For how long a fresh sample of any metric of policies is overdue; 0 on standby, or if none is wanted.",
        )
        self.value_age = gauge(
            "tas_source_value_age_seconds",
            "Seconds since the newest value was measured that was published; NaN on standby, or if none is wanted.",
        )
        self.nodes = gauge(
            "tas_source_nodes",
            "Nodes with a fresh sample of the metric of policies of which the source has lost the most nodes.",
        )
        self.nodes_lost = gauge(
            "tas_source_nodes_lost",
            "Nodes that had a fresh sample of this metric from the source within an hour, and have none now.",
        )
        self.wanted = gauge(
            "tas_source_metrics", "Metrics that policies use from the source; 0 on standby, or until it is polled."
        )
        self.late = counter("tas_source_polls_late", "Polls that took longer than the period, with publishing.")
        self.refused = counter(
            "tas_source_values_refused", "Values in responses that were refused.", labelnames=["source", "reason"]
        )
        self.suspect = counter(
            "tas_source_values_suspect", "Accepted values that may be none.", labelnames=["source", "reason"]
        )
        self.missing = gauge(
            "tas_source_metrics_missing",
            "Metrics of policies without a fresh sample from the source; windows not yet covered do not count.",
        )
        self.ended = gauge("tas_source_samples_ended", "Fresh samples whose series has ended, by a stale marker.")
        self.lease_held = gauge(
            "tas_source_lease_held", "1 while this replica has the source, 0 while it is on standby."
        )
        self.last_success = gauge(
            "tas_source_last_success_timestamp_seconds", "When a fresh sample last came; 0 if never."
        )
