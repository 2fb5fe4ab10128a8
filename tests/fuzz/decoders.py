"""The decoders of bytes that a stranger can send, each with the errors that it may raise and the bounds of its cost.

Also those of the files of `tas bus`: others may have damaged these.

Every decoder has the same two bounds, `SECONDS_PER_BYTE` and `BYTES_PER_BYTE`, unless its entry gives another one with
the reason.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from bus.kinds import NODE_HOLDS, NODE_VERDICTS
from bus.records.agents import decode_learned
from bus.records.allocations import decode_allocation
from bus.records.breakers import decode_breaker, decode_outstanding, decode_pause
from bus.records.devices import decode_hold, decode_inventory
from bus.records.leases import decode_lease
from bus.records.nodes import decode_node_facts, decode_node_release, decode_node_samples
from bus.records.outcomes import decode_outcome
from bus.records.pods import decode_pod
from bus.records.policies import decode_policy
from bus.records.refusals import decode_refused_labels, decode_refused_marks
from bus.records.samples import MAX_SAMPLES_BYTES, decode_newest, decode_samples
from bus.records.sources import decode_source_state
from bus.records.synced import decode_synced
from bus.records.tables import MAX_TABLE_BYTES, decode_stored_table, decode_table
from bus.records.verdicts import decode_verdict
from bus.records.windows import decode_series
from bus.records.workers import decode_expected, decode_process
from bus.subjects import (
    parse_agent_key,
    parse_breaker_key,
    parse_expected_key,
    parse_node_key,
    parse_node_table_key,
    parse_pod_key,
    parse_policy_key,
    parse_process_key,
    parse_refusals_key,
    parse_refused_marks_key,
    parse_samples_subject,
    parse_tables_subject,
    parse_window_key,
)
from cli.configure.cluster_dns import MAX_ANSWER as MAX_DNS_ANSWER
from cli.configure.files import FilesError
from cli.policy_lint import lint
from tas.agents.demand import demand_of
from tas.allocation.pod import pod_totals
from tas.configuring.dns import DnsError
from tas.configuring.dns import addresses as dns_addresses
from tas.errors import InvalidInputError
from tas.events.cloudevents import decode as decode_event
from tas.events.cloudevents import headers
from tas.events.data import PolicyRefused, ViolationStarted
from tas.events.event import Cause, event_of
from tas.extender.binding import decode_binding
from tas.extender.instant_query import parse_instant_query
from tas.extender.pod_document import read_annotations, read_containers
from tas.extender.preemption import decode_preemption_args
from tas.extender.wire import decode_args
from tas.extender.wire import decode_pod as decode_asked_pod
from tas.gpu.claim import Options, read_claim
from tas.policy.policy import PolicyKey
from tas.samples.parts import Part
from tas.samples.table import TableKey
from tas.sources.annotations import Annotation, annotation_samples
from tas.sources.config import parse_source_config
from tas.sources.custom_metrics import decode_group, decode_metric_names, decode_metric_values
from tas.sources.metrics_api import METRICS, decode_node_metrics
from tas.sources.prometheus import AnswerError, read_answer
from tas.sources.remote_write import SeriesStore
from tas.sources.result import ResultBuilder
from tas.sources.series import Mappings
from tas.sources.write_request import WriteError, decode_write_request
from tas.values.document import DocumentError
from tas.values.duration import DurationError, parse_duration
from tas.values.quantity import QuantityError, parse_quantity
from tests.fuzz import rights
from workers.collect.sources import custom_metrics, metrics_server, prometheus, remote_write
from workers.extender.instant_query import MAX_BODY_BYTES as MAX_QUERY_BYTES
from workers.extender.instant_query import parse_parameters
from workers.inventory.cards import node_inventory
from workers.kubernetes import client as kubernetes
from workers.kubernetes.admission import policy_record
from workers.kubernetes.credentials import Credentials
from workers.kubernetes.errors import ConfigurationError, UnavailableError, error_of
from workers.kubernetes.resources import (
    GPU_NODES,
    LABELLED_NODES,
    OBSERVED_PODS,
    PODS,
    POLICIES,
    ObservedPod,
    Resource,
)
from workers.policies.files import parse_file
from workers.process.manifests import MAX_BYTES as MAX_MANIFEST_BYTES
from workers.process.manifests import ManifestError, read_yaml
from workers.scheduler.http import MAX_BODY_BYTES
from workers.watch.worker import node_facts, pod_record

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "contract" / "golden"

STEPS_PER_BYTE = 300
"""Processor time, in steps of a loop of Python: about 2 µs on a quiet machine, so 0.5 s for a message of 256 KiB."""

BYTES_PER_BYTE = 60
"""Memory at the peak: an empty list in a list takes two bytes of JSON, and 56 of memory."""

KEPT_BYTES = 64 << 10
"""What a call may keep after its result is dropped, for caches of constant size; else a stranger fills the memory."""

PAYLOAD = 1 << 20
"""The default limit of a NATS server for a message."""

SUBJECT_BYTES = 4 << 10
"""The default limit of a NATS server for the line with the subject."""

SUBJECT = "tas.samples.node-1.machine"
TABLE_SUBJECT = "tas.tables.machine.1-0"
NOW = 1767225605.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A decoder.

    Attributes:
        name: The name of its corpus.
        decode: Decodes a message; the result does not matter.
        allowed: The errors that callers expect.
        largest: The size of the largest message that is passed to it, in bytes.
        seeds: Valid messages, to be mutated.
        form: What the messages are made of: `json`, `yaml`, `write` (remote write) or `text`.
        bytes_per_byte: The bound of the peak of memory, in bytes for each byte of a message.
        steps_per_byte: The bound of the processor time for each byte of a message: that of so many steps of a loop.
        kept: The bound of the bytes that a call may keep.
    """

    name: str
    decode: Callable[[bytes], object]
    allowed: tuple[type[Exception], ...]
    largest: int
    seeds: tuple[bytes, ...]
    form: str = "json"
    bytes_per_byte: float = BYTES_PER_BYTE
    steps_per_byte: int = STEPS_PER_BYTE
    kept: int = KEPT_BYTES

    def __str__(self) -> str:
        """What holds for the decoder, as a sentence."""
        errors = " or ".join(error.__name__ for error in self.allowed) or "no error"
        return (
            f"{self.name}: {self.form} of at most {self.largest} bytes raises {errors}, takes at most "
            f"{self.steps_per_byte} steps of a loop and {self.bytes_per_byte:g} bytes for each byte, and keeps at most "
            f"{self.kept} bytes."
        )


