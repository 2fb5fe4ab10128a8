"""How many nodes may have labels: of each policy, and of all policies together, by policies, settings and nodes."""

from collections.abc import Collection, Mapping
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from tas.policy.policy import LABEL_PREFIX, BreakerLimits, Policy, PolicyKey
from tas.verdict.freeze import ALL
from tas.verdict.ownership import LABEL_STRATEGIES, Claims, claim_of

if TYPE_CHECKING:
    from tas.enforcing.breaker import LabelledNodes


class DefaultLimit(NamedTuple):
    """The operator's limit: at most `percent` of the nodes, but `nodes` are always allowed."""

    percent: int
    nodes: int

    def of(self, selected: int) -> int:
        """The number of nodes allowed, of `selected` nodes."""
        return max(self.nodes, selected * self.percent // 100)

    def __str__(self) -> str:
        return f"{self.percent}%,{self.nodes}"


IN_FLIGHT_SECONDS = 12.0
"""After a loss of BREAKERS no node is admitted for this time, and until all nodes are listed again: a patch for an
admission in the lost records is sent at most 2 s after its reads, and is answered within 10 s or given up."""

LIMIT_SECONDS = 1.0
"""How long a limit counts for nodes that are admitted already; a change of the policy counts at once."""

POLICY_DEFAULT = DefaultLimit(30, 10)
ALL_DEFAULT = DefaultLimit(50, 20)


def limit_of(own: BreakerLimits | None, default: DefaultLimit | None, selected: int) -> int | None:
    """The number of nodes that may have labels of a policy that selects `selected` nodes; None: no limit.

    The policy's `own` limits replace the default. Of two own limits the lower one counts; a percentage allows at least
    one node, else it would forbid all labels of a small cluster.
    """
    if own is None:
        return None if default is None else default.of(selected)
    limits = [] if own.max_nodes is None else [own.max_nodes]
    if own.max_percent is not None:
        limits.append(max(1, selected * own.max_percent // 100))
    return min(limits, default=None)


class Limit(NamedTuple):
    """At most `nodes` nodes may have labels, of `selected` nodes."""

    nodes: int
    selected: int


class Limits:
    """The limits of all policies that are stored. None as a default: no limit.

    Of the policies of a name, those count that own its labels (`tas.verdict.ownership`), at most one for each strategy.
    Without an owner no label is set; then all count that are neither suspended nor dry-run.
    """

    def __init__(self, policy: DefaultLimit | None, over_all: DefaultLimit | None) -> None:
        self._policy = policy
        self._over_all = over_all
        self._policies: dict[str, dict[PolicyKey, Policy | None]] = {}
        self._claims = Claims()
        self._found: dict[str, tuple[Policy, ...]] = {}  # those that count, by name: a permit of each node needs some

    def take_in(self, key: PolicyKey, policy: Policy | None, created: float | None = None) -> None:
        """Applies a stored policy, and when it was created; None: the record cannot be read, or the policy is refused.

        `created` are seconds since 1970, None if that is not known.
        """
        self._policies.setdefault(key.name, {})[key] = policy
        self._claims.set(key, None if policy is None else claim_of(policy, uid="", created=created))
        self._found.pop(key.name, None)

    def drop(self, key: PolicyKey) -> bool:
        """Applies the deletion of a policy. Returns whether there is no policy of its name now."""
        of_name = self._policies.get(key.name, {})
        of_name.pop(key, None)
        self._claims.drop(key)
        self._found.pop(key.name, None)
        if not of_name:
            self._policies.pop(key.name, None)
        return not of_name

    def clear(self) -> None:
        """Forgets all policies."""
        self._policies.clear()
        self._claims.clear()
        self._found.clear()

    def is_policy(self, name: str) -> bool:
        """Whether there is a policy of this name."""
        return name in self._policies

    def admitting(self, policy: str, labels: Mapping[str, str], names: Collection[str]) -> set[str]:
        """The breakers that must admit a node with these labels, before it gets a label of a policy.

        `names` are those of the policies to which `labels` belong, by their form.
        """
        needed: set[str] = set()
        if policy not in names and self._is_limited(policy):
            needed.add(policy)
        is_labelled = any(map(self.is_policy, names)) or any(label.startswith(LABEL_PREFIX) for label in labels)
        if self._over_all is not None and not is_labelled:
            needed.add(ALL)
        return needed

    def of(self, key: str, seen: "LabelledNodes") -> Limit | None:
        """The limit of the policies of a name that count, or with `ALL` of all: the lowest one; None: no limit."""
        if key == ALL:
            return None if self._over_all is None else Limit(self._over_all.of(len(seen)), len(seen))
        found = [(seen.selected(policy), policy.breaker) for policy in self._that_count(key)] or [(len(seen), None)]
        limits = ((limit_of(own, self._policy, selected), selected) for selected, own in found)
        return min((Limit(nodes, selected) for nodes, selected in limits if nodes is not None), default=None)

    def _is_limited(self, policy: str) -> bool:
        """Whether `of` finds a limit: else no breaker is written, and a node would be asked for again and again."""
        own = [each.breaker for each in self._that_count(policy)] or [None]
        return any(limit_of(each, self._policy, 0) is not None for each in own)

    def _that_count(self, name: str) -> tuple[Policy, ...]:
        found = self._found.get(name)
        if found is None:
            owners = {self._claims.owner(name, strategy) for strategy in LABEL_STRATEGIES} - {None}
            of_name = self._policies.get(name, {}).items()
            found = tuple(
                policy
                for key, policy in of_name
                if policy and (key in owners if owners else not (policy.suspend or policy.dry_run))
            )
            if of_name:
                self._found[name] = found
        return found


class KeptLimits:
    """The limits, each computed again after `LIMIT_SECONDS`: a permit of each node needs some."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._at: dict[str, tuple[float, Limit | None]] = {}

    def of(self, key: str, seen: "LabelledNodes", now: float) -> Limit | None:
        """As `Limits.of`; `now` is a time in seconds that never goes back."""
        at, limit = self._at.get(key, (-inf, None))
        if now - at >= LIMIT_SECONDS:
            limit = self._limits.of(key, seen)
            self._at[key] = now, limit
        return limit

    def forget(self, key: str) -> None:
        """Has the limit of the policies of a name computed again, since one of them has changed."""
        self._at.pop(key, None)

    def clear(self) -> None:
        """Has all limits computed again."""
        self._at.clear()
