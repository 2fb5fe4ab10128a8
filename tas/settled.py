"""Which of the verdicts that stand would come out the same, told for all nodes at once by sets.

Who starts finds a verdict of every node, and must know which of them are not right any more. To judge each anew takes
ten seconds and more for 15,000 nodes and 50 policies; to compare what each policy comes to, a fifth of that.
"""

from collections.abc import Mapping
from typing import NamedTuple

from tas.policy import OnStale, Policy, StrategyType
from tas.rules import State, rejecting_states
from tas.verdict import (
    ABSENT,
    HOLD,
    LabelVerdict,
    PolicyVerdict,
    StrategyVerdict,
    WishKind,
    strategy_labels,
    strategy_series,
)
from tas.view import JudgedNodes


class _Strategy(NamedTuple):
    """One strategy with what all its verdicts have in common, and its nodes."""

    kind: StrategyType
    nodes: JudgedNodes
    labels: frozenset[str]
    series: tuple[str, ...]
    for_: float
    clear_for: float
    holds: bool
    rejecting: frozenset[State]


class Settled:
    """One policy as it stands at one moment, to be compared with the verdicts of nodes.

    What it says of a node is sure or left open: where `is_settled`, `tas.verdict.evaluate_policy` would give a verdict
    of the same meaning, and nothing to wait for.
    """

    def __init__(
        self, policy: Policy, *, uid: str, generation: int, states: Mapping[StrategyType, JudgedNodes]
    ) -> None:
        """`states` are those of `tas.view.View.states`."""
        self._identity = (uid, generation, False)
        self._kinds = states.keys()
        strategies = {kind: policy.strategies[kind] for kind in states}
        self._plain = not (policy.suspend or policy.dry_run) and all(each.readable for each in strategies.values())
        self._strategies = [
            _Strategy(
                kind=kind,
                nodes=states[kind],
                labels=strategy_labels(policy.key, strategy),
                series=() if kind is StrategyType.DONTSCHEDULE else strategy_series(strategy),
                for_=strategy.for_,
                clear_for=strategy.clear_for,
                holds=strategy.on_stale is OnStale.HOLD,
                rejecting=rejecting_states(policy) if kind is StrategyType.DONTSCHEDULE else frozenset(),
            )
            for kind, strategy in strategies.items()
        ]

    def is_settled(self, node: str, verdict: PolicyVerdict | None, now: float) -> bool:
        """Whether the verdict that stands is right, and stays so until something happens; False: not as surely."""
        return (
            self._plain
            and verdict is not None
            and (verdict.uid, verdict.generation, verdict.holds_prefix) == self._identity
            and verdict.strategies.keys() == self._kinds
            and all(_is_settled(each, node, verdict.strategies[each.kind], now) for each in self._strategies)
        )


def _is_settled(strategy: _Strategy, node: str, stands: StrategyVerdict, now: float) -> bool:
    state = strategy.nodes.state(node)
    if stands.state is not state or stands.sampled != strategy.series or stands.labels.keys() != strategy.labels:
        return False
    if stands.rejects != (state in strategy.rejecting):
        return False
    return all(_label_is_settled(strategy, label, state, now) for label in stands.labels.values())


def _label_is_settled(strategy: _Strategy, label: LabelVerdict, state: State, now: float) -> bool:
    """Whether a label's wish follows from its strategy's state alone, and has nothing to wait for."""
    if label.state is not state:
        return False
    since = label.violated_since
    if state is State.MET:
        met = label.met_since
        return label.wish == ABSENT and since is None and met is not None and met + strategy.clear_for <= now
    if strategy.kind is StrategyType.LABELING or label.met_since is not None:
        return False  # which of its rules is the worst, or unknown, only their values say
    if state is State.VIOLATED:
        return label.wish.kind is WishKind.SET and since is not None and since + strategy.for_ <= now
    return strategy.holds and label.wish == HOLD and (since is None or since <= now)
