"""Bounds the names of nodes that sources may invent, where no cluster says which nodes exist.

Each name is a record on the bus, and a row of each view. With a cluster, samples of other nodes are refused.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from math import inf

from tas.errors import InvalidInputError

MAX_NODES_OF_SOURCE = 20_000
"""The most nodes that one source brings since `materialize` started: those of which no sample was stored before."""

MAX_NODES = 40_000
"""The most nodes of all sources: so one that invents names leaves room for others.

After a start nobody knows which source brought a stored node: one source may bring `MAX_NODES_OF_SOURCE` for each start
of a replica, until there are so many.
"""

RECOUNT_SECONDS = 60.0


class NewNodes:
    """The nodes with samples on the bus, and which source brought each, of those that came since the start.

    `now` is in seconds of any clock.
    """

    def __init__(self, stored: Callable[[], Iterable[str]]) -> None:
        """`stored` returns the nodes with samples on the bus, asked about new ones once a minute: some may be gone."""
        self._stored = stored
        self._brought_by: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._most = ""  # the source that has brought most
        self._fresh: set[str] = set()  # since the last count: their samples may still be on the way to the bus
        self._counted = -inf

    def clear(self) -> None:
        """Forgets all nodes: the bus is empty, or a cluster says which nodes exist."""
        self._brought_by.clear()
        self._counts.clear()
        self._most = ""
        self._fresh.clear()

    def note(self, nodes: Iterable[str]) -> None:
        """These nodes have samples on the bus; nobody knows which source brought those that are not known yet."""
        for node in nodes:
            if node not in self._brought_by:
                self._brought_by[node] = ""

    def admit(self, source: str, node: str, now: float) -> bool:
        """Whether a source may publish samples of a node: the node is known, or there is room for one more."""
        if node in self._brought_by:
            return True
        if now - self._counted >= RECOUNT_SECONDS:
            self._recount(now)
        if self._is_full(source):
            return False
        self._brought_by[node] = source
        self._fresh.add(node)
        self._counts[source] += 1
        self._most = max(self._most, source, key=self._counts.__getitem__)
        return True

    def refusal(self, subject: str, field: str, source: str, node: str) -> InvalidInputError:
        """Why `admit` refuses a node. If all sources together have too many, it names the one that brought most."""
        is_another = self._most not in ("", source)
        most = f" (most of the new ones {self._most}: {self._counts[self._most]})" if is_another else ""
        reason = (
            f"is one new node too many: {source} brought {self._counts[source]}, at most {MAX_NODES_OF_SOURCE}, and "
            f"all sources {len(self._brought_by)}{most}, at most {MAX_NODES}, "
            "while no cluster says which nodes exist"
        )
        return InvalidInputError(subject, field, node, reason)

    def _is_full(self, source: str) -> bool:
        return self._counts[source] >= MAX_NODES_OF_SOURCE or len(self._brought_by) >= MAX_NODES

    def _recount(self, now: float) -> None:
        self._brought_by = {node: self._brought_by.get(node, "") for node in {*self._stored(), *self._fresh}}
        self._fresh.clear()
        self._counts = Counter(source for source in self._brought_by.values() if source)
        self._most = max(self._counts, key=self._counts.__getitem__, default="")
        self._counted = now