class _Stored(NamedTuple):
    """A message of SAMPLES."""

    subject: str
    data: bytes
    arrived: float
    sequence: int


def _golden(pattern: str) -> tuple[bytes, ...]:
    found = tuple(path.read_bytes() for path in sorted(GOLDEN.glob(pattern)))
    assert found, pattern
    return found


def _record(name: str, decode: Callable[[bytes], object]) -> Decoder:
    seeds = _golden(f"bus/{name}.json")
    return Decoder(name=f"bus-{name}", decode=decode, allowed=(InvalidInputError,), largest=PAYLOAD, seeds=seeds)


def _request(name: str, decode: Callable[[bytes], object], pattern: str, *more: bytes) -> Decoder:
    seeds = (*(_golden(pattern) if pattern else ()), *more)
    return Decoder(
        name=f"extender-{name}", decode=decode, allowed=(InvalidInputError,), largest=MAX_BODY_BYTES, seeds=seeds
    )


def _text(name: str, parse: Callable[[str], object], *seeds: str, allowed: tuple[type[Exception], ...]) -> Decoder:
    return Decoder(
        name=name,
        decode=lambda data: parse(data.decode(errors="surrogateescape")),
        allowed=allowed,
        largest=SUBJECT_BYTES,
        seeds=tuple(map(str.encode, seeds)),
        form="text",
    )


