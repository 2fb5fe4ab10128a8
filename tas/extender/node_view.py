"""What an extension sees of the nodes: read only, and always as current as telemetry's own answers."""

from collections.abc import Collection, Mapping

from tas.quantity import Quantity
from tas.view import MetricKey, View


class NodeView:
    """The nodes and their metrics, followed from the bus by the process that serves the extension."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._now = 0.0
        self._metrics: dict[MetricKey, Mapping[str, Quantity]] = {}

    @property
    def names(self) -> Collection[str]:
        """Every node with samples or labels; a candidate need not be one of them."""
        return self._view.nodes

    def labels(self, node: str) -> Mapping[str, str] | None:
        """A node's labels as the API server gave them, or None if they are not known."""
        return self._view.labels(node)

    def metric(
        self, metric: str, *, source: str | None = None, stale_after: float | None = None
    ) -> Mapping[str, Quantity]:
        """Each node's fresh value of a metric, in integers of 10⁻⁹: keep it, it follows what happens.

        Args:
            metric: Its name, as sources publish it.
            source: The source that counts; None: whichever measured last.
            stale_after: Seconds after which a value is unknown, at most an hour; None: as policies have it by default.
        """
        limit = self._view.default_stale_after if stale_after is None else stale_after
        key = MetricKey(metric, source, limit)
        if key not in self._metrics:
            self._metrics[key] = self._view.metric(key, self._now)
        return self._metrics[key]

    def advance(self, now: float) -> None:
        """Lets time pass: what has become stale by `now` is unknown afterwards. For who serves the extension."""
        self._now = now
        self._view.advance(now)
