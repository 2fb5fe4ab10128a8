"""Metrics of requests to the API server."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class RequestMetrics:
    """Metrics of requests to the API server, of all workers of a process."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self.requests = Counter(
            "tas_kubernetes_requests",
            "Requests to the API server by HTTP status; none: no response.",
            ["worker", "verb", "resource", "code"],
            registry=registry,
        )
        self.events = Counter(
            "tas_kubernetes_events", "Events that watches received.", ["worker", "resource"], registry=registry
        )
        self.silent = Gauge(
            "tas_kubernetes_silent_seconds",
            "Time since anything came from the API server to the client that watches; NaN: nothing is watched.",
            ["worker"],
            registry=registry,
        )
