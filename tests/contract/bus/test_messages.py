"""Messages and records of the bus equal the sample files, when read and when written."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus.connection import DEFAULT_VALUE_BYTES
from bus.kinds import NODE_SAMPLES
from bus.records.agents import LearnedState, decode_learned, encode_learned
from bus.records.allocations import decode_allocation
from bus.records.breakers import (
    decode_breaker,
    decode_outstanding,
    decode_pause,
    encode_breaker,
    encode_outstanding,
    encode_pause,
)
from bus.records.codec import encode
from bus.records.devices import NodeHold, NodeInventory, decode_hold, decode_inventory
from bus.records.nodes import (
    NodeFacts,
    NodeRelease,
    StoredSamples,
    decode_node_facts,
    decode_node_release,
    decode_node_samples,
)
from bus.records.outcomes import decode_outcome, encode_outcome
from bus.records.pods import PodRecord, decode_pod
from bus.records.policies import PolicyRecord, decode_policy, encode_policy
from bus.records.refusals import (
    decode_refused_labels,
    decode_refused_marks,
    encode_refused_labels,
    encode_refused_marks,
)
from bus.records.samples import decode_samples, encode_samples
from bus.records.sources import decode_source_state, encode_source_state
from bus.records.synced import Synced, decode_synced, encode_synced
from bus.records.verdicts import decode_verdict, encode_verdict
from bus.records.windows import decode_series
from bus.records.workers import decode_expected, decode_process, encode_expected, encode_process
from bus.subjects import parse_window_key
from tas.allocation.node import NodeAllocation, Recent
from tas.enforcing.pod import PodKey
from tas.errors import MAX_TEXT, InvalidInputError
from tas.gpu.assignment import Assignment, Share, SlotAssignment
from tas.gpu.hold import Held, Phase
from tas.gpu.inventory import Card, Inventory, Link, NumaNode
from tas.gpu.labels import LabelProblem
from tas.gpu.policy_facts import PolicyFacts
from tas.outcomes.outcome import Outcome, Placed, Result
from tas.policy.directory import FileProblem, FileProblems
from tas.policy.policy import OnStale, Operator, Policy, PolicyKey, Problem, Rule, Strategy, StrategyType
from tas.policy.rules import State
from tas.processes.expected import Expected
from tas.processes.process import LastAnswer, NotReady, Process, RefusedSamples
from tas.samples.pace import LateMetric
from tas.samples.sample import Scrape
from tas.sources.result import RefusalReason, SuspectReason
from tas.sources.state import LostNodes, RefusedValues, SourceMetric, SourceState, as_stored
from tas.values.quantity import parse_quantity
from tas.verdict.freeze import Breaker, Pause, Trip
from tas.verdict.outstanding import Announcement
from tas.verdict.refused import RefusedLabel
from tas.verdict.verdict import (
    ABSENT,
    HOLD,
    DesiredKind,
    DesiredLabel,
    LabelVerdict,
    NodeVerdict,
    PolicyVerdict,
    StrategyVerdict,
)
from tas.windows.key import StoredSeries

GOLDEN = Path(__file__).parents[1] / "golden" / "bus"
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
YEAR = NEW_YEAR.timestamp()
KEY = PolicyKey("default", "demo")

SAMPLE = Scrape(
    source="my-program",
    measured=YEAR,
    arrived=YEAR + 1,
    sequence=1767225600000043,
    window=60,
    metrics={
        "health_metric": parse_quantity("2"),
        "load1": parse_quantity("0.5"),
        "memory_available_bytes": parse_quantity("2Gi"),
    },
)
SCRAPES = (
    Scrape(
        source="machine",
        measured=YEAR + 0.25,
        arrived=YEAR + 0.2515,
        sequence=1767225600000042,
        metrics={"cpu_ratio": parse_quantity("0.125"), "load1": parse_quantity("0.73")},
    ),
    Scrape(
        source="my-program",
        measured=YEAR,
        arrived=YEAR + 1,
        sequence=1767225600000043,
        window=60,
        metrics={"health_metric": parse_quantity("2"), "memory_available_bytes": parse_quantity("2Gi")},
    ),
)
RELEASE = NodeRelease(time=NEW_YEAR + timedelta(seconds=5), by="ann@workstation")
FACTS = NodeFacts(
    uid="0f9b7a2e-6f0e-4e43-9d0c-3f6d3f8d9a11",
    labels={"kubernetes.io/hostname": "ip-10-0-0-1.ec2.internal", "topology.kubernetes.io/zone": "eu-1a"},
    created=NEW_YEAR,
    addresses=("10.0.0.1", "ip-10-0-0-1.ec2.internal"),
    addresses_version="81234",
)
OUTSTANDING = {"0f9b7a2e6f0e": Announcement(since=NEW_YEAR.timestamp() + 0.25)}
POD = PodRecord(
    policy="demo-policy",
    uid="7d0f5c1a-3f4e-4d55-8a41-1f0c5e9b2a60",
    node="node-1",
    bound_since=NEW_YEAR,
    resource_version="4711",
)
WINDOW_KEY = parse_window_key("node-1.cpu.300.quantiles")
WINDOW = StoredSeries(
    times={"my-program": YEAR},
    node_uid="0f9b7a2e-6f0e-4e43-9d0c-3f6d3f8d9a11",
    quantiles=[(117815039, YEAR - 10, [0.5], b""), (117815040, YEAR, [0.73], b"")],
)
SYNCED = Synced(
    epoch="2026-01-01T00:00:00.123456789Z",
    count=12,
    time=NEW_YEAR + timedelta(seconds=5),
    writer="directory",
    cluster=False,
    file_problems=FileProblems(
        listed=(
            FileProblem(
                origin="web.yaml",
                subject="policy default/web",
                field="spec.strategies.dontschedule.onStale",
                value="'hold'",
                reason="must be one of keep, pass, fail",
            ),
        ),
        others=2,
    ),
)
POLICY = PolicyRecord(
    policy=Policy(
        key=KEY,
        stale_after=30,
        strategies={
            StrategyType.DONTSCHEDULE: Strategy(
                type=StrategyType.DONTSCHEDULE,
                on_stale=OnStale.KEEP,
                keep_for=3600.0,
                rules=(
                    Rule(metric="health_metric", operator=Operator.EQUALS, target=parse_quantity("1")),
                    Rule(metric="cpu_ratio", operator=Operator.GREATER_THAN, target=parse_quantity("0.9")),
                ),
            ),
            StrategyType.SCHEDULEONMETRIC: Strategy(
                type=StrategyType.SCHEDULEONMETRIC,
                on_stale=OnStale.LOWEST,
                rules=(Rule(metric="load1", operator=Operator.LESS_THAN, target=parse_quantity("0")),),
            ),
        },
    ),
    uid="5e1c3f39-4b5c-5ad1-8f8a-2d2f0c4b7e10",
    generation=3,
    origin="demo.yaml",
    problems=(
        Problem(
            field="spec.strategies.dontshedule",
            value="{}",
            reason="no strategy of this name, ignored; did you mean dontschedule?",
            refused=False,
        ),
    ),
)
VERDICT = NodeVerdict(
    node_uid="0f9b7a2e-6f0e-4e43-9d0c-3f6d3f8d9a11",
    nodes_revision=1767225600000107,
    policies_revision=1767225600000012,
    time=YEAR + 0.25,
    policies={
        KEY: PolicyVerdict(
            uid="5e1c3f39-4b5c-5ad1-8f8a-2d2f0c4b7e10",
            generation=3,
            strategies={
                StrategyType.DONTSCHEDULE: StrategyVerdict(state=State.MET, changed=YEAR, value="0"),
                StrategyType.DESCHEDULE: StrategyVerdict(
                    state=State.VIOLATED,
                    changed=YEAR + 0.25,
                    value="2",
                    labels={
                        "demo": LabelVerdict(
                            state=State.VIOLATED,
                            desired=DesiredLabel(DesiredKind.SET, "violating"),
                            violated_since=YEAR + 0.25,
                        )
                    },
                    sampled=("health_metric",),
                    before=State.MET,
                ),
                StrategyType.LABELING: StrategyVerdict(
                    state=State.UNKNOWN,
                    changed=YEAR,
                    labels={
                        "telemetry.aware.scheduling.demo/card0": LabelVerdict(
                            state=State.MET, desired=ABSENT, met_since=YEAR
                        ),
                        "telemetry.aware.scheduling.demo/card1": LabelVerdict(state=State.UNKNOWN, desired=HOLD),
                    },
                    sampled=("card0_celsius", "card1_celsius@my-program"),
                ),
            },
            holds_prefix=True,
        )
    },
)
SOURCE = SourceState(
    kind="custom-metrics",
    holder="collect-7d9f-1",
    since=YEAR,
    time=YEAR + 60,
    period=1,
    last_success=YEAR + 59.5,
    last_failure=YEAR + 10,
    metrics={
        "health_metric": SourceMetric(nodes=3),
        "node_load1": SourceMetric(missing="the custom metrics API does not know it (404)"),
    },
    polls=60,
    failures=1,
    samples=177,
    refused={
        RefusalReason.NODE: RefusedValues(
            count=59,
            example="health_metric of web-1: describedObject.kind = 'Pod': must be Node",
            time=YEAR + 59.5,
        )
    },
    suspect={
        SuspectReason.JUMP: RefusedValues(
            count=1,
            example="health_metric of node-2: value = 644245923: jumped for one scrape, from 35 and back to 34",
            time=YEAR + 42,
        )
    },
    lost=LostNodes(metric="health_metric", count=2, nodes=5, since=YEAR + 30, names=("node-4", "node-5")),
)
SHORTENED_SOURCE = SourceState(
    kind="prometheus",
    holder="collect-7d9f-1",
    since=YEAR,
    time=YEAR + 60,
    period=15,
    metrics={"node_load1": SourceMetric(missing="the query has no result")},
    polls=4,
    without_tables="TABLES cannot be read or created: STREAM.CREATE.TABLES: insufficient storage resources available "
    "(10047)",
    metrics_left_out=2200,
    missing_left_out=2199,
)
REFUSED = (
    RefusedLabel(
        label="demo",
        value="violating",
        reason="nodes \"NODE\" is forbidden: ValidatingAdmissionPolicy 'node-labels' denied request: ask the team",
        count=4,
        nodes=("node-1", "node-2", "node-3"),
    ),
    RefusedLabel(
        label="telemetry.aware.scheduling.demo/card0",
        reason="nodes \"NODE\" is forbidden: ValidatingAdmissionPolicy 'node-labels' denied request: ask the team",
        count=1,
        nodes=("node-1",),
    ),
)
REFUSED_MARKS = (
    RefusedLabel(
        label="taint telemetry.aware.scheduling/demo",
        value="NoSchedule",
        reason="nodes \"NODE\" is forbidden: ValidatingAdmissionPolicy 'node-taints' denied request: ask the team",
        count=4,
        nodes=("node-1", "node-2", "node-3"),
    ),
)

BREAKER = Breaker(
    nodes={"ip-10-0-0-1.ec2.internal": 48213, "node-1": 48190}, trip=Trip(since=YEAR, limit=2, wanted=3, selected=4)
)
PAUSE = Pause(by="ann@laptop", since=YEAR, reason="the metric is wrong")

I915, TILES, MONITORING = (f"gpu.intel.com/{name}" for name in ("i915", "tiles", "i915_monitoring"))
OF_A_CARD = {I915: 10, "gpu.intel.com/memory.max": 17179869184, TILES: 2}
ALLOCATION = NodeAllocation(
    uid="0f9b7a2e-6f0e-4e43-9d0c-3f6d3f8d9a11",
    capacity={"cpu": 8000, "memory": 33554432000, "pods": 110},
    allocatable={"cpu": 7500, "memory": 31457280000, "pods": 110},
    requested={"cpu": 1250, "memory": 2147483648, "pods": 2},
    limited={"cpu": 2500, "memory": 2147483648},
    recent=(Recent(1795432100.0, (("cpu", 250), ("memory", 1073741824))),),
)

INVENTORY = NodeInventory(
    uid="0f9b7a2e-6f0e-4e43-9d0c-3f6d3f8d9a11",
    inventory=Inventory(
        cards=(Card(number=0, capacity=OF_A_CARD), Card(number=1, capacity=OF_A_CARD)),
        node={MONITORING: 1},
        pci_groups=((0, 1),),
        links=(Link(card=0, tile=0, partner=1, partner_tile=1),),
        numa=(NumaNode(0, (0,)), NumaNode(1, (1,))),
        problems=(
            LabelProblem(field="allocatable gpu.intel.com/millicores", value="'1.5'", reason="must be a whole number"),
        ),
    ),
    facts=PolicyFacts(
        disabled={1: ("gpu-health",)},
        evicted={1: ("gpu-health",)},
        preferred=(0,),
        disabled_tiles={0: {1: ("gpu-health",)}},
        evicted_tiles={0: {1: ("gpu-health",)}},
        preferred_tiles={0: (0,)},
        problems=(
            LabelProblem(
                field="telemetry.aware.scheduling.gpu-health/gas-disable-gpu0",
                value="'true'",
                reason="the name must end with a card such as card0",
            ),
        ),
    ),
)
NODE_HOLD = NodeHold(
    uid="0f9b7a2e-6f0e-4e43-9d0c-3f6d3f8d9a11",
    pods={
        "7d0f5c1a-3f4e-4d55-8a41-1f0c5e9b2a60": Held(
            pod=PodKey("default", "web-1"),
            assignment=Assignment(
                slots=(
                    SlotAssignment(container="web", shares=(Share(card=0, amounts={I915: 1, TILES: 1}, tiles=(0,)),)),
                    SlotAssignment(container="proxy"),
                ),
                node_amounts={MONITORING: 1},
            ),
            phase=Phase.RESERVED,
            until=YEAR + 65,
            nanoseconds=1767225600000000042,
        ),
        "9e2b4c7d-1a5f-4b0e-8c3d-6f7a8b9c0d1e": Held(
            pod=PodKey("default", "old-1"),
            assignment=Assignment(
                slots=(SlotAssignment(container="main", shares=(Share(card=1, amounts={I915: 1}),)),)
            ),
            phase=Phase.BOUND,
            verified=False,
        ),
    },
)

PLACED = Placed(
    namespace="default",
    uid=POD.uid,
    node="ip-10-0-0-1.ec2.internal",
    at=YEAR,
    requests={"cpu": 250, "memory": 1073741824},
)
RUN = Outcome(
    namespace="default",
    uid=POD.uid,
    node="ip-10-0-0-1.ec2.internal",
    container="main",
    restart=1,
    result=Result.FAILED,
    at=YEAR + 600.5,
    labels={"app": "web"},
    started=YEAR + 60,
    finished=YEAR + 600,
    previous_finished=YEAR + 50,
)
LEARNED = LearnedState(
    agent="rl-priority",
    sequence=1767225600000044,
    since=YEAR + 0.5,
    state={
        "version": 3,
        "rewards": [[18345607124885091234, [[11506816592984355940, 0.9, YEAR + 0.5]]]],
        "runs": [[17177404461033930921, "failed"]],
    },
)

PROCESS = Process(
    version="0.1.0",
    name="tas-all-7c9f5d-x2k4p-1",
    started=YEAR,
    workers={"collect": "", "evaluate": "NODES: waiting for the complete list", "extender": ""},
    leases=("collect.prometheus", "labels"),
    behind={"collect": {"prometheus": 12.5}},
    lag={"NODES": 3},
    bus="all: KV_PODS is missing, and the user tas-all may not create it: tas run keeper does",
    answers={
        "filter": LastAnswer(
            time=YEAR + 600, status=503, error="NODES: waiting for the complete list", requests=12, failed=2
        )
    },
    expires={
        "bus": datetime(2027, 1, 1, tzinfo=UTC).timestamp(),
        "cert": datetime(2026, 3, 1, tzinfo=UTC).timestamp(),
    },
    waiting_labels={"demo": 40},
    refused_samples=[
        RefusedSamples(
            "my-program",
            "value",
            3,
            "sample node-1/my-program: metrics.load1 = 'NaN': must be a Quantity of Kubernetes",
            YEAR + 600,
        )
    ],
    late_metrics=[LateMetric("load1", "prometheus", YEAR + 600, 5.0, True)],
    concerns={"labels": ("2 labels of policies on nodes are set and removed again and again",)},
    newest_pods={"placed": YEAR + 540},
    not_ready={"LabelsNotWritten": NotReady(2, ("default/demo", "default/other"))},
    time=YEAR + 660,
)
EXPECTED = Expected(count=2, dismissed="anna@admin-1")

RECORDS: list[tuple[str, Any, Callable[[Any], bytes], Callable[[bytes], Any]]] = [
    ("learned.json", LEARNED, encode_learned, decode_learned),
    ("outcome-placed.json", PLACED, encode_outcome, decode_outcome),
    ("outcome-run.json", RUN, encode_outcome, decode_outcome),
    ("breaker.json", BREAKER, encode_breaker, decode_breaker),
    ("pause.json", PAUSE, encode_pause, decode_pause),
    ("outstanding.json", OUTSTANDING, encode_outstanding, decode_outstanding),
    ("node-metrics.json", StoredSamples(SCRAPES), NODE_SAMPLES.encode, decode_node_samples),
    ("node-facts.json", FACTS, encode, decode_node_facts),
    ("node-released.json", RELEASE, encode, decode_node_release),
    ("node-hold.json", NODE_HOLD, encode, decode_hold),
    ("node-allocation.json", ALLOCATION, encode, decode_allocation),
    ("node-inventory.json", INVENTORY, encode, decode_inventory),
    ("process.json", PROCESS, encode_process, decode_process),
    ("expected.json", EXPECTED, encode_expected, decode_expected),
    ("policy.json", POLICY, encode_policy, lambda data: decode_policy(KEY, data)),
    ("pod.json", POD, encode, decode_pod),
    ("refused-labels.json", REFUSED, encode_refused_labels, decode_refused_labels),
    ("refused-marks.json", REFUSED_MARKS, encode_refused_marks, decode_refused_marks),
    ("source.json", SOURCE, encode_source_state, decode_source_state),
    ("source-shortened.json", SHORTENED_SOURCE, encode_source_state, decode_source_state),
    ("synced.json", SYNCED, encode_synced, decode_synced),
    ("verdict.json", VERDICT, encode_verdict, decode_verdict),
    ("window.json", WINDOW, encode, lambda data: decode_series(WINDOW_KEY, data)),
]


def golden(name: str) -> Any:
    return json.loads((GOLDEN / name).read_bytes())


def decode_sample(data: bytes) -> Scrape | None:
    node, scrape, refused = decode_samples(
        "tas.samples.ip-10-0-0-1_ec2_internal.my-program", data, arrived=YEAR + 1, sequence=SAMPLE.sequence
    )
    assert (node, refused) == ("ip-10-0-0-1.ec2.internal", ())
    return scrape


FREE = {
    *("metrics", "labels", "spec", "nodes", "node", "amounts", "nodeAmounts", "pods", "facts", "evaluate"),
    *("allocatable", "capacity", "limited", "requested", "requests", "state"),
    *("allocatable", "capacity", "limited", "requested", "times"),
    *("workers", "behindSeconds", "lag", "answers", "expires", "waitingLabels", "concerns", "newestPods"),
    "notReady",
}
"""Fields with objects whose keys are names or numbers."""


def objects_within(document: Any) -> Iterator[dict[str, Any]]:
    """Every object with fixed fields: its keys are not names of metrics, labels or strategies."""
    if isinstance(document, dict):
        yield document
        for field, value in document.items():
            if field not in FREE or isinstance(value, list):
                yield from objects_within(value)
    elif isinstance(document, list):
        for value in document:
            yield from objects_within(value)


@pytest.mark.parametrize(
    ("name", "value", "encode", "decode"), RECORDS, ids=lambda each: each if isinstance(each, str) else ""
)
def test_a_record_is_written_and_read_as_in_its_file(
    name: str, value: Any, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
) -> None:
    assert json.loads(encode(value)) == golden(name)
    assert b"\n" not in encode(value)
    assert decode((GOLDEN / name).read_bytes()) == value


@pytest.mark.parametrize(
    ("name", "value", "encode", "decode"), RECORDS, ids=lambda each: each if isinstance(each, str) else ""
)
def test_fields_of_later_versions_are_ignored(
    name: str, value: Any, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
) -> None:
    document = golden(name)
    for each in list(objects_within(document)):
        each["later"] = {"any": ["thing"]}
    assert decode(json.dumps(document).encode()) == value


@pytest.mark.parametrize(
    ("name", "value", "encode", "decode"), RECORDS, ids=lambda each: each if isinstance(each, str) else ""
)
def test_what_is_read_can_be_written_whatever_its_times_are(
    name: str, value: Any, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
) -> None:
    text = (GOLDEN / name).read_text()
    assert decode(text.encode()) == value
    for time in set(re.findall(r'"\d{4}-\d\d-\d\dT[^"]*"', text)):
        try:
            found = decode(text.replace(time, '"0001-01-01T00:00:00+01:00"').encode())  # UTC has no year for this
        except InvalidInputError:
            continue
        encode(found)


def test_a_state_says_what_is_refused_of_which_node() -> None:
    state = msgspec.structs.replace(SOURCE, refused_now={"node-1": {"mean-free-cpu": "no number"}})
    written = encode_source_state(state)
    assert json.loads(written)["refusedNow"] == {"node-1": {"mean-free-cpu": "no number"}}
    assert decode_source_state(written) == state


@pytest.mark.parametrize("mark", ["m", '"', "\N{PILE OF POO}"], ids=["letters", "quotes", "four bytes"])
def test_a_stored_state_fits_into_a_message_whatever_its_names_and_texts_are(mark: str) -> None:
    names = [f"{mark * 240}{number:05}" for number in range(1500)]
    text = mark * MAX_TEXT
    state = msgspec.structs.replace(
        SOURCE,
        problem=text,
        metrics={name: SourceMetric(missing=text) for name in names},
        refused={reason: RefusedValues(count=10**9, example=text, time=YEAR) for reason in RefusalReason},
        refused_now={f"{number:0253}": dict.fromkeys(names[:20], text) for number in range(20)},
    )
    stored = as_stored(state)
    written = encode_source_state(stored)
    assert 1 << 19 < len(written) <= DEFAULT_VALUE_BYTES
    assert decode_source_state(written) == stored


def test_a_refusal_reason_of_a_later_version_is_ignored() -> None:
    document = golden("source.json")
    document["refused"].append(document["refused"][0] | {"reason": "later"})
    assert decode_source_state(json.dumps(document).encode()) == SOURCE


@pytest.mark.parametrize(
    ("state", "rejects", "written"),
    [
        (State.VIOLATED, True, {"rejects": True}),
        (State.VIOLATED, False, {}),
        (State.UNKNOWN, False, {}),
        (State.UNKNOWN, True, {"rejects": True}),
        (State.MET, False, {}),
    ],
)
def test_a_verdict_contains_whether_filter_rejects(state: State, rejects: bool, written: dict[str, bool]) -> None:
    strategy = StrategyVerdict(state=state, changed=YEAR, rejects=rejects)
    policy = PolicyVerdict(uid="u", generation=1, strategies={StrategyType.DONTSCHEDULE: strategy})
    verdict = NodeVerdict(node_uid="n", nodes_revision=1, policies_revision=1, policies={KEY: policy})
    document = json.loads(encode_verdict(verdict))
    strategy_record = document["policies"][0]["strategies"]["dontschedule"]
    assert strategy_record == {"state": state.value, "changed": YEAR} | written
    assert decode_verdict(encode_verdict(verdict)) == verdict


def test_a_sample_is_read_as_in_its_file() -> None:
    assert decode_sample((GOLDEN / "sample.json").read_bytes()) == SAMPLE
    assert decode_sample(json.dumps(golden("sample.json") | {"later": 1}).encode()) == SAMPLE


def test_a_sample_needs_only_metrics() -> None:
    scrape = decode_sample(json.dumps({"metrics": golden("sample.json")["metrics"]}).encode())
    assert scrape is not None
    assert (scrape.metrics, scrape.measured, scrape.window) == (SAMPLE.metrics, YEAR + 1, None)


def test_a_sample_is_written_with_quantities_as_text() -> None:
    assert json.loads(encode_samples(SAMPLE)) == {
        "metrics": {"health_metric": "2", "load1": "0.5", "memory_available_bytes": "2147483648"},
        "measured": "2026-01-01T00:00:00Z",
        "window": 60.0,
    }
    assert decode_sample(encode_samples(SAMPLE)) == SAMPLE