def _decode_prometheus(data: bytes) -> object:
    return read_answer("load", Mappings().of("load"), data)


def _decode_write(data: bytes) -> object:
    return SeriesStore(Mappings()).add_request(decode_write_request(data), frozenset({"load"}), now=NOW)


def _list_of(resource: Resource[Any]) -> Callable[[bytes], object]:
    decoder = msgspec.json.Decoder(kubernetes._Page[resource.type])  # type: ignore[name-defined]
    return partial(kubernetes._decode_with, decoder, what="list")


def _event_of(resource: Resource[Any], record: Callable[[Any], object]) -> Callable[[bytes], object]:
    decoder = msgspec.json.Decoder(resource.type)

    def decode(data: bytes) -> object:
        event = kubernetes._decode_with(kubernetes._event_decoder, data, "watch")
        if event.type == "ERROR":
            return kubernetes._error_event("watch", event.object)
        change = kubernetes._change(event, decoder, "watch")
        if change is None or change.type == "BOOKMARK":
            return None
        return record(change.object)

    return decode


def _decode_observed_pod(pod: ObservedPod) -> object:
    """What `inventory` and `gpu` read of a pod."""
    claim = read_claim(pod.as_device_pod(), Options(allowlist=True, denylist=True))
    with suppress(InvalidInputError):  # as in `workers.inventory.pods_on_nodes`
        return claim, pod.runs(), pod_totals(pod.as_pod_resources())
    return claim, pod.runs()


def _decode_asked_pod(data: bytes) -> object:
    """What agents and the cards of a node need to know of a pod that a scheduler sends."""
    pod = decode_asked_pod(msgspec.Raw(data))
    with suppress(InvalidInputError):
        demand_of(pod, amounts=True)
    return read_annotations(pod.document), read_containers(pod.document)


def _decode_newest(data: bytes) -> object:
    """A message behind another one, of whose metrics only those count that the other one lacks."""
    message = _Stored(SUBJECT, data, NOW, 1)
    newer = _Stored(SUBJECT, _golden("bus/sample.json")[0], NOW, 2)
    return list(decode_newest("node-1", "machine", (message, newer), ()))


def _decode_annotation(text: str) -> object:
    return annotation_samples("a", {"load": Annotation(text, NOW)}, ResultBuilder(), now=NOW, lifetime=600)


