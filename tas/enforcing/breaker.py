"""The breaker: how many nodes may have labels of one policy, and of all policies together.

A breaker keeps the set of *admitted* nodes. The set is stored on the bus, and changes only by conditional writes:

1. A node without a label of the policy is admitted before a patch sets such a label. The record then has the node with
   the resource version on which the patch is conditional. A patch of another version needs a new admission.
2. If the admitted nodes would be more than the limit, none of the new ones is admitted, and the breaker *trips*: from
   then on no label of the policy is set or removed, until somebody resets it. An admission from before is worth nothing
   while the nodes are more than the limit: users may have labelled others since, or have lowered the limit.
3. A node leaves the set only when the API server has shown it without the labels, or has not shown it at all, at a
   *later* version than the stored one. Then a patch that was sent for the stored version can no longer succeed.

So all nodes to which TAS has added labels are in the set, whatever is killed, delayed or runs twice, and the set is
never larger than the limit by an admission. Nodes that have labels for another reason (a lost record, a lowered limit,
the original TAS) are added as they are found, also above the limit; then no further node is admitted.

Resource versions are compared as numbers (facts.md c41).
"""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from tas.enforcing.labels import is_in_our_form, policy_name
from tas.policy.policy import LABEL_PREFIX, Policy
from tas.policy.selector import LabelSelector
from tas.verdict.freeze import ALL, Breaker, Trip

MAX_SELECTORS = 1000
"""Of so many selectors of policies the selected nodes are counted; one more takes the place of the oldest. Those that
no policy has any more are not kept: an author may give a policy another one as often as it likes."""


def version_of(resource_version: str) -> int:
    """A resource version as a number; 0 if it is none: then no node leaves a set by rule 3."""
    return int(resource_version) if resource_version.isascii() and resource_version.isdigit() else 0


class _Node(NamedTuple):
    """A node as shown at a version. `names`: of the policies to which its labels belong, by their form."""

    version: int
    labels: Mapping[str, str]
    names: frozenset[str]
    has_prefixed: bool


@dataclass(slots=True)
class _Unrecorded:
    """How many labelled nodes the set of a breaker does not have."""

    breaker: Breaker
    count: int


@dataclass(slots=True)
class _Selected:
    """How many nodes a selector selects, and the labels on which that depends."""

    labels: frozenset[str]
    count: int


