"""A node's verdict in VERDICTS."""

from functools import lru_cache
from operator import attrgetter

import msgspec

from bus.records.codec import Time, encode, optional_seconds_of, optional_time_of, reader, seconds_of, time_of
from tas.policy.policy import PolicyKey
from tas.policy.rules import State
from tas.verdict.verdict import (
    VERDICT_STRATEGIES,
    DesiredLabel,
    LabelVerdict,
    NodeVerdict,
    PolicyVerdict,
    StrategyVerdict,
)


class _LabelVerdict(msgspec.Struct, gc=False, kw_only=True, omit_defaults=True, rename="camel"):
    state: State
    desired: DesiredLabel
    violated_since: Time | None = None
    met_since: Time | None = None


class _StrategyVerdict(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    state: State
    changed: Time
    value: str = ""
    labels: dict[str, _LabelVerdict] = {}
    sampled: list[str] = []
    rejects: bool = False
    before: State | None = None


class _StrategyVerdicts(msgspec.Struct, kw_only=True, omit_defaults=True):
    dontschedule: _StrategyVerdict | None = None
    deschedule: _StrategyVerdict | None = None
    labeling: _StrategyVerdict | None = None


class _PolicyVerdict(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    namespace: str
    name: str
    uid: str
    generation: int
    strategies: _StrategyVerdicts
    holds_prefix: bool = False


class _NodeVerdict(msgspec.Struct, kw_only=True, rename="camel"):
    node_uid: str
    nodes_revision: int
    policies_revision: int
    time: Time
    policies: list[_PolicyVerdict]


REMEMBERED = 32
"""How many decoded verdicts are kept: as many as the nodes that a worker handles at the same time. A verdict of 50
policies takes 0.3 MB."""

_STRATEGIES = tuple((kind, attrgetter(kind.value)) for kind in VERDICT_STRATEGIES)
"""Each kind with the function that gets its strategy: to make a kind from a name takes as long as to read a label."""

_read = reader("verdict of a node", _NodeVerdict)


def encode_verdict(verdict: NodeVerdict) -> bytes:
    """The value of `<node>` in VERDICTS, policies by name. Times are written to the microsecond."""
    return encode(
        _NodeVerdict(
            node_uid=verdict.node_uid,
            nodes_revision=verdict.nodes_revision,
            policies_revision=verdict.policies_revision,
            time=time_of(verdict.time),
            policies=[
                _PolicyVerdict(
                    namespace=key.namespace,
                    name=key.name,
                    uid=policy.uid,
                    generation=policy.generation,
                    strategies=_StrategyVerdicts(
                        **{kind.value: _written_strategy(each) for kind, each in policy.strategies.items()}
                    ),
                    holds_prefix=policy.holds_prefix,
                )
                for key, policy in sorted(verdict.policies.items())
            ],
        )
    )


@lru_cache(maxsize=REMEMBERED)
def decode_verdict(data: bytes) -> NodeVerdict:
    """The inverse of `encode_verdict`. Raises InvalidInputError.

    A reader usually decodes a verdict several times within a moment: when it arrives, when it is compared, and when it
    is read again before a patch. So the last ones are remembered.
    """
    written = _read(data)
    return NodeVerdict(
        node_uid=written.node_uid,
        nodes_revision=written.nodes_revision,
        policies_revision=written.policies_revision,
        time=seconds_of(written.time),
        policies={
            PolicyKey(policy.namespace, policy.name): PolicyVerdict(
                uid=policy.uid,
                generation=policy.generation,
                strategies={
                    kind: _read_strategy(strategy)
                    for kind, of_kind in _STRATEGIES
                    if (strategy := of_kind(policy.strategies)) is not None
                },
                holds_prefix=policy.holds_prefix,
            )
            for policy in written.policies
        },
    )


def _written_strategy(strategy: StrategyVerdict) -> _StrategyVerdict:
    return _StrategyVerdict(
        state=strategy.state,
        changed=time_of(strategy.changed),
        value=strategy.value,
        labels={
            label: _LabelVerdict(
                state=verdict.state,
                desired=verdict.desired,
                violated_since=optional_time_of(verdict.violated_since),
                met_since=optional_time_of(verdict.met_since),
            )
            for label, verdict in strategy.labels.items()
        },
        sampled=list(strategy.sampled),
        rejects=strategy.rejects,
        before=strategy.before,
    )


def _read_strategy(written: _StrategyVerdict) -> StrategyVerdict:
    return StrategyVerdict(
        state=written.state,
        changed=seconds_of(written.changed),
        value=written.value,
        labels={
            label: LabelVerdict(
                state=verdict.state,
                desired=verdict.desired,
                violated_since=optional_seconds_of(verdict.violated_since),
                met_since=optional_seconds_of(verdict.met_since),
            )
            for label, verdict in written.labels.items()
        },
        sampled=tuple(written.sampled),
        rejects=written.rejects,
        before=written.before,
    )