def _of_file(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A decoder of what a file has."""

    def decode(data: bytes) -> object:
        with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
            file.write(data)
            file.flush()
            return read(Path(file.name))

    return decode


def _decode_kubeconfig(file: Path) -> object:
    return asyncio.run(Credentials.load(file))


def _decode_source_config(data: bytes) -> object:
    documents = read_yaml(data)
    return parse_source_config("config", documents[0] if documents else None, sources=("prometheus",))


_OBJECT: dict[str, Any] = {
    "metadata": {
        "name": "a",
        "namespace": "default",
        "uid": "u",
        "resourceVersion": "5",
        "generation": 3,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"telemetry-policy": "demo"},
        "annotations": {"telemetry.intel.com/recovered": "12.1"},
        "managedFields": [{"manager": "x", "operation": "Apply", "fieldsV1": {"f:metadata": {"f:labels": {}}}}],
    },
    "spec": {
        "nodeName": "node-1",
        "schedulingGates": [{"name": "g"}],
        "strategies": {
            "dontschedule": {"rules": [{"metricname": "m", "operator": "GreaterThan", "target": 2}]},
            "labeling": {"for": "30s", "rules": [{"metricname": "m", "operator": "Equals", "labels": ["a=b"]}]},
        },
        "nodeSelector": {"matchLabels": {"zone": "a"}, "matchExpressions": [{"key": "k", "operator": "Exists"}]},
        "staleAfter": "1m",
    },
    "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": "no node"}]},
}
_TABLES = tuple(
    json.dumps({"nodes": ["a", "b"], "metrics": {"x": [1, "2"], "y": [None, 0.5]}} | more).encode()
    for more in (
        {"measured": ["2026-01-01T00:00:00Z", None], "window": {"x": 60, "y": [1, 2]}},
        {"measured": {"x": ["2026-01-01T00:00:00Z", None]}, "ends": ["2026-01-01T00:00:00Z", None]},
    )
)
_GPU_POD = _OBJECT | {
    "metadata": _OBJECT["metadata"] | {"annotations": {"gas-allow": "card0,card1", "gas-deny": "card2"}},
    "spec": {
        "nodeName": "node-1",
        "containers": [
            {
                "name": "a",
                "resources": {"requests": {"gpu.intel.com/i915": "2", "cpu": "100m"}, "limits": {"memory": "1Gi"}},
            }
        ],
        "initContainers": [{"name": "b", "restartPolicy": "Always", "resources": {"requests": {"cpu": 1}}}],
        "overhead": {"cpu": "10m"},
    },
    "status": {
        "phase": "Running",
        "containerStatuses": [
            {
                "name": "a",
                "restartCount": 2,
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
                "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:00:00Z"}},
            }
        ],
    },
}
_GPU_LABELS = {
    "gpu.intel.com/gpu-numbers": "0.1.2",
    "gpu.intel.com/tiles": "6",
    "gpu.intel.com/xe-links": "0.0-1.0_0.1-1.1",
    "gpu.intel.com/numa-gpu-map": "0-0.1_1-2",
    "gpu.intel.com/pci-groups": "0.1_2",
    "telemetry.aware.scheduling.demo/gas-deschedule-pods-card0": "pci",
    "telemetry.aware.scheduling.demo/gas-disable-card1": "true",
    "telemetry.aware.scheduling.demo/gas-tile-preferred-card0": "gt1",
}
_GPU_NODE = _OBJECT | {
    "metadata": _OBJECT["metadata"] | {"labels": _GPU_LABELS},
    "status": {"allocatable": {"gpu.intel.com/i915": "3", "gpu.intel.com/memory.max": "48G", "cpu": "8"}},
}
_PAGE = json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "7", "continue": ""}, "items": [_OBJECT]})
_STATUS = {
    "kind": "Status",
    "message": "nodes is forbidden",
    "reason": "Forbidden",
    "code": 403,
    "details": {"name": "a", "kind": "nodes", "causes": [{"reason": "x", "field": "y"}], "retryAfterSeconds": 3},
}
_BINDING = b'{"PodName":"a","PodNamespace":"default","PodUID":"u","Node":"node-1"}'
_KUBECONFIG = b"""apiVersion: v1
kind: Config
current-context: a
clusters: [{name: a, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
users: [{name: a, user: {token: secret}}]
"""
_SOURCE_CONFIG = b"""metrics: {load: {query: "max by (node) (x)", aggregate: max}, disk: {series: d, labels: {m: "/"}}}
node_label: host
sources: {prometheus: {basic_auth: {username: a, password: b}, tls_config: {server_name: x}}}
"""
_POLICIES = tuple(path.read_bytes() for path in sorted((ROOT / "deploy" / "policies").glob("*.yaml")))


def _write_seeds() -> tuple[bytes, ...]:
    from tests.sources.writing import STALE, body, series

    at = int(NOW * 1000)
    return (
        body([series("load", (0.7, at), (0.8, at - 5000), node="a"), series("x", (1.0, at), a="b")]),
        body([series("load", (STALE, at), node="a", cpu="0"), series("node_load", (2.0, at), instance="b:9100")]),
    )


def _manifest(name: str, decode: Callable[[bytes], object], *seeds: bytes, **allowed: type[Exception]) -> Decoder:
    return Decoder(
        name=name,
        decode=decode,
        allowed=tuple(allowed.values()),
        largest=MAX_MANIFEST_BYTES,
        seeds=seeds,
        form="yaml",
        bytes_per_byte=1500,  # a value of two bytes is an event and two marks of PyYAML, and then a name with its line
        steps_per_byte=4 * STEPS_PER_BYTE,  # PyYAML itself takes half of the others' bound
    )


def _rights(name: str, decode: Callable[[bytes], object], *seeds: bytes, form: str = "json") -> Decoder:
    return Decoder(
        name=f"rights-{name}",
        decode=decode,
        allowed=(FilesError,),
        largest=PAYLOAD,
        seeds=seeds,
        form=form,
        bytes_per_byte=3 * BYTES_PER_BYTE,  # each list of claims is copied, to be compared in one order
    )


DECODERS: tuple[Decoder, ...] = (
    Decoder(
        name="bus-sample",
        decode=partial(decode_samples, SUBJECT, arrived=NOW, sequence=1),
        allowed=(),  # refusals are in the result
        largest=MAX_SAMPLES_BYTES,
        seeds=_golden("bus/sample.json"),
    ),
    Decoder(
        name="bus-newest",
        decode=_decode_newest,
        allowed=(),  # refusals are in the result
        largest=MAX_SAMPLES_BYTES,
        seeds=_golden("bus/sample.json"),
    ),
    Decoder(
        name="bus-table",
        decode=partial(decode_table, TABLE_SUBJECT, arrived=NOW, sequence=1),
        allowed=(),  # refusals are in the result
        largest=MAX_TABLE_BYTES,
        seeds=(*_golden("bus/table.json"), *_TABLES),
        bytes_per_byte=100,  # a value of two bytes may have a time, and so a reading, of its own
    ),
    _record("learned", decode_learned),
    _record("lease", decode_lease),
    _record("node-facts", decode_node_facts),
    _record("node-allocation", decode_allocation),
    _record("node-released", decode_node_release),
    _record("node-hold", decode_hold),
    _record("node-inventory", decode_inventory),
    _record("breaker", decode_breaker),
    _record("outcome-placed", decode_outcome),
    _record("outcome-run", decode_outcome),
    _record("outstanding", decode_outstanding),
    _record("pause", decode_pause),
    _record("node-metrics", decode_node_samples),
    _record("node-table", partial(decode_stored_table, TableKey("my-program", Part(2, 1)))),
    _record("pod", decode_pod),
    _record("policy", partial(decode_policy, PolicyKey("default", "demo"))),
    _record("refused-labels", decode_refused_labels),
    _record("refused-marks", decode_refused_marks),
    _record("source", decode_source_state),
    _record("synced", decode_synced),
    _record("process", decode_process),
    _record("expected", decode_expected),
    _record("window", partial(decode_series, parse_window_key("node-1.load.600.quantiles"))),
    _record("verdict", decode_verdict),
    *(
        Decoder(
            name=f"event-{data.TYPE}",
            decode=partial(decode_event, headers(event_of(data, Cause("1", 2), time=NOW))),
            allowed=(InvalidInputError,),
            largest=PAYLOAD,
            seeds=(msgspec.json.encode(data),),
        )
        for data in (
            ViolationStarted(node="a.b", namespace="default", policy="p", strategy="deschedule", value="2"),
            PolicyRefused(
                namespace="default", policy="p", policy_uid="u", generation=1, problems=("a = 1: b",), total=1
            ),
        )
    ),
    _text("subject-sample", parse_samples_subject, SUBJECT, allowed=(InvalidInputError,)),
    _text("subject-table", parse_tables_subject, TABLE_SUBJECT, allowed=(InvalidInputError,)),
    _text("key-table", parse_node_table_key, "_table.machine.4-2", allowed=(InvalidInputError,)),
    _text("key-node", parse_node_key, "a_b.metrics", allowed=(InvalidInputError,)),
    _text("key-verdict", NODE_VERDICTS.parse_key, "a_b", allowed=(InvalidInputError,)),
    _text("key-hold", NODE_HOLDS.parse_key, "a_b", allowed=(InvalidInputError,)),
    _text("key-agent", parse_agent_key, "rl-priority", allowed=(InvalidInputError,)),
    _text("key-breaker", parse_breaker_key, "a_b", allowed=(InvalidInputError,)),
    _text("key-refusals", parse_refusals_key, "a_b", allowed=(InvalidInputError,)),
    _text("key-refused-marks", parse_refused_marks_key, "a_b.marks", allowed=(InvalidInputError,)),
    _text("key-policy", parse_policy_key, "default.a_b", allowed=(InvalidInputError,)),
    _text("key-pod", parse_pod_key, "default.a_b", allowed=(InvalidInputError,)),
    _text("key-process", parse_process_key, "evaluate.0123456789abcdef", allowed=(InvalidInputError,)),
    _text("key-expected", parse_expected_key, "_expected.evaluate", allowed=(InvalidInputError,)),
    _text("key-window", parse_window_key, "a_b.x=y.600.quantiles", allowed=(InvalidInputError,)),
    _text("quantity", parse_quantity, "1.5Gi", "1e3", "-1500m", allowed=(QuantityError,)),
    _text("annotation", _decode_annotation, "155597063.5", "2E+9", "N/A", allowed=()),
    _text("duration", parse_duration, "1h30m", "-1.5s", allowed=(DurationError,)),
    _request("args", decode_args, "extender/[fp][ir][li]*.json"),
    _request("preempt", decode_preemption_args, "extender/preempt*.json"),
    _request("bind", decode_binding, "", _BINDING),
    _request("pod", _decode_asked_pod, "", json.dumps(_GPU_POD).encode()),
    Decoder(
        name="prometheus",
        decode=_decode_prometheus,
        allowed=(AnswerError,),
        largest=prometheus.MAX_ANSWER_BYTES,
        seeds=tuple(json.dumps(json.loads(each)["body"]).encode() for each in _golden("prometheus/*.json")),
    ),
    Decoder(
        name="dns",
        decode=partial(dns_addresses, number=7),
        allowed=(DnsError,),
        largest=MAX_DNS_ANSWER,
        seeds=(b"\0\7\x81\x80\0\1\0\1\0\0\0\0\1a\0\0\1\0\1\xc0\x0c\0\1\0\1\0\0\0\x1e\0\4\x7f\0\0\1",),
        form="text",
    ),
    Decoder(
        name="custom-metrics",
        decode=partial(decode_metric_values, metric="health_metric"),
        allowed=(InvalidInputError,),
        largest=custom_metrics.MAX_ANSWER_BYTES,
        seeds=_golden("sources/custom-metrics-v*.json"),
    ),
    Decoder(
        name="custom-metrics-group",
        decode=decode_group,
        allowed=(InvalidInputError,),
        largest=custom_metrics.MAX_ANSWER_BYTES,
        seeds=_golden("sources/custom-metrics-group.json"),
    ),
    Decoder(
        name="custom-metrics-names",
        decode=decode_metric_names,
        allowed=(InvalidInputError,),
        largest=custom_metrics.MAX_ANSWER_BYTES,
        seeds=(b'{"kind": "APIResourceList", "resources": [{"name": "nodes/health", "kind": "MetricValueList"}]}',),
    ),
    Decoder(
        name="node-metrics",
        decode=partial(decode_node_metrics, metrics=METRICS),
        allowed=(InvalidInputError,),
        largest=metrics_server.MAX_ANSWER_BYTES,
        seeds=_golden("sources/node-metrics.json"),
    ),
    Decoder(
        name="remote-write",
        decode=_decode_write,
        allowed=(WriteError,),
        largest=remote_write.MAX_BODY_BYTES,
        seeds=_write_seeds(),
        form="write",
        bytes_per_byte=22 * BYTES_PER_BYTE,  # a block of snappy unpacks to 22 times its size
        steps_per_byte=22 * STEPS_PER_BYTE,
    ),
    Decoder(
        name="kubernetes-list",
        decode=_list_of(PODS),
        allowed=(UnavailableError,),
        largest=kubernetes.MAX_OBJECT_BYTES,
        seeds=(_PAGE.encode(),),
    ),
    *(
        Decoder(
            name=f"kubernetes-{name}",
            decode=_event_of(resource, record),
            allowed=(UnavailableError,),
            largest=kubernetes.MAX_OBJECT_BYTES,
            seeds=(json.dumps({"type": "MODIFIED", "object": found}).encode(),),
        )
        for name, resource, record, found in cast(
            "tuple[tuple[str, Resource[Any], Callable[[Any], object], object], ...]",
            (
                ("policy", POLICIES, policy_record, _OBJECT),
                ("node", LABELLED_NODES, node_facts, _OBJECT),
                ("pod", PODS, pod_record, _OBJECT),
                ("gpu-node", GPU_NODES, node_inventory, _GPU_NODE),
                ("gpu-pod", OBSERVED_PODS, _decode_observed_pod, _GPU_POD),
            ),
        )
    ),
    Decoder(
        name="kubernetes-error",
        decode=lambda data: error_of("get nodes", code=403, body=data),
        allowed=(),
        largest=kubernetes.MAX_OBJECT_BYTES,
        seeds=(json.dumps(_STATUS).encode(),),
    ),
    _manifest("manifest", partial(parse_file, "a.yaml", ".yaml"), *_POLICIES),
    Decoder(
        name="manifest-json",
        decode=partial(parse_file, "a.json", ".json"),
        allowed=(),
        largest=MAX_MANIFEST_BYTES,
        seeds=(json.dumps({"apiVersion": "telemetry.intel.com/v1alpha1", "kind": "TASPolicy", **_OBJECT}).encode(),),
    ),
    _manifest("manifest-lint", partial(lint, "a.yaml"), *_POLICIES),
    Decoder(
        name="instant-query",
        decode=lambda data: parse_instant_query(parse_parameters("", data), NOW),
        allowed=(InvalidInputError,),
        largest=MAX_QUERY_BYTES,
        seeds=(
            b"query=load1&time=1767225605.1&timeout=5s",
            b"query=load1%7Binstance%3D%22node-1%22%2C+source%3D%27machine%27%2C%7D&time=2026-01-01T00%3A00%3A05Z",
            b"query=%7B__name__%3D%22load-1%22%7D",
        ),
        form="text",
    ),
    _manifest("source-config", _decode_source_config, _SOURCE_CONFIG, a=ManifestError, b=DocumentError),
    _manifest("kubeconfig", _of_file(_decode_kubeconfig), _KUBECONFIG, a=ConfigurationError),
    _rights("auth", rights.read_auth, rights.AUTH.encode(), form="text"),
    _rights("account", rights.read_account, rights.claims(rights.ACCOUNT)),
    _rights("credentials", rights.read_credentials, *rights.CREDENTIALS, form="text"),
    _rights("user", rights.read_user, *map(rights.claims, rights.USERS)),
    _rights("issued", _of_file(rights.read_issued), json.dumps({"tas-labels": [rights.PUBLIC]}).encode()),
    _rights("revoked", _of_file(rights.read_revoked), json.dumps({rights.PUBLIC: 1767225605}).encode()),
    _rights("earlier", _of_file(rights.read_earlier), b'{"refused":true}'),
    _rights("key", _of_file(rights.read_key), rights.SEED, form="text"),
    _rights("password", _of_file(rights.read_password), b"c0123456789abcdef0123456789abcdef\n", form="text"),
)


def decoder(name: str) -> Decoder:
    """The decoder with this name."""
    return next(each for each in DECODERS if each.name == name)


def clock() -> float:
    """Processor time of this thread, in seconds."""
    return time.thread_time()
