"""What stands on the bus: each message's shape with its encoder and decoder.

JSON, times as RFC 3339, quantities as Kubernetes text, so that any language and a person with the `nats` command can
read and write them. Fields are only ever added, and new ones are optional; unknown ones are ignored.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec

from bus.subjects import parse_samples_subject
from tas.errors import InvalidInputError
from tas.manifest import parse_policy, policy_spec
from tas.names import is_metric_name
from tas.policy import Policy, PolicyKey, Problem, StrategyType
from tas.quantity import Quantity, QuantityError, format_quantity, parse_quantity
from tas.rules import State
from tas.sample import FUTURE_TOLERANCE, MAX_SAMPLE_AGE, NodeSamples, Scrape
from tas.sources.reading import Refusal, Refused
from tas.sources.state import SourceMetric, SourceState
from tas.verdict import LabelVerdict, NodeVerdict, PolicyVerdict, StrategyVerdict, Wish

MAX_SAMPLES_BYTES = 256 << 10
"""The largest message on SAMPLES that is read."""

MAX_SAMPLES_METRICS = 1000
"""The most metrics that one message on SAMPLES may hold."""

T = TypeVar("T")

# A time without a zone means a different moment on every machine, so it is refused.
_Time = Annotated[datetime, msgspec.Meta(tz=True)]


class Synced(msgspec.Struct, frozen=True, kw_only=True):
    """Value of `_synced`: after a complete list, everything that the source has stands in the bucket.

    `epoch` is when the bucket's stream was created (RFC 3339, as the server tells it): a `_synced` of another epoch
    says nothing. `cluster` is False where no Kubernetes API stands behind it: every valid name is a node then.
    """

    epoch: str
    count: int
    time: float
    by: str
    cluster: bool


class PolicyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Value of `<namespace>.<policy>` in POLICIES."""

    policy: Policy
    uid: str
    generation: int
    problems: tuple[Problem, ...] = ()
    origin: str = ""
    resource_version: str = ""


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Value of `<node>.facts` in NODES: what the API server said of the node.

    `resource_version`, here and in other records, is the API server's at which they were first read so: of two
    writers the one that has read the later one is right.
    """

    uid: str
    labels: dict[str, str]
    resource_version: str = ""


class PodRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Value of `<namespace>.<pod>` in PODS: a pod that carries the label `telemetry-policy`.

    `policy` is that label's value, in the pod's namespace; `node` the one that it is bound to. `waiting_since` is in
    seconds since 1970: None if it does not wait for a node.
    """

    policy: str
    uid: str
    node: str | None = None
    waiting_since: float | None = None
    resource_version: str = ""


# The shapes as they are written. Raw leaves a value as text: so a number keeps its digits, and one bad value spoils
# nothing beside it.


class _Samples(msgspec.Struct, kw_only=True):
    metrics: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    measured: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    window: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    node: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    source: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _WrittenSamples(msgspec.Struct, kw_only=True, omit_defaults=True):
    metrics: dict[str, str]
    measured: datetime
    window: float | None = None


class _Scrape(msgspec.Struct, kw_only=True, omit_defaults=True):
    source: str
    measured: _Time
    arrived: _Time
    sequence: int
    metrics: dict[str, str]
    window: float | None = None


class _NodeSamples(msgspec.Struct, kw_only=True):
    scrapes: list[_Scrape]


class _Policy(msgspec.Struct, kw_only=True, rename="camel"):
    namespace: str
    name: str
    uid: str
    generation: int
    spec: Any
    origin: str = ""
    problems: list[Problem] | None = None
    resource_version: str | msgspec.UnsetType = msgspec.UNSET


class _Pod(msgspec.Struct, kw_only=True, rename="camel"):
    policy: str
    uid: str
    node: str | None = None
    waiting_since: _Time | None = None
    resource_version: str = ""


class _Synced(msgspec.Struct, kw_only=True):
    epoch: str
    count: Annotated[int, msgspec.Meta(ge=0)]
    time: _Time
    by: str
    cluster: bool


