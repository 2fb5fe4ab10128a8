"""The metrics of the worker `events`."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tas.events.event import DATA_TYPES


class Metrics:
    """What was published, and how late."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.published = Counter(
            "tas_events_published", "Public events that this replica has published.", ["type"], registry=registry
        )
        self.conflicts = Counter(
            "tas_events_conflicts", "Events that another replica had published first.", registry=registry
        )
        self.gaps = Counter(
            "tas_events_gaps", "Times that changes were lost before this replica read them.", registry=registry
        )
        self.behind = Gauge("tas_events_behind", "Changes that are read and not announced yet.", registry=registry)
        self.seconds = Histogram(
            "tas_events_publish_seconds",
            "Time from the storage of a change until its event is stored.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0),
            registry=registry,
        )
        for data in DATA_TYPES.values():
            self.published.labels(data.TYPE)