class LabelledNodes:
    """Which nodes have labels of which policies, as the API server has shown them since a list at `version`.

    All sets and numbers are kept up to date with each change, so that an answer costs no search: a permit of each node
    needs some.

    Attributes:
        version: The resource version that all this is of, at least: a node that is missing did not exist then.
    """

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self._nodes: dict[str, _Node] = {}
        self._policies: set[str] = set()
        self._labelled: dict[str, set[str]] = {}
        self._reasons: dict[str, int] = {}  # of the nodes that count for `ALL`: names of policies, 1 for the prefix
        self._unrecorded: dict[str, _Unrecorded] = {}
        self._selected: dict[tuple[str, LabelSelector], _Selected] = {}  # by the name of the policy, too

    def begin_list(self, version: int) -> None:
        """Begins a complete list of the nodes at this version; `take_in` gets each of them."""
        self.version = version
        self._nodes.clear()
        self._labelled.clear()
        self._reasons.clear()
        self._unrecorded.clear()
        self._selected.clear()

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def nodes(self) -> Collection[str]:
        """All nodes."""
        return self._nodes.keys()

    @property
    def with_labels(self) -> int:
        """How many nodes have a label in our form, also without a policy of its name, as after a wipe of the bus."""
        return sum(bool(node.names) or node.has_prefixed for node in self._nodes.values())

    def take_in(self, node: str, version: int, labels: Mapping[str, str]) -> frozenset[str]:
        """Applies a state of a node, unless a later one is known.

        Returns the names of policies whose labels on the node have changed.
        """
        known = self._nodes.get(node)
        if known is not None and known.version > version:
            return frozenset()
        has_prefixed = any(label.startswith(LABEL_PREFIX) for label in labels)
        state = _Node(version, labels, names_on(labels), has_prefixed)
        self._nodes[node] = state
        self.version = max(self.version, version)
        self._move(node, frozenset() if known is None else known.names, state.names, self._reasons_of(state))
        if known is None:
            self._count_selected(labels, 1)
            return frozenset()
        changed = known.labels.items() ^ labels.items()
        self._recount_selected(known.labels, labels, {label for label, _ in changed})
        return frozenset(policy_name(label) for label, value in changed if is_in_our_form(label, value))

    def drop(self, node: str, version: int) -> None:
        """Applies the deletion of a node, which the API server has shown at this version."""
        self.version = max(self.version, version)
        known = self._nodes.pop(node, None)
        if known is not None:
            self._move(node, known.names, frozenset(), 0)
            self._count_selected(known.labels, -1)

    def set_policy(self, name: str, *, exists: bool) -> None:
        """Applies whether there is a policy of a name, after one of them has changed."""
        for key in [each for each in self._selected if each[0] == name]:
            del self._selected[key]
        if exists == (name in self._policies):
            return
        (self._policies.add if exists else self._policies.discard)(name)
        for node in self._labelled.get(name, ()):
            self._set_reasons(node, self._reasons.get(node, 0) + (1 if exists else -1))

    def forget_policies(self) -> None:
        """Forgets all policies."""
        self._selected.clear()
        for name in list(self._policies):
            self.set_policy(name, exists=False)

    def labelled(self, key: str) -> Set[str]:
        """The nodes with labels of the policies of a name, or with `ALL` of any policy, until the next change.

        A label without a prefix counts for `ALL` only if there is a policy of its name: others use the value
        `violating`, too.
        """
        return self._reasons.keys() if key == ALL else self._labelled.get(key, frozenset())

    def unrecorded(self, key: str, breaker: Breaker) -> int:
        """How many of the nodes `labelled(key)` the set of this breaker does not have.

        They are counted anew only if the breaker is another one than in the last call for the key.
        """
        labelled = self.labelled(key)
        if not labelled:
            return 0
        known = self._unrecorded.get(key)
        if known is None or known.breaker is not breaker:
            known = _Unrecorded(breaker, len(labelled - breaker.nodes.keys()))
            self._unrecorded[key] = known
        return known.count

    def has_left(self, node: str, admitted: int, labelled: Collection[str]) -> bool:
        """Whether a node leaves the set: shown without the labels later than the version for which it was admitted.

        `labelled` are the nodes with the labels.
        """
        known = self._nodes.get(node)
        if known is None:
            return self.version > admitted
        return node not in labelled and known.version > admitted

    def version_of(self, node: str) -> int:
        """The version at which the API server has shown a node; 0 if it has not."""
        known = self._nodes.get(node)
        return 0 if known is None else known.version

    def selected(self, policy: Policy) -> int:
        """The number of nodes that a policy selects. They are searched only the first time after its change."""
        selector = policy.node_selector
        if selector is None:
            return len(self._nodes)
        key = policy.key.name, selector
        known = self._selected.get(key)
        if known is None:
            while len(self._selected) >= MAX_SELECTORS:
                del self._selected[next(iter(self._selected))]
            count = sum(selector.matches(node.labels) for node in self._nodes.values())
            known = _Selected(frozenset(each.key for each in selector.requirements), count)
            self._selected[key] = known
        return known.count

    def _count_selected(self, labels: Mapping[str, str], change: int) -> None:
        """Applies that a node with these labels has come, or has gone."""
        for (_, selector), known in self._selected.items():
            known.count += change * selector.matches(labels)

    def _recount_selected(self, before: Mapping[str, str], after: Mapping[str, str], changed: Set[str]) -> None:
        """Applies that these labels of a node have changed: few selectors read them, and none reads ours."""
        for (_, selector), known in self._selected.items():
            if not known.labels.isdisjoint(changed):
                known.count += selector.matches(after) - selector.matches(before)

    def _reasons_of(self, node: _Node) -> int:
        """For how many reasons a node counts for `ALL`; without a label under our prefix, its names are its labels."""
        return node.has_prefixed + len(node.names & self._policies)

    def _move(self, node: str, before: frozenset[str], after: frozenset[str], reasons: int) -> None:
        for name in before - after:
            of_name = self._labelled[name]
            of_name.discard(node)
            self._count(name, node, -1)
            if not of_name:
                del self._labelled[name]
                self._unrecorded.pop(name, None)
        for name in after - before:
            self._labelled.setdefault(name, set()).add(node)
            self._count(name, node, 1)
        self._set_reasons(node, reasons)

    def _set_reasons(self, node: str, reasons: int) -> None:
        was_labelled = node in self._reasons
        if reasons:
            self._reasons[node] = reasons
        else:
            self._reasons.pop(node, None)
        if was_labelled != bool(reasons):
            self._count(ALL, node, 1 if reasons else -1)
        if not self._reasons:
            self._unrecorded.pop(ALL, None)

    def _count(self, key: str, node: str, change: int) -> None:
        """Applies that a node has come to the labelled nodes of a key, or has left them."""
        known = self._unrecorded.get(key)
        if known is not None and node not in known.breaker.nodes:
            known.count += change