class _LabelVerdict(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    state: State
    wish: Wish
    violated_since: _Time | None = None
    met_since: _Time | None = None


class _StrategyVerdict(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    state: State
    changed: _Time
    value: str = ""
    labels: dict[str, _LabelVerdict] = {}
    sampled: list[str] = []
    rejects: bool | None = None  # where the state says something else: see `_read_strategy`


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
    time: _Time
    policies: list[_PolicyVerdict]


class _Refusal(msgspec.Struct, kw_only=True):
    reason: str
    count: int
    example: str


class _SourceState(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    kind: str
    holder: str
    since: _Time
    time: _Time
    period_seconds: float | None = None
    problem: str = ""
    last_success: _Time | None = None
    last_failure: _Time | None = None
    metrics: dict[str, SourceMetric] = {}
    looks: int = 0
    failures: int = 0
    samples: int = 0
    refused: list[_Refusal] = []


_encoder = msgspec.json.Encoder()
_samples_decoder = msgspec.json.Decoder(_Samples)
_metrics_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_node_samples_decoder = msgspec.json.Decoder(_NodeSamples)
_policy_decoder = msgspec.json.Decoder(_Policy)
_synced_decoder = msgspec.json.Decoder(_Synced)
_pod_decoder = msgspec.json.Decoder(_Pod)
_facts_decoder = msgspec.json.Decoder(NodeFacts)
_verdict_decoder = msgspec.json.Decoder(_NodeVerdict)
_source_decoder = msgspec.json.Decoder(_SourceState)
_text_decoder = msgspec.json.Decoder(str)
_time_decoder: msgspec.json.Decoder[datetime] = msgspec.json.Decoder(_Time)
_window_decoder: msgspec.json.Decoder[float] = msgspec.json.Decoder(Annotated[float, msgspec.Meta(gt=0, le=86400)])

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises: no JSON, JSON of another shape, no UTF-8, or nested beyond reason."""


def decode_samples(
    subject: str, data: bytes, *, arrived: float, sequence: int
) -> tuple[str, Scrape | None, tuple[InvalidInputError, ...]]:
    """The node, the scrape as far as it holds, and what was refused of it.

    The subject names node and source; a body that names others is refused whole (None). A single bad metric is
    refused alone. A time ahead of `arrived` is kept as it is while it is tolerated: `Scrape.time` takes care of it.

    Raises:
        InvalidInputError: if not even the subject can be read.
    """
    node, source = parse_samples_subject(subject)
    told = f"sample {node}/{source}"
    arrived = round(arrived, 6)  # as exact as it is written, so that nothing is newer than its own copy
    try:
        body = _samples_body(told, data)
        _check_names(told, body, node=node, source=source)
        measured = _measured(told, body, arrived=arrived)
        window = _window(told, body)
        written = _metrics(told, body)
    except InvalidInputError as error:
        return node, None, (error,)
    metrics: dict[str, Quantity] = {}
    refused: list[InvalidInputError] = []
    for metric, value in written.items():
        try:
            metrics[metric] = _metric_value(told, metric, value)
        except InvalidInputError as error:
            refused.append(error)
    if not metrics:
        return node, None, tuple(refused)
    scrape = Scrape(
        source=source, measured=measured, arrived=arrived, sequence=sequence, window=window, metrics=metrics
    )
    return node, scrape, tuple(refused)


def encode_samples(scrape: Scrape) -> bytes:
    """The body of a message on SAMPLES; `arrived` and `sequence` are the server's to say."""
    return _encoder.encode(
        _WrittenSamples(
            metrics=_quantity_texts(scrape.metrics), measured=_datetime(scrape.measured), window=scrape.window
        )
    )


def encode_node_samples(samples: NodeSamples) -> bytes:
    """The value of `<node>.metrics` in NODES."""
    return _encoder.encode(
        _NodeSamples(
            scrapes=[
                _Scrape(
                    source=scrape.source,
                    measured=_datetime(scrape.measured),
                    arrived=_datetime(scrape.arrived),
                    sequence=scrape.sequence,
                    window=scrape.window,
                    metrics=_quantity_texts(scrape.metrics),
                )
                for scrape in samples
            ]
        )
    )


def decode_node_samples(data: bytes) -> NodeSamples:
    """What `encode_node_samples` wrote. Raises InvalidInputError."""
    scrapes = [
        Scrape(
            source=scrape.source,
            measured=scrape.measured.timestamp(),
            arrived=scrape.arrived.timestamp(),
            sequence=scrape.sequence,
            window=scrape.window,
            metrics=_quantities(scrape),
        )
        for scrape in _decoded("samples of a node", _node_samples_decoder, data).scrapes
    ]
    scrapes.sort(key=lambda scrape: (scrape.source, scrape.order))
    return tuple(scrapes)


def encode_policy(record: PolicyRecord) -> bytes:
    """The value of a policy: its spec in the CRD's words, as validated."""
    return _encoder.encode(
        _Policy(
            namespace=record.policy.key.namespace,
            name=record.policy.key.name,
            uid=record.uid,
            generation=record.generation,
            origin=record.origin,
            spec=policy_spec(record.policy),
            problems=list(record.problems),
            resource_version=record.resource_version or msgspec.UNSET,
        )
    )


def decode_policy(key: PolicyKey, data: bytes) -> PolicyRecord:
    """What `encode_policy` wrote, through the same parser that reads what users write. Raises InvalidInputError.

    The problems are those that stand there: they tell of what the user wrote, of which the spec is what could be read.
    Only where none are told, as by another writer, are they the parser's own.
    """
    told = f"policy {key}"
    written = _decoded(told, _policy_decoder, data)
    for field, there, expected in (("namespace", written.namespace, key.namespace), ("name", written.name, key.name)):
        if there != expected:
            raise InvalidInputError(told, field, there, f"must be {expected}, as in the key")
    policy, found = parse_policy(key, written.spec)
    return PolicyRecord(
        policy=policy,
        uid=written.uid,
        generation=written.generation,
        origin=written.origin,
        resource_version=written.resource_version or "",
        problems=found if written.problems is None else tuple(written.problems),
    )


def encode_node_facts(facts: NodeFacts) -> bytes:
    """The value of `<node>.facts` in NODES."""
    return _encoder.encode(facts)


def decode_node_facts(data: bytes) -> NodeFacts:
    """What `encode_node_facts` wrote. Raises InvalidInputError."""
    return _decoded("facts of a node", _facts_decoder, data)


def encode_pod(record: PodRecord) -> bytes:
    """The value of a pod in PODS."""
    return _encoder.encode(
        _Pod(
            policy=record.policy,
            uid=record.uid,
            node=record.node,
            waiting_since=None if record.waiting_since is None else _datetime(record.waiting_since),
            resource_version=record.resource_version,
        )
    )


def decode_pod(data: bytes) -> PodRecord:
    """What `encode_pod` wrote. Raises InvalidInputError."""
    written = _decoded("pod", _pod_decoder, data)
    return PodRecord(
        policy=written.policy,
        uid=written.uid,
        node=written.node,
        waiting_since=None if written.waiting_since is None else written.waiting_since.timestamp(),
        resource_version=written.resource_version,
    )


def encode_synced(synced: Synced) -> bytes:
    """The value of `_synced`."""
    return _encoder.encode(
        _Synced(
            epoch=synced.epoch,
            count=synced.count,
            time=_datetime(synced.time),
            by=synced.by,
            cluster=synced.cluster,
        )
    )


def decode_synced(data: bytes) -> Synced:
    """What `encode_synced` wrote. Raises InvalidInputError."""
    written = _decoded("_synced", _synced_decoder, data)
    return Synced(
        epoch=written.epoch,
        count=written.count,
        time=written.time.timestamp(),
        by=written.by,
        cluster=written.cluster,
    )


def encode_verdict(verdict: NodeVerdict) -> bytes:
    """The value of `<node>` in VERDICTS, policies by name. Times are written to the microsecond."""
    return _encoder.encode(
        _NodeVerdict(
            node_uid=verdict.node_uid,
            nodes_revision=verdict.nodes_revision,
            policies_revision=verdict.policies_revision,
            time=_datetime(verdict.time),
            policies=[
                _PolicyVerdict(
                    namespace=key.namespace,
                    name=key.name,
                    uid=policy.uid,
                    generation=policy.generation,
                    strategies=_StrategyVerdicts(
                        **{kind.value: _written_strategy(kind, each) for kind, each in policy.strategies.items()}
                    ),
                    holds_prefix=policy.holds_prefix,
                )
                for key, policy in sorted(verdict.policies.items())
            ],
        )
    )


def decode_verdict(data: bytes) -> NodeVerdict:
    """What `encode_verdict` wrote. Raises InvalidInputError."""
    written = _decoded("verdict of a node", _verdict_decoder, data)
    return NodeVerdict(
        node_uid=written.node_uid,
        nodes_revision=written.nodes_revision,
        policies_revision=written.policies_revision,
        time=written.time.timestamp(),
        policies={
            PolicyKey(policy.namespace, policy.name): PolicyVerdict(
                uid=policy.uid,
                generation=policy.generation,
                strategies={
                    StrategyType(kind): _read_strategy(StrategyType(kind), getattr(policy.strategies, kind))
                    for kind in policy.strategies.__struct_fields__
                    if getattr(policy.strategies, kind) is not None
                },
                holds_prefix=policy.holds_prefix,
            )
            for policy in written.policies
        },
    )


def encode_source_state(state: SourceState) -> bytes:
    """The value of `<source>` in SOURCES."""
    return _encoder.encode(
        _SourceState(
            kind=state.kind,
            holder=state.holder,
            since=_datetime(state.since),
            time=_datetime(state.time),
            period_seconds=state.period,
            problem=state.problem,
            last_success=None if state.last_success is None else _datetime(state.last_success),
            last_failure=None if state.last_failure is None else _datetime(state.last_failure),
            metrics=dict(state.metrics),
            looks=state.looks,
            failures=state.failures,
            samples=state.samples,
            refused=[
                _Refusal(reason=why.value, count=refusal.count, example=refusal.example)
                for why, refusal in sorted(state.refused.items())
            ],
        )
    )


def decode_source_state(data: bytes) -> SourceState:
    """What `encode_source_state` wrote; reasons that are not known here are left out. Raises InvalidInputError."""
    written = _decoded("state of a source", _source_decoder, data)
    return SourceState(
        kind=written.kind,
        holder=written.holder,
        since=written.since.timestamp(),
        time=written.time.timestamp(),
        period=written.period_seconds,
        problem=written.problem,
        last_success=None if written.last_success is None else written.last_success.timestamp(),
        last_failure=None if written.last_failure is None else written.last_failure.timestamp(),
        metrics=written.metrics,
        looks=written.looks,
        failures=written.failures,
        samples=written.samples,
        refused={
            Refused(each.reason): Refusal(count=each.count, example=each.example)
            for each in written.refused
            if each.reason in set(Refused)
        },
    )


def _rejects_by_state(kind: StrategyType, state: State) -> bool:
    """Whether filter rejects the node by the state alone, as most policies mean it: nothing is written then."""
    return kind is StrategyType.DONTSCHEDULE and state is State.VIOLATED


def _written_strategy(kind: StrategyType, strategy: StrategyVerdict) -> _StrategyVerdict:
    return _StrategyVerdict(
        state=strategy.state,
        changed=_datetime(strategy.changed),
        value=strategy.value,
        labels={
            label: _LabelVerdict(
                state=verdict.state,
                wish=verdict.wish,
                violated_since=None if verdict.violated_since is None else _datetime(verdict.violated_since),
                met_since=None if verdict.met_since is None else _datetime(verdict.met_since),
            )
            for label, verdict in strategy.labels.items()
        },
        sampled=list(strategy.sampled),
        rejects=None if strategy.rejects == _rejects_by_state(kind, strategy.state) else strategy.rejects,
    )


def _read_strategy(kind: StrategyType, written: _StrategyVerdict) -> StrategyVerdict:
    return StrategyVerdict(
        state=written.state,
        changed=written.changed.timestamp(),
        value=written.value,
        labels={
            label: LabelVerdict(
                state=verdict.state,
                wish=verdict.wish,
                violated_since=None if verdict.violated_since is None else verdict.violated_since.timestamp(),
                met_since=None if verdict.met_since is None else verdict.met_since.timestamp(),
            )
            for label, verdict in written.labels.items()
        },
        sampled=tuple(written.sampled),
        rejects=_rejects_by_state(kind, written.state) if written.rejects is None else written.rejects,
    )


def _samples_body(told: str, data: bytes) -> _Samples:
    if len(data) > MAX_SAMPLES_BYTES:
        raise InvalidInputError(told, "body", f"{len(data)} bytes", f"must be at most {MAX_SAMPLES_BYTES} bytes")
    try:
        return _samples_decoder.decode(data)
    except _UNREADABLE:
        return _decoded(told, _samples_decoder, _with_quoted_constants(data))


# Python's json module and others write these bare, which is no JSON. Quoted, they are refused for their metric alone.
_CONSTANT = re.compile(rb'("(?:[^"\\]|\\.)*")|(-?\b(?:NaN|Infinity)\b)', re.DOTALL)


def _with_quoted_constants(data: bytes) -> bytes:
    return _CONSTANT.sub(lambda match: match[1] or b'"' + match[2] + b'"', data)


def _check_names(told: str, body: _Samples, *, node: str, source: str) -> None:
    for field, written, expected in (("node", body.node, node), ("source", body.source, source)):
        if written is not msgspec.UNSET and _field(told, field, written, _text_decoder) != expected:
            _refuse(told, field, written, f"must be {expected}, as in the subject")


def _measured(told: str, body: _Samples, *, arrived: float) -> float:
    if body.measured is msgspec.UNSET:
        return arrived
    measured = _field(told, "measured", body.measured, _time_decoder).timestamp()
    if measured > arrived + FUTURE_TOLERANCE:
        _refuse(told, "measured", body.measured, f"must be at most {FUTURE_TOLERANCE:g} s after its arrival")
    if measured < arrived - MAX_SAMPLE_AGE:
        _refuse(told, "measured", body.measured, f"must be at most {MAX_SAMPLE_AGE:g} s before its arrival")
    return measured


def _window(told: str, body: _Samples) -> float | None:
    if body.window is msgspec.UNSET:
        return None
    return _field(told, "window", body.window, _window_decoder)


def _metrics(told: str, body: _Samples) -> dict[str, msgspec.Raw]:
    if body.metrics is msgspec.UNSET:
        raise InvalidInputError(told, "metrics", "absent", "must be an object of values by metric name")
    try:
        metrics = _metrics_decoder.decode(body.metrics)
    except _UNREADABLE:
        _refuse(told, "metrics", body.metrics, "must be an object of values by metric name")
    if len(metrics) > MAX_SAMPLES_METRICS:
        raise InvalidInputError(
            told, "metrics", f"{len(metrics)} metrics", f"must be at most {MAX_SAMPLES_METRICS} in a message"
        )
    return metrics


def _metric_value(told: str, metric: str, written: msgspec.Raw) -> Quantity:
    field = f"metrics.{metric}"
    if not is_metric_name(metric):
        raise InvalidInputError(told, "metrics", metric, "must be a metric's name of letters, digits, _, - and :")
    text = bytes(written).decode(errors="replace")
    if text[0] == '"':
        text = _field(told, field, written, _text_decoder)
    elif text[0] not in "-0123456789":
        raise InvalidInputError(told, field, text, "must be a quantity, as a number or as text")
    try:
        return parse_quantity(text)
    except QuantityError as error:
        raise InvalidInputError(told, field, text, str(error)) from error


def _field(told: str, field: str, written: msgspec.Raw, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(written)
    except _UNREADABLE as error:
        raise InvalidInputError(told, field, bytes(written).decode(errors="replace"), str(error)) from error


def _refuse(told: str, field: str, written: msgspec.Raw, reason: str) -> NoReturn:
    raise InvalidInputError(told, field, bytes(written).decode(errors="replace"), reason)


def _decoded(told: str, decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    try:
        return decoder.decode(data)
    except _UNREADABLE as error:
        raise InvalidInputError(told, "body", data.decode(errors="replace"), str(error)) from error


def _quantity_texts(metrics: Mapping[str, Quantity]) -> dict[str, str]:
    return {metric: format_quantity(value) for metric, value in metrics.items()}


def _quantities(scrape: _Scrape) -> dict[str, Quantity]:
    metrics: dict[str, Quantity] = {}
    for metric, text in scrape.metrics.items():
        try:
            metrics[metric] = _quantity(text)
        except QuantityError as error:
            raise InvalidInputError("samples of a node", f"metrics.{metric}", text, str(error)) from error
    return metrics


_SCALES = tuple(10 ** (9 - places) for places in range(10))


def _quantity(text: str) -> Quantity:
    """What `parse_quantity` says, quicker for the plain decimals that `format_quantity` writes."""
    whole, point, fraction = text.partition(".")
    digits = whole + fraction
    if point and len(fraction) < 10 and len(digits) < 40 and digits.isdigit() and digits.isascii():
        return Quantity(int(digits) * _SCALES[len(fraction)])
    return parse_quantity(text)


def _datetime(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
