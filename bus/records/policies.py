"""A policy in POLICIES.

The spec is that of the CRD, except for `onStale` of `dontschedule`. There the record always has a value, since a record
without it comes from a `watch` that did not know `keep`, and meant `pass`. And `keep` is stored as `pass` with
`keepFor`: readers of that time refuse `keep`, and then no rule of the strategy would reject a node during an upgrade.
"""

from typing import Any

import msgspec

from bus.records.codec import Time, decoded, encode, seconds_of, time_of
from tas.errors import InvalidInputError
from tas.policy.manifest import parse_policy, policy_spec
from tas.policy.policy import OnStale, Policy, PolicyKey, Problem, StrategyType
from tas.values.duration import format_duration


class PolicyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Value of `<namespace>.<policy>` in POLICIES.

    `created` is when the API server created the policy, in seconds since 1970; None for a policy of a directory.
    """

    policy: Policy
    uid: str
    generation: int
    problems: tuple[Problem, ...] = ()
    origin: str = ""
    resource_version: str = ""
    created: float | None = None


class _Policy(msgspec.Struct, kw_only=True, rename="camel"):
    namespace: str
    name: str
    uid: str
    generation: int
    spec: Any
    origin: str = ""
    problems: list[Problem] | None = None
    resource_version: str | msgspec.UnsetType = msgspec.UNSET
    created: Time | msgspec.UnsetType = msgspec.UNSET


_decoder = msgspec.json.Decoder(_Policy)


def encode_policy(record: PolicyRecord) -> bytes:
    """The value of a policy: its validated spec, with the field names of the CRD."""
    return encode(
        _Policy(
            namespace=record.policy.key.namespace,
            name=record.policy.key.name,
            uid=record.uid,
            generation=record.generation,
            origin=record.origin,
            spec=_stored_spec(record.policy),
            problems=list(record.problems),
            resource_version=record.resource_version or msgspec.UNSET,
            created=msgspec.UNSET if record.created is None else time_of(record.created),
        )
    )


def decode_policy(key: PolicyKey, data: bytes) -> PolicyRecord:
    """The inverse of `encode_policy`, with the parser of users' manifests. Raises InvalidInputError.

    The stored spec has only the valid parts of the manifest, so the problems are the stored ones. If the record has no
    field `problems`, as from another writer, they are the parser's.
    """
    subject = f"policy {key}"
    written = decoded(subject, _decoder, data)
    for field, value, expected in (("namespace", written.namespace, key.namespace), ("name", written.name, key.name)):
        if value != expected:
            raise InvalidInputError(subject, field, value, f"must be {expected}, as in the key")
    policy, found = parse_policy(key, _read_spec(written.spec))
    return PolicyRecord(
        policy=policy,
        uid=written.uid,
        generation=written.generation,
        origin=written.origin,
        resource_version=written.resource_version or "",
        created=None if isinstance(written.created, msgspec.UnsetType) else seconds_of(written.created),
        problems=found if written.problems is None else tuple(written.problems),
    )


def _stored_spec(policy: Policy) -> dict[str, Any]:
    spec = policy_spec(policy)
    strategy = policy.strategies.get(StrategyType.DONTSCHEDULE)
    if strategy is not None:
        stored = {"onStale": strategy.on_stale.value}
        if strategy.on_stale is OnStale.KEEP:
            stored = {"onStale": OnStale.PASS.value, "keepFor": format_duration(strategy.keep_for)}
        spec["strategies"][StrategyType.DONTSCHEDULE.value] |= stored
    return spec


def _read_spec(stored: Any) -> Any:
    """The spec of a record; None and other types are the parser's to report."""
    try:
        strategy = stored["strategies"][StrategyType.DONTSCHEDULE.value]
        on_stale = strategy.get("onStale", OnStale.PASS.value)
    except (TypeError, KeyError, AttributeError):
        return stored
    if on_stale == OnStale.PASS.value and "keepFor" in strategy:
        on_stale = OnStale.KEEP.value
    strategies = stored["strategies"] | {StrategyType.DONTSCHEDULE.value: strategy | {"onStale": on_stale}}
    return stored | {"strategies": strategies}
