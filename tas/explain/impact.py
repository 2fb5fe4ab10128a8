"""The impact of a policy: what it would do now if it were applied, by the samples, nodes and pods that are known.

Only a question: nothing here changes anything. `for` counts as over, since a value that stays as it is will end it.
"""

from collections.abc import Collection, Iterable, Mapping
from math import inf
from typing import NamedTuple

import msgspec

from tas.enforcing.breaker import LabelledNodes
from tas.enforcing.limits import DefaultLimit, Limits
from tas.enforcing.pod import PodKey
from tas.policy.policy import Policy, PolicyKey, StrategyType
from tas.policy.rules import State
from tas.verdict.evaluation import evaluate_policy
from tas.verdict.freeze import ALL, Breaker
from tas.verdict.ownership import LABEL_STRATEGIES
from tas.verdict.verdict import VERDICT_STRATEGIES
from tas.view.view import View


class StrategyImpact(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of one strategy: which violate it, how many meet it, and of how many the state is unknown."""

    strategy: str
    violating: tuple[str, ...]
    met: int
    unknown: int


class BreakerImpact(msgspec.Struct, frozen=True, kw_only=True):
    """A breaker: of a policy, or `_all`. `limit` of `selected` nodes may have labels, None: no limit.

    `wanted` nodes would have them. `trips` is whether the breaker would trip, `tripped` whether it has.
    """

    breaker: str
    limit: int | None
    selected: int
    wanted: int
    trips: bool
    tripped: bool


class Impact(msgspec.Struct, frozen=True, kw_only=True):
    """What one policy would do now.

    Attributes:
        policy: `namespace/name`.
        acts: Whether it may act: it is neither suspended nor a dry run.
        nodes: How many nodes there are.
        selected: How many of them it selects.
        strategies: Its strategies with a state.
        labels: The nodes that would get their first label of the policy.
        breakers: That of the policy, and that of all policies.
        waiting: Pods of the policy without a node.
        running: Pods of the policy on a node that violates one of its strategies.
    """

    policy: str
    acts: bool
    nodes: int
    selected: int
    strategies: tuple[StrategyImpact, ...]
    labels: tuple[str, ...]
    breakers: tuple[BreakerImpact, ...]
    waiting: tuple[str, ...]
    running: tuple[str, ...]

    @property
    def trips(self) -> bool:
        """Whether a breaker would trip."""
        return any(each.trips for each in self.breakers)

    @property
    def is_known(self) -> bool:
        """Whether enough is known to say: there is a selected node, and each strategy has a state for one of them."""
        return self.selected > 0 and all(each.violating or each.met for each in self.strategies)


class PodOfPolicy(NamedTuple):
    """A pod that names a policy, and its node if it has one."""

    key: PodKey
    policy: PolicyKey
    node: str | None


class ImpactFacts(NamedTuple):
    """What is known: the view, the policies in force, the pods that name one, the breakers, and the default limits.

    The policies are each with the time of its creation, in seconds since 1970; None if that is not known.
    """

    view: View
    policies: Collection[tuple[Policy, float | None]]
    pods: Collection[PodOfPolicy]
    breakers: Mapping[str, Breaker]
    limit: DefaultLimit | None
    limit_over_all: DefaultLimit | None


def impacts_of(policies: Iterable[Policy], known: ImpactFacts, now: float) -> list[Impact]:
    """The impact of each policy, all of them applied together in place of those of the same names."""
    changed = {policy.key: policy for policy in policies}
    created = {policy.key: at for policy, at in known.policies}
    in_force = {policy.key: policy for policy, _ in known.policies} | changed
    limits, seen = Limits(known.limit, known.limit_over_all), LabelledNodes()
    for key, policy in in_force.items():
        limits.take_in(key, policy, created.get(key, inf))  # a new one would be the youngest
        seen.set_policy(key.name, exists=True)
    nodes = sorted(known.view.nodes)
    for node in nodes:
        seen.take_in(node, 0, known.view.labels(node) or {})
    states = {key: _states(policy, known.view, nodes, now) for key, policy in changed.items()}
    wants = {key: _wants(policy, states[key]) for key, policy in changed.items()}
    every = frozenset[str]().union(*wants.values())
    over_all = _breaker(ALL, every, limits, seen, known.breakers)
    found: list[Impact] = []
    for key, policy in changed.items():
        of_name = frozenset[str]().union(*(wanted for each, wanted in wants.items() if each.name == key.name))
        violated = frozenset[str]().union(*(_in(state, State.VIOLATED) for state in states[key].values()))
        pods = [pod for pod in known.pods if pod.policy == key]
        found.append(
            Impact(
                policy=str(key),
                acts=not (policy.suspend or policy.dry_run),
                nodes=len(nodes),
                selected=seen.selected(policy),
                strategies=tuple(
                    StrategyImpact(
                        strategy=kind.value,
                        violating=tuple(sorted(_in(state, State.VIOLATED))),
                        met=len(_in(state, State.MET)),
                        unknown=len(_in(state, State.UNKNOWN)),
                    )
                    for kind, state in states[key].items()
                ),
                labels=tuple(sorted(wants[key] - set(seen.labelled(key.name)))),
                breakers=(_breaker(key.name, of_name, limits, seen, known.breakers), over_all) if of_name else (),
                waiting=tuple(sorted(str(pod.key) for pod in pods if pod.node is None)),
                running=tuple(sorted(str(pod.key) for pod in pods if pod.node in violated)),
            )
        )
    return found


def _states(policy: Policy, view: View, nodes: Iterable[str], now: float) -> dict[StrategyType, dict[str, State]]:
    """The state of each strategy for each node that the policy selects, or may select."""
    states: dict[StrategyType, dict[str, State]] = {
        kind: {} for kind in VERDICT_STRATEGIES if kind in policy.strategies and policy.strategies[kind].rules
    }
    for node in nodes:
        if policy.selects(view.labels(node)) is False:
            continue
        verdict, _ = evaluate_policy(
            policy,
            uid="",
            generation=0,
            samples=view.samples(node),
            labels=view.labels(node),
            default_stale_after=view.default_stale_after,
            before=None,
            now=now,
        )
        for kind, of_node in states.items():
            of_node[node] = verdict.strategies[kind].state
    return states


def _wants(policy: Policy, states: Mapping[StrategyType, Mapping[str, State]]) -> frozenset[str]:
    """The nodes that the policy would label."""
    if policy.suspend or policy.dry_run:
        return frozenset()
    return frozenset[str]().union(*(_in(states.get(kind, {}), State.VIOLATED) for kind in LABEL_STRATEGIES))


def _in(states: Mapping[str, State], state: State) -> frozenset[str]:
    return frozenset(node for node, found in states.items() if found is state)


def _breaker(
    key: str, wanted: frozenset[str], limits: Limits, seen: LabelledNodes, breakers: Mapping[str, Breaker]
) -> BreakerImpact:
    stored, labelled = breakers.get(key, Breaker()), seen.labelled(key)
    limit = limits.of(key, seen)
    count = len(wanted | set(labelled) | stored.nodes.keys())
    return BreakerImpact(
        breaker=key,
        limit=None if limit is None else limit.nodes,
        selected=len(seen) if limit is None else limit.selected,
        wanted=count,
        trips=limit is not None and count > limit.nodes and not wanted <= set(labelled),
        tripped=stored.trip is not None,
    )
