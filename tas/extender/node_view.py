"""The view of nodes for extensions: read-only, and as current as the answers of telemetry."""

from collections.abc import Collection, Mapping

from tas.allocation.node import NodeAllocation
from tas.samples.sample import newest
from tas.values.quantity import Quantity
from tas.view.allocations import AllocationView
from tas.view.cards import CardView, NodeCards
from tas.view.view import MetricKey, View


class NodeView:
    """The nodes and their metrics, kept up to date from the bus by the process that serves the extension."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._now = 0.0
        self._metrics: dict[MetricKey, Mapping[str, Quantity]] = {}
        self._cards: CardView | None = None
        self._allocations: AllocationView | None = None

    @property
    def names(self) -> Collection[str]:
        """Every node with samples or labels; a candidate may be another node."""
        return self._view.nodes

    def labels(self, node: str) -> Mapping[str, str] | None:
        """A node's labels as the API server reported them, or None if they are not known."""
        return self._view.labels(node)

    def metric(
        self, metric: str, *, source: str | None = None, stale_after: float | None = None
    ) -> Mapping[str, Quantity]:
        """Each node's fresh value of a metric, in integers of 10⁻⁹. Keep the mapping: it is updated from now on.

        Args:
            metric: The name of the metric, as sources publish it.
            source: The source that counts; None: the source with the newest sample.
            stale_after: Seconds after which a value is unknown, at most an hour; None: the default of policies.
        """
        limit = self._view.default_stale_after if stale_after is None else stale_after
        key = MetricKey(metric, source, limit)
        if key not in self._metrics:
            self._metrics[key] = self._view.metric(key, self._now)
        return self._metrics[key]

    def cards(self) -> Mapping[str, NodeCards]:
        """Each known node's GPU cards, and who has them. Keep the mapping: it is updated from now on.

        The process follows the cards on the bus only if an extension calls this while it is loaded.
        """
        if self._cards is None:
            self._cards = CardView()
        return self._cards.nodes

    def allocations(self) -> Mapping[str, NodeAllocation]:
        """What each known node has, and what its pods request. Keep the mapping: it is updated from now on.

        The process follows the allocations on the bus only if an extension calls this while it is loaded. `inventory`
        stores them only with `--allocations on`.
        """
        if self._allocations is None:
            self._allocations = AllocationView()
        return self._allocations.nodes

    def measured_at(self, node: str, metric: str) -> float | None:
        """When the newest value of a metric was measured, in seconds since 1970; None if there is none."""
        found = newest(self._view.samples(node), metric)
        return None if found is None else found.time

    @property
    def followed_allocations(self) -> AllocationView | None:
        """The view of allocations that is to be kept up to date; None if nobody needs it. For the process only."""
        return self._allocations

    @property
    def followed_cards(self) -> CardView | None:
        """The view of cards that is to be kept up to date; None if no extension needs it. For the process only."""
        return self._cards

    def advance(self, now: float) -> None:
        """Moves the view to the time `now`. Only the process that serves the extension calls this."""
        self._now = now
        self._view.advance(now)
