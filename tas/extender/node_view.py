"""The view of nodes for extensions: read-only, and as current as the answers of telemetry."""

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar, cast

from tas.allocation.node import NodeAllocation
from tas.gpu.card_view import CardView, NodeCards
from tas.samples.sample import newest
from tas.values.quantity import Quantity
from tas.view.allocations import AllocationFollower, AllocationView
from tas.view.indices import MetricFollower, MetricKey
from tas.view.view import View

T = TypeVar("T")


class _Followed:
    """What the process follows beside metrics and labels, because an extension has asked for it; what they share."""

    __slots__ = ("allocations", "cards", "shared")

    def __init__(self) -> None:
        self.cards: CardView | None = None
        self.allocations: AllocationView | None = None
        self.shared: dict[Callable[[], object], object] = {}


class NodeView:
    """The nodes and their metrics, kept up to date from the bus by the process that serves the extension.

    Attributes:
        reads_cards: Whether `cards` was called.
        reads_allocations: Whether `allocations` was called.
    """

    def __init__(self, view: View, followed: _Followed | None = None) -> None:
        self.reads_cards = False
        self.reads_allocations = False
        self._view = view
        self._now = 0.0
        self._metrics: dict[MetricKey, Mapping[str, Quantity]] = {}
        self._followed = followed or _Followed()

    def another(self) -> "NodeView":
        """The same nodes for another extension: so the process knows which of them reads what. For the process only."""
        return NodeView(self._view, self._followed)

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
        key = self._key(metric, source, stale_after)
        if key not in self._metrics:
            self._metrics[key] = self._view.metric(key, self._now)
        return self._metrics[key]

    def cards(self) -> Mapping[str, NodeCards]:
        """Each known node's GPU cards, and who has them. Keep the mapping: it is updated from now on.

        The process follows the cards on the bus only if an extension calls this while it is loaded. Then no hook of the
        extension is called before they are complete.
        """
        self.reads_cards = True
        if self._followed.cards is None:
            self._followed.cards = CardView()
        return self._followed.cards.nodes

    def allocations(self) -> Mapping[str, NodeAllocation]:
        """What each known node has, and what its pods request. Keep the mapping: it is updated from now on.

        The process follows the allocations on the bus only if an extension calls this while it is loaded. Then no hook
        of the extension is called before all are known that are stored. `inventory` stores them only with
        `--allocations on`.
        """
        self.reads_allocations = True
        if self._followed.allocations is None:
            self._followed.allocations = AllocationView()
        return self._followed.allocations.nodes

    def measured_at(self, node: str, metric: str) -> float | None:
        """When the newest value of a metric was measured, in seconds since 1970; None if there is none."""
        found = newest(self._view.samples(node), metric)
        return None if found is None else found.time

    def follow_metric(self, metric: str, follower: MetricFollower, *, stale_after: float | None = None) -> None:
        """Calls `follower` with each node that has the metric, and from now on after each change. For agents only."""
        self._view.follow_metric(self._key(metric, None, stale_after), follower, self._now)

    def follow_allocations(self, follower: AllocationFollower) -> None:
        """Calls `follower` with each node of `allocations`, and from now on after each change. For agents only."""
        self.allocations()
        assert self._followed.allocations is not None
        self._followed.allocations.follow(follower)

    def shared(self, make: Callable[[], T]) -> T:
        """What `make` returns, made once for all extensions of the process. For agents only."""
        if make not in self._followed.shared:
            self._followed.shared[make] = make()
        return cast("T", self._followed.shared[make])

    @property
    def names_version(self) -> int:
        """Another number after each change of `names`. For agents only."""
        return self._view.nodes_version

    @property
    def followed_allocations(self) -> AllocationView | None:
        """The view of allocations that is to be kept up to date; None if nobody needs it. For the process only."""
        return self._followed.allocations

    @property
    def followed_cards(self) -> CardView | None:
        """The view of cards that is to be kept up to date; None if no extension needs it. For the process only."""
        return self._followed.cards

    def _key(self, metric: str, source: str | None, stale_after: float | None) -> MetricKey:
        return MetricKey(metric, source, self._view.default_stale_after if stale_after is None else stale_after)

    def advance(self, now: float) -> None:
        """Moves the view to the time `now`. Only the process that serves the extension calls this."""
        self._now = now
        self._view.advance(now)