def names_on(labels: Mapping[str, str]) -> frozenset[str]:
    """The names of policies to which labels of a node belong, by their form."""
    return frozenset(policy_name(label) for label, value in labels.items() if is_in_our_form(label, value))


def without_leavers(breaker: Breaker, seen: LabelledNodes, labelled: Collection[str]) -> Breaker:
    """The breaker without the nodes that leave its set, by rule 3."""
    nodes = {node: at for node, at in breaker.nodes.items() if not seen.has_left(node, at, labelled)}
    return breaker if len(nodes) == len(breaker.nodes) else Breaker(nodes=nodes, trip=breaker.trip)


def admit(
    breaker: Breaker,
    wanted: Mapping[str, int],
    *,
    limit: int,
    selected: int,
    seen: LabelledNodes,
    labelled: Collection[str],
    now: float,
) -> Breaker:
    """The breaker after the request to admit nodes: with them, or tripped without them.

    Args:
        breaker: As stored; a tripped one stays as it is.
        wanted: Each node with the resource version on which its patch is conditional.
        limit: The most nodes in the set.
        selected: The number of nodes of which `limit` was computed.
        seen: All nodes as the API server has shown them.
        labelled: Those of them with the labels.
        now: Seconds since 1970.
    """
    if breaker.trip is not None:
        return breaker
    nodes = dict(without_leavers(breaker, seen, labelled).nodes)
    for node in labelled:
        nodes.setdefault(node, seen.version_of(node))
    count = len(nodes.keys() | wanted.keys())
    if count > limit and not wanted.keys() <= set(labelled):
        return Breaker(nodes=nodes, trip=Trip(since=now, limit=limit, wanted=count, selected=selected))
    for node, version in wanted.items():
        # Never an earlier version: a patch of the later one may be on its way.
        nodes[node] = max(version, nodes.get(node, 0))
    return breaker if nodes == breaker.nodes else Breaker(nodes=nodes)


def is_over(breaker: Breaker, unrecorded: int, limit: int) -> bool:
    """Whether the admitted nodes and the labelled ones are more than the limit.

    `unrecorded` is the number of the labelled nodes that are not admitted.
    """
    return len(breaker.nodes) + unrecorded > limit


def reset(breaker: Breaker) -> Breaker:
    """The breaker without its trip. Its nodes stay: they have labels, or patches for them may be on their way."""
    return Breaker(nodes=breaker.nodes)
