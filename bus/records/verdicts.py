"""A node's verdict in VERDICTS."""

from functools import lru_cache
from operator import attrgetter

import msgspec

from bus.records.codec import compressed, encode, json_within, reader
from tas.errors import InvalidInputError
from tas.policy.policy import PolicyKey
from tas.values.quantity import QuantityError, parse_quantity
from tas.verdict.verdict import (
    VERDICT_STRATEGIES,
    NodeVerdict,
    PolicyVerdict,
    Seconds,
    StrategyVerdict,
)


class _StrategyVerdicts(msgspec.Struct, kw_only=True, omit_defaults=True):
    dontschedule: StrategyVerdict | None = None
    deschedule: StrategyVerdict | None = None
    labeling: StrategyVerdict | None = None


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
    time: Seconds
    policies: list[_PolicyVerdict]


REMEMBERED = 32
"""How many decoded verdicts are kept: as many as the nodes that a worker handles at the same time. A verdict of 50
policies takes 0.3 MB."""

COMPRESSED_FROM = 4096
"""From so many bytes on, a verdict is compressed: one of 50 policies has 30 to 40 KB of JSON and 3 to 7 KB compressed,
and every replica of every reader receives each revision."""

_STRATEGIES = tuple((kind, attrgetter(kind.value)) for kind in VERDICT_STRATEGIES)
"""Each kind with the function that gets its strategy: to make a kind from a name takes as long as to read a label."""

SUBJECT = "verdict of a node"

_read = reader(SUBJECT, _NodeVerdict)


def encode_verdict(verdict: NodeVerdict) -> bytes:
    """The value of `<node>` in VERDICTS, policies by name.

    Times are numbers: a verdict of 50 policies has 200, and of its readers `evaluate` and `labels` read each revision.
    A value of more than `COMPRESSED_FROM` bytes is compressed.
    """
    data = encode(
        _NodeVerdict(
            node_uid=verdict.node_uid,
            nodes_revision=verdict.nodes_revision,
            policies_revision=verdict.policies_revision,
            time=verdict.time,
            policies=[
                _PolicyVerdict(
                    namespace=key.namespace,
                    name=key.name,
                    uid=policy.uid,
                    generation=policy.generation,
                    strategies=_StrategyVerdicts(**{kind.value: each for kind, each in policy.strategies.items()}),
                    holds_prefix=policy.holds_prefix,
                )
                for key, policy in sorted(verdict.policies.items())
            ],
        )
    )
    return data if len(data) < COMPRESSED_FROM else compressed(data)


@lru_cache(maxsize=REMEMBERED)
def decode_verdict(data: bytes) -> NodeVerdict:
    """The inverse of `encode_verdict`. Raises InvalidInputError.

    A reader usually decodes a verdict several times within a moment: when it arrives, when it is compared, and when it
    is read again before a patch. So the last ones are remembered.
    """
    written = _read(verdict_json(data))
    for policy in written.policies:
        _check_values(policy)
    return NodeVerdict(
        node_uid=written.node_uid,
        nodes_revision=written.nodes_revision,
        policies_revision=written.policies_revision,
        time=written.time,
        policies={
            PolicyKey(policy.namespace, policy.name): PolicyVerdict(
                uid=policy.uid,
                generation=policy.generation,
                strategies={
                    kind: strategy
                    for kind, of_kind in _STRATEGIES
                    if (strategy := of_kind(policy.strategies)) is not None
                },
                holds_prefix=policy.holds_prefix,
            )
            for policy in written.policies
        },
    )


def _check_values(policy: _PolicyVerdict) -> None:
    """Raises InvalidInputError if a value is no quantity: it is shown as one."""
    for kind, of_kind in _STRATEGIES:
        value = "" if (strategy := of_kind(policy.strategies)) is None else strategy.value
        if value:
            try:
                parse_quantity(value)
            except QuantityError as error:
                field = f"policies[{policy.namespace}/{policy.name}].strategies.{kind.value}.value"
                raise InvalidInputError(SUBJECT, field, value, str(error)) from error


def verdict_json(data: bytes) -> bytes:
    """The JSON of a value. Raises InvalidInputError."""
    return json_within(SUBJECT, data)
