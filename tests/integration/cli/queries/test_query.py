"""`tas publish`, `tas get`, `tas explain` and `tas docs`: their output, and the input that they refuse."""

import asyncio
import base64
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from bus.buckets import HOLDS, NODES, POLICIES, REFUSALS, SAMPLES, SOURCES, VERDICTS
from bus.connection import Bus
from bus.events import Expected, publish_events
from bus.kinds import (
    NODE_FACTS,
    NODE_HOLDS,
    NODE_INVENTORY,
    NODE_SAMPLES,
    NODE_TABLES,
    NODE_VERDICTS,
    PROCESSES,
)
from bus.records.codec import encode
from bus.records.nodes import NodeFacts, encode_node_samples
from bus.records.policies import PolicyRecord, encode_policy
from bus.records.refusals import encode_refused_labels, encode_refused_marks
from bus.records.sources import encode_source_state
from bus.records.verdicts import encode_verdict
from bus.scrapes import publish_scrape, refused_on_arrival
from bus.server import EmbeddedServer, find_binary
from bus.subjects import ProcessKey, policy_key
from cli.publish import Outcome, _outcome
from cli.queries.query import _connected_or_refused
from tas.events.data import ViolationStarted
from tas.events.event import Cause, event_of
from tas.policy.directory import LAST_GOOD, FileProblem, FileProblems
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey, StrategyType
from tas.policy.rules import State
from tas.processes.process import Process
from tas.samples.capacity import SOURCE_LIMIT
from tas.samples.sample import Scrape
from tas.sources.state import SourceState
from tas.values.quantity import parse_quantity
from tas.verdict.refused import RefusedLabel
from tas.verdict.verdict import DesiredKind, DesiredLabel, LabelVerdict, NodeVerdict, PolicyVerdict, StrategyVerdict
from tests.e2e.processes import free_ports
from tests.fuzz.decoders import GOLDEN
from tests.integration.cli.tas import COMMAND, COMMAND_SECONDS, HEALTH, SHORT, Tas
from tests.integration.servers import Server, eventually
from tests.integration.tables import put_tables
from workers.following.synced import write_file_problems, write_synced


@pytest.fixture
def tas(tas: Tas, server: Server) -> Tas:
    """A user whose TAS_BUS is the test's server."""
    tas.environment["TAS_BUS"] = server.url
    return tas


async def published(bus: Bus, sequence: int) -> tuple[str, dict[str, object]]:
    """The subject and the body of a message on SAMPLES."""
    answer = await bus.api(f"STREAM.MSG.GET.{SAMPLES.stream}", {"seq": sequence})
    return answer["message"]["subject"], json.loads(base64.b64decode(answer["message"]["data"]))


async def put_samples(bus: Bus, node: str, metrics: Mapping[str, str], *, ago: float = 0.0) -> None:
    now = time.time()
    values = {metric: parse_quantity(text) for metric, text in metrics.items()}
    scrape = Scrape(source="test", measured=now - ago, arrived=now, sequence=1, metrics=values)
    value = encode_node_samples((scrape,))
    await bus.put(NODES, NODE_SAMPLES.key(node), value, revision=0, read_at=time.monotonic())


async def put_policy(
    bus: Bus, name: str, spec: object, *, namespace: str = "default", origin: str | None = None
) -> None:
    key = PolicyKey(namespace, name)
    policy, problems = parse_policy(key, spec)
    file = f"{name}.yaml" if origin is None else origin
    record = PolicyRecord(policy=policy, uid=f"uid-{name}", generation=7, problems=problems, origin=file)
    await bus.put(POLICIES, policy_key(key), encode_policy(record), revision=0, read_at=time.monotonic())


def rules(*texts: str) -> dict[str, object]:
    split = [text.split() for text in texts]
    return {
        "rules": [
            {"metricname": metric, "operator": operator, "target": int(target)} for metric, operator, target in split
        ]
    }


async def test_publish_puts_one_message_on_the_documented_subject(tas: Tas, bus: Bus) -> None:
    done = await tas("publish", "ip-10-0-0-1.ec2.internal", "load1=1.5", "memory_free_bytes=2Gi", "--json")
    assert done.code == 0
    printed = done.json
    assert printed["node"] == "ip-10-0-0-1.ec2.internal"
    assert printed["metrics"] == {"load1": "1.5", "memory_free_bytes": "2147483648"}
    subject, body = await published(bus, printed["sequence"])
    assert subject == printed["subject"] == "tas.samples.ip-10-0-0-1_ec2_internal.cli"
    assert body["metrics"] == printed["metrics"]


async def test_publish_sends_source_time_and_window_as_given(tas: Tas, bus: Bus) -> None:
    done = await tas(*("publish", "n", "m=-1", "--source", "by-hand", "--measured", "-5m", "--window", "1m", "--json"))
    assert done.code == 0, done.err
    subject, body = await published(bus, done.json["sequence"])
    assert subject == "tas.samples.n.by-hand"
    assert body["window"] == 60.0
    assert body["metrics"] == {"m": "-1"}
    for measured in (str(time.time() - 60), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 60))):
        done = await tas("publish", "n", "m=1", "--measured", measured)
        assert done.code == 0, done.err


async def test_publish_reports_what_became_of_the_samples(tas: Tas, bus: Bus) -> None:
    done = await tas("publish", "node-1", "m=1")
    assert done.code == 0
    assert "m=1 of node-1 published (tas.samples.node-1.cli at " in done.out
    assert "but not stored within" in done.out
    await put_tables(bus, {"node-1": {"m": "1"}}, source="cli", sequence=2**60)  # a sequence of another stream
    assert "but not stored within" in (await tas("publish", "node-1", "m=1")).out
    now = time.time()
    stored = Scrape(source="cli", measured=now, arrived=now, sequence=2**60, metrics={"m": parse_quantity("1")})
    record = encode_node_samples((stored,))
    await bus.put(NODES, NODE_SAMPLES.key("node-1"), record, revision=0, read_at=time.monotonic())
    done = await tas("publish", "node-1", "m=1")
    assert (done.code, done.out.partition(" (")[0]) == (0, "m=1 of node-1 published and stored")
    await write_synced(bus, NODES, await bus.epoch(NODES), count=0, writer="test", cluster=True)
    done = await tas("publish", "node-9", "m=1")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("Error: m=1 of node-9 refused: Kubernetes has no node node-9 (tas.samples.node-9.cli ")
    done = await tas("publish", "node-9", "m=1", "--json")
    assert (done.code, done.json["outcome"], done.json["reason"]) == (1, "refused", "Kubernetes has no node node-9")


async def test_publish_reports_a_metric_without_room(tas: Tas, bus: Bus) -> None:
    await put_samples(bus, "node-1", {f"m{number}": "1" for number in range(SOURCE_LIMIT.pairs)})
    done = await tas("publish", "node-1", "m5=2", "new=1", "--source", "test")
    assert (done.code, done.out) == (1, "")
    assert "new=1 of node-1 refused: no room for 'new' and 0 more: source test has 1000 metrics of " in done.err


async def test_publish_reports_a_time_that_was_refused_at_its_arrival(tas: Tas, bus: Bus) -> None:
    now = time.time() + 60  # by a clock that is ahead of the server's
    scrape = Scrape(source="cli", measured=now, arrived=now, sequence=0, metrics={"m": parse_quantity("1")})
    sequence = await publish_scrape(bus, "node-1", scrape)
    outcome, reason = await _outcome(bus, "node-1", msgspec.structs.replace(scrape, sequence=sequence))
    assert outcome is Outcome.REFUSED
    assert re.fullmatch(r"measured = .*: must be at most 10 s ahead, and is \d+ s ahead", reason)
    await publish_scrape(bus, "node-1", scrape)  # the message above is no longer the last one
    assert await refused_on_arrival(bus, "node-1", "cli", sequence) == ()


async def test_publish_refuses_invalid_input_before_anything_is_sent(tas: Tas, bus: Bus) -> None:
    done = await tas("publish", "Node_1", "m=NaN", "n=1")
    assert done.code == 1
    assert done.out == ""
    assert done.err.splitlines() == [
        "Error: m = 'NaN': 'NaN' is no Kubernetes quantity",
        "       NODE = 'Node_1': must be a lowercase DNS subdomain (RFC 1123)",
    ]
    assert await bus.get(NODES, "n.metrics") is None
    state = (await bus.api(f"STREAM.INFO.{SAMPLES.stream}"))["state"]
    assert state["messages"] == 0


async def test_get_nodes_shows_every_sample_and_nodes_without_samples(tas: Tas, bus: Bus) -> None:
    began = time.time()
    await put_samples(bus, "node-1", {"load1": "1.5", "memory_free_bytes": "2Gi"}, ago=100)
    facts = encode(NodeFacts(uid="u", labels={"zone": "a"}))
    await bus.put(NODES, NODE_FACTS.key("node-2"), facts, revision=0, read_at=time.monotonic())
    done = await tas("get", "nodes", "--json")
    assert done.code == 0
    first, second = done.json
    assert first["node"] == "node-1"
    assert first["labels"] is None
    assert [sample["metric"] for sample in first["samples"]] == ["load1", "memory_free_bytes"]
    assert 99 < first["samples"][0]["age_seconds"] < 100 + time.time() - began
    assert second == {"node": "node-2", "labels": {"zone": "a"}, "samples": []}
    done = await tas("get", "nodes")
    lines = done.out.splitlines()
    assert lines[0].split() == ["NODE", "METRIC", "VALUE", "AGE", "SOURCE"]
    assert re.fullmatch(r"node-1 +load1 +1\.5 +\dm\d\ds +test *", lines[1])
    assert lines[3].split() == ["node-2", "-", "-", "-", "-"]


async def test_get_nodes_shows_rows_of_tables_as_it_shows_records_of_nodes(tas: Tas, bus: Bus) -> None:
    numbers = range(1, 9)
    for number in numbers:
        await put_samples(bus, f"record-{number}.example", {"load1": str(number), "free": "2Gi"}, ago=100)
    await put_tables(
        bus, {f"row-{number}.example": {"load1": str(number), "free": "2Gi"} for number in numbers}, ago=100
    )
    assert len(await NODE_TABLES.listed(bus)) > 1
    documents = (await tas("get", "nodes", "--json")).json
    assert [each["node"] for each in documents] == [
        f"{kind}-{n}.example" for kind in ("record", "row") for n in numbers
    ]
    shown = [[(each["metric"], each["value"], each["source"]) for each in node["samples"]] for node in documents]
    assert shown[:8] == shown[8:]
    assert shown[8] == [("free", "2147483648", "test"), ("load1", "1", "test")]
    assert all(99 < sample["age_seconds"] < 130 for node in documents for sample in node["samples"])
    assert re.search(r"^row-8\.example +load1 +8 +1m\d\ds +test *$", (await tas("get", "nodes")).out, re.MULTILINE)


async def test_of_a_record_and_a_table_the_newest_value_counts_and_no_row_of_an_earlier_node(
    tas: Tas, bus: Bus
) -> None:
    await put_tables(bus, {f"node-{number}": {"load1": "1", "free": "1"} for number in (1, 2, 3)}, ago=100)
    await put_samples(bus, "node-1", {"load1": "7"}, ago=50)
    await put_samples(bus, "node-3", {"load1": "7"}, ago=150)
    facts = encode(NodeFacts(uid="u", labels={}, created=datetime.fromtimestamp(time.time() - 60, UTC)))
    await bus.put(NODES, NODE_FACTS.key("node-2"), facts, revision=0, read_at=time.monotonic())
    documents = {each["node"]: each for each in (await tas("get", "nodes", "--json")).json}
    values = {name: {each["metric"]: each["value"] for each in node["samples"]} for name, node in documents.items()}
    assert values == {"node-1": {"load1": "7", "free": "1"}, "node-2": {}, "node-3": {"load1": "1", "free": "1"}}
    await put_policy(bus, "p", {"strategies": {"dontschedule": rules("load1 GreaterThan 5")}})
    for node, value, state in (("node-1", "7", "violated"), ("node-2", None, "unknown"), ("node-3", "1", "met")):
        (policy,) = (await tas("explain", "node", node, "--json")).json["policies"]
        (rule,) = policy["strategies"][0]["rules"]
        assert (rule["value"], rule["state"]) == (value, state)
    explained = (await tas("explain", "policy", "p", "--json")).json["nodes"]
    states = {node: each["strategies"][0]["state"] for node, each in explained.items()}
    assert states == {"node-1": "violated", "node-2": "unknown", "node-3": "met"}


async def test_get_policies_shows_rules_and_problems(tas: Tas, bus: Bus) -> None:
    await put_policy(bus, "good", {"strategies": {"dontschedule": rules("load1 GreaterThan 5", "m Equals 1")}})
    await put_policy(
        bus, "odd", {"strategies": {"dontschedul": rules("m Equals 1")}, "staleAfter": "30s"}, namespace="other"
    )
    done = await tas("get", "policies", "--json")
    good, odd = done.json
    assert (good["namespace"], good["name"], good["generation"], good["problems"]) == ("default", "good", 7, [])
    assert good["spec"]["strategies"]["dontschedule"]["rules"][0]["metricname"] == "load1"
    assert [problem["field"] for problem in odd["problems"]] == ["spec.strategies.dontschedul"]
    done = await tas("get", "policies")
    assert re.search(r"default/good +dontschedule +load1 GreaterThan 5 or m Equals 1 +- +good\.yaml +-", done.out)
    assert re.search(r"other/odd +- +- +staleAfter 30s +odd\.yaml +spec\.strategies\.dontschedul = ", done.out)


async def test_get_policies_shows_the_options_of_policies_and_strategies(tas: Tas, bus: Bus) -> None:
    selector = {"matchLabels": {"zone": "a"}, "matchExpressions": [{"key": "spot", "operator": "DoesNotExist"}]}
    strategies = {"deschedule": rules("m Equals 1") | {"for": "90s", "onStale": "clear"}, "labeling": {"rules": []}}
    spec = {"suspend": True, "dryRun": True, "staleAfter": "1m", "nodeSelector": selector, "strategies": strategies}
    await put_policy(bus, "p", spec, origin="")
    done = await tas("get", "policies")
    lines = [re.split(r" {2,}", line.rstrip()) for line in done.out.splitlines()]
    assert lines[0] == ["POLICY", "STRATEGY", "RULES", "OPTIONS", "PROBLEMS"]
    assert lines[1][:4] == ["default/p", "deschedule", "m Equals 1", "suspend"]
    options = [line[-1] for line in lines[2:7]]
    assert options == ["dryRun", "nodeSelector zone in (a),!spot", "staleAfter 60s", "onStale clear", "for 90s"]
    assert lines[7][:4] == ["default/p", "labeling", "-", "-"]


async def test_get_policies_shows_the_files_that_are_not_in_force(tas: Tas, bus: Bus) -> None:
    await put_policy(bus, "good", {"strategies": {"dontschedule": rules("m Equals 1")}}, origin="")
    epoch = await bus.epoch(POLICIES)
    await write_synced(bus, POLICIES, epoch, count=1, writer="test", cluster=True)
    problems = (
        FileProblem(origin="a.yaml", subject="file", field="content", value="9 bytes", reason="no YAML"),
        FileProblem(
            origin="b.yaml", subject="policy default/b", field="spec.suspend", value="'x'", reason="no boolean"
        ),
        FileProblem(origin="b.yaml", subject="policy default/c", field="spec", value="[]", reason="no object"),
    )
    await write_file_problems(bus, FileProblems(listed=problems, others=7))
    last = (await bus.epoch(POLICIES)).last_sequence
    await write_file_problems(bus, FileProblems(listed=problems, others=7))
    assert (await bus.epoch(POLICIES)).last_sequence == last
    done = await tas("get", "policies")
    head, policy, *files = done.out.splitlines()
    assert head.split() == ["POLICY", "STRATEGY", "RULES", "OPTIONS", "PROBLEMS"]
    assert re.split(r" {2,}", policy.rstrip()) == ["default/good", "dontschedule", "m Equals 1", "-", "-"]
    assert files == [
        "a.yaml: content = 9 bytes: no YAML; in force: nothing",
        "b.yaml: policy default/b: spec.suspend = 'x': no boolean; in force: nothing",
        "b.yaml: policy default/c: spec = []: no object; in force: nothing",
    ]
    assert "7 more problems of policy files" in done.err
    kept = FileProblem(origin="", subject="policy default/good", field="f", value="v", reason="r", in_force=LAST_GOOD)
    await write_file_problems(bus, FileProblems(listed=(*problems, kept)))
    assert "last good version: the edit of" in (await tas("get", "policies")).out.splitlines()[1]
    assert (await tas("get", "policies", "--json")).json[0]["last_good_version"]
    await write_file_problems(bus, FileProblems(listed=problems, others=7))
    good, first, second = (await tas("get", "policies", "--json")).json
    assert (good["name"], good["problems"], good["last_good_version"]) == ("good", [], False)
    assert (first["name"], first["origin"], second["origin"]) == (None, "a.yaml", "b.yaml")
    assert [(each["field"], each["value"]) for each in second["problems"]] == [("spec.suspend", "'x'"), ("spec", "[]")]


async def test_get_policies_shows_why_the_api_server_refuses_labels_and_marks_of_the_owner(tas: Tas, bus: Bus) -> None:
    for namespace in ("default", "other"):
        await put_policy(bus, "p", {"strategies": {"deschedule": rules("m Equals 1")}}, namespace=namespace)
    refused = RefusedLabel(label="p", value="violating", reason="ask the team", count=4, nodes=("a", "b", "c"))
    await bus.put(REFUSALS, "p", encode_refused_labels((refused,)), revision=0, read_at=time.monotonic())
    mark = RefusedLabel(label="taint telemetry.aware.scheduling/p", reason="no", count=1, nodes=("a",))
    await bus.put(REFUSALS, "p.marks", encode_refused_marks((mark,)), revision=0, read_at=time.monotonic())
    owner, other = (await tas("get", "policies", "--json")).json
    problem, of_mark = owner["problems"]
    assert (owner["namespace"], other["problems"], problem["value"]) == ("default", [], "p=violating")
    text = "the API server refuses the label on 4 nodes (a, b, c and 1 more): ask the team"
    assert problem["reason"] == text
    assert of_mark["reason"] == "the API server refuses the removal of the taint on 1 node (a): no"
    assert text in (await tas("get", "policies")).out


WRONG_CLOCK = """
import time
right = time.time
time.time = lambda: right() + 7200
from cli import main
main()
"""


async def test_ages_count_by_the_clock_of_the_bus(tas: Tas, bus: Bus) -> None:
    """By the wrong clock of a person's machine each value would be stale, and the cause another one than it is."""
    await put_policy(bus, "p", {"strategies": {"dontschedule": rules("m Equals 1")}})
    await put_samples(bus, "node-1", {"m": "1"})
    assert (await tas("publish", "node-1", "m=1", "--source", "program")).code == 0
    tas.command = (sys.executable, "-c", WRONG_CLOCK)
    (explained,) = (await tas.process("explain", "node", "node-1", "--json")).json["policies"]
    nodes = (await tas.process("explain", "policy", "p", "--json")).json["nodes"]
    for policy in (explained, nodes["node-1"]):
        assert [strategy["state"] for strategy in policy["strategies"]] == ["violated"]
    assert (await tas.process("trace", "m", "node-1", "--json")).json["stopped_at"] == "view"


EACH_WITH_A_WRONG_CLOCK = """
import sys, time
right = time.time
time.time = lambda: right() + 7200
from cli import main
for words in sys.argv[1:]:
    sys.argv[1:] = words.split()
    try:
        main()
    except SystemExit:
        print("end of", words)
"""


async def test_lists_and_events_count_by_the_clock_of_the_bus(tas: Tas, bus: Bus) -> None:
    """By a clock that is ahead, a source that works would be late, a new label missing, and no event of this hour."""
    now = time.time()
    await put_policy(bus, "p", {"strategies": {"deschedule": rules("m Equals 1")}})
    await put_samples(bus, "node-1", {"m": "1"})
    desired = DesiredLabel(DesiredKind.SET, "violating")
    label = LabelVerdict(state=State.VIOLATED, desired=desired, violated_since=now)
    strategy = StrategyVerdict(state=State.VIOLATED, changed=now, labels={"p": label})
    policy = PolicyVerdict(uid="uid-p", generation=7, strategies={StrategyType.DESCHEDULE: strategy})
    policies = {PolicyKey("default", "p"): policy}
    verdict = NodeVerdict(node_uid="n", nodes_revision=1, policies_revision=1, policies=policies)
    state = SourceState(kind="prometheus", holder="h", since=now, time=now, period=600.0, polls=1, last_success=now)
    hold = json.loads((GOLDEN / "bus" / "node-hold.json").read_text())
    (reserved,) = [pod for pod in hold["pods"].values() if pod["phase"] == "reserved"]
    reserved["until"] = now + 3600
    for bucket, key, value in (
        (NODES, NODE_FACTS.key("node-1"), encode(NodeFacts(uid="n", labels={}))),
        (NODES, NODE_INVENTORY.key("gpu-1"), (GOLDEN / "bus" / "node-inventory.json").read_bytes()),
        (HOLDS, NODE_HOLDS.key("gpu-1"), json.dumps(hold).encode()),
        (VERDICTS, NODE_VERDICTS.key("node-1"), encode_verdict(verdict)),
        (SOURCES, "prometheus", encode_source_state(state)),
    ):
        await bus.put(bucket, key, value, revision=0, read_at=time.monotonic())
    process = Process(version="1", name="h-1", started=now, workers={"labels": ""}, time=now)
    await PROCESSES.put(bus, ProcessKey("labels", "h-1"), process, revision=0, read_at=time.monotonic())
    started = ViolationStarted(node="node-1", namespace="default", policy="p", strategy="deschedule")
    await publish_events(bus, [Expected(event_of(started, Cause("1", 1), time=now), 0)])
    tas.command = (sys.executable, "-c", EACH_WITH_A_WRONG_CLOCK)
    lists = [f"get {what}" for what in ("nodes", "verdicts", "policies", "sources", "gpus")]
    done = await tas.process(*lists, "events --since 1h", "status --all")
    shown = dict(zip((*lists, "events", "status"), re.split("end of .*\n", done.out), strict=False))
    age = r"(\d\.\ds|\d\ds|\d+m\d\ds)"  # less than an hour, also on a busy machine
    assert re.search(rf"node-1 +m +1 +{age} +test", shown["get nodes"]), done
    assert re.search(rf"node-1 +default/p +deschedule +violated +{age} ", shown["get verdicts"])
    assert "without the label" not in shown["get policies"]
    assert re.search(rf"prometheus .* {age} ago", shown["get sources"])
    assert re.search(rf"reserved for {age}", shown["get gpus"])
    assert "violation.started.v1  nodes/node-1" in shown["events"]
    assert re.search(rf"h-1 +labels +1 +for {age}", shown["status"])


async def test_get_policies_shows_a_label_that_no_worker_writes(tas: Tas, bus: Bus) -> None:
    """`labels` does not run, and without it nothing else reports that the policy has no effect."""
    await put_policy(bus, "p", {"strategies": {"deschedule": rules("m Equals 1")}})
    facts = encode(NodeFacts(uid="n", labels={}))
    stored = await bus.put(NODES, NODE_FACTS.key("node-1"), facts, revision=0, read_at=time.monotonic())
    label = LabelVerdict(
        state=State.VIOLATED, desired=DesiredLabel(DesiredKind.SET, "violating"), violated_since=time.time() - 100
    )
    strategy = StrategyVerdict(state=State.VIOLATED, changed=time.time() - 100, labels={"p": label})
    policy = PolicyVerdict(uid="uid-p", generation=7, strategies={StrategyType.DESCHEDULE: strategy})
    policies = {PolicyKey("default", "p"): policy}
    verdict = NodeVerdict(node_uid="n", nodes_revision=1, policies_revision=1, policies=policies)
    await bus.put(VERDICTS, NODE_VERDICTS.key("node-1"), encode_verdict(verdict), revision=0, read_at=time.monotonic())
    assert "p=violating: nodes without the label for at least 60 s: 1 (node-1)" in (await tas("get", "policies")).out
    assert "must wait for a turn" not in (await tas("get", "policies")).out
    # It runs, and more nodes want their first label than the rate allows.
    process = Process(version="1", name="h-1", started=time.time(), workers={"labels": ""}, waiting_labels={"p": 40})
    for role in ("labels", "collect"):  # what a role says of a worker that is not its own means nothing
        process = msgspec.structs.replace(process, waiting_labels={"p": 40 if role == "labels" else 9999})
        await PROCESSES.put(bus, ProcessKey(role, "h-1"), process, revision=0, read_at=time.monotonic())
    text = "40 nodes must wait for a turn to get the first label of this policy (--label-rate"
    shown = (await tas("get", "policies", "--json")).json[0]["problems"][0]
    assert f"{shown['value']} {shown['reason']}".startswith(text)
    assert text in (await tas("status")).out
    assert text in (await tas("explain", "policy", "p")).out
    assert (await tas("explain", "policy", "p", "--json")).json["waiting"] == 40
    assert f"policy default/p has not labelled this node yet: {text}" in (await tas("explain", "node", "node-1")).out
    await bus.put(
        NODES,
        NODE_FACTS.key("node-1"),
        encode(NodeFacts(uid="n", labels={"p": "violating"})),
        revision=stored,
        read_at=time.monotonic(),
    )
    assert (await tas("explain", "node", "node-1", "--json")).json["waiting"] == {}


async def test_get_policies_shows_which_rules_of_scheduleonmetric_are_ignored(tas: Tas, bus: Bus) -> None:
    await put_policy(bus, "one", {"strategies": {"scheduleonmetric": rules("load1 LessThan 0", "m GreaterThan 0")}})
    done = await tas("get", "policies")
    assert "low load1 first, high m first (ignored)" in done.out


QUERIES = [
    ("get", "nodes"),
    ("get", "policies"),
    ("get", "verdicts"),
    ("explain", "node", "node-1"),
    ("publish", "node-1", "m=1"),
]


@pytest.mark.parametrize("command", QUERIES, ids=" ".join)
async def test_the_error_for_a_server_without_our_streams_says_what_to_do(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    async with EmbeddedServer.start(tmp_path / "store") as theirs:
        tas = Tas(tmp_path / "home")
        done = await tas(*command, "--bus", theirs.url)
    assert done.code == 1
    assert done.err.startswith(f"Error: nothing of TAS is on the bus at {theirs.url}: start `tas run all --bus ")
    assert "TAS_BUS" in done.err


async def test_the_error_for_a_server_without_jetstream_says_what_to_do(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    url = f"nats://127.0.0.1:{port}"
    server = await asyncio.create_subprocess_exec(await find_binary(), "--addr", "127.0.0.1", "--port", str(port))
    try:
        async with Bus.connect(url, name="test", streams=()) as bus:
            await asyncio.wait_for(bus.wait_connected(), 120)
        tas = Tas(tmp_path / "home")
        for command in QUERIES:
            done = await tas(*command, "--bus", url)
            assert done.code == 1
            assert done.err.startswith(f"Error: the nats-server at {url} has no JetStream: start it with --jetstream")
        async with tas.running("run", "evaluate", "--bus", url, *HEALTH) as running:
            problem = await running.logged("bus_problem")
        assert "--jetstream" in problem["error"]
        assert problem["connection"] == "tas-evaluate"
    finally:
        server.terminate()
        await server.wait()


async def test_the_error_for_a_server_whose_jetstream_has_ended_says_what_to_do(tmp_path: Path) -> None:
    """After a full disk nats-server goes on without JetStream: its connections stay, and no call gets an answer."""
    (port,) = free_ports(1)
    url = f"nats://127.0.0.1:{port}"
    server = await asyncio.create_subprocess_exec(await find_binary(), "--addr", "127.0.0.1", "--port", str(port))

    async def give_no_answer(_: object) -> None:
        pass

    try:
        async with Bus.connect(url, name="silent", streams=()) as bus:
            await asyncio.wait_for(bus.wait_connected(), 120)
            await bus.link.subscribe("$JS.API.>", give_no_answer)
            tas = Tas(tmp_path / "home")
            tas.long_limits = False
            done = await tas("get", "nodes", "--bus", url)
        assert done.code == 1
        assert done.err.startswith(f"Error: the nats-server at {url} is connected, and does not answer: ")
        assert "after a full disk, free space and start nats-server again" in done.err
    finally:
        server.terminate()
        await server.wait()


async def test_credentials_that_are_refused_or_cannot_be_read_are_not_called_a_missing_bus(
    tas: Tas, server: Server, tmp_path: Path
) -> None:
    file = tmp_path / "no.creds"
    file.write_text("agents: {}")
    tas.long_limits = False  # the file is read before any server answers
    unread = await tas("get", "nodes", "--bus-credentials", str(file))
    tas.long_limits = True
    assert unread.code == 1
    assert unread.err.startswith(f"Error: {file}: must have the blocks NATS USER JWT")
    assert "Start one" not in unread.err

    (port,) = free_ports(1)
    url = f"nats://127.0.0.1:{port}"
    command = (await find_binary(), "--addr", "127.0.0.1", "--port", str(port), "--auth", "a-token")
    closed = await asyncio.create_subprocess_exec(*command)
    try:
        async with Bus.connect(f"nats://a-token@127.0.0.1:{port}", name="test", streams=()) as bus:
            await asyncio.wait_for(bus.wait_connected(), 120)
        refused = await tas("get", "nodes", "--bus", url)
        async with Bus.connect(url, name="stranger", streams=()) as stranger, asyncio.timeout(120):
            await _connected_or_refused(stranger)  # only the refusal ends it
            assert not stranger.connected
    finally:
        closed.terminate()
        await closed.wait()
    assert refused.code == 1
    assert refused.err.startswith(f"Error: the bus at {url} refuses: no connection: ")
    assert "Give credentials that it accepts with --bus-credentials or --bus-token" in refused.err
    assert "Start one" not in refused.err


async def test_get_verdicts_shows_state_and_labels_of_each_strategy_for_each_node(tas: Tas, bus: Bus) -> None:
    label = LabelVerdict(
        state=State.VIOLATED, desired=DesiredLabel(DesiredKind.SET, "violating"), violated_since=time.time() - 100
    )
    strategies = {
        StrategyType.DONTSCHEDULE: StrategyVerdict(state=State.UNKNOWN, changed=time.time() - 10),
        StrategyType.DESCHEDULE: StrategyVerdict(
            state=State.VIOLATED, changed=time.time() - 100, value="2", labels={"p": label}
        ),
    }
    policy = PolicyVerdict(uid="u", generation=1, strategies=strategies)
    verdict = NodeVerdict(
        node_uid="n", nodes_revision=1, policies_revision=1, policies={PolicyKey("default", "p"): policy}
    )
    for node, value in (("node-1.example", encode_verdict(verdict)), ("node-2", b"{}")):
        await bus.put(VERDICTS, NODE_VERDICTS.key(node), value, revision=0, read_at=time.monotonic())
    done = await tas("get", "verdicts", "--json")
    assert done.code == 0
    (shown,) = done.json
    assert (shown["node"], shown["nodeUid"]) == ("node-1.example", "n")
    assert shown["policies"][0]["strategies"]["deschedule"]["labels"]["p"]["desired"]["value"] == "violating"
    assert "left out: VERDICTS/node-2: verdict of a node" in done.err
    done = await tas("get", "verdicts")
    first, second = done.out.splitlines()[1:]
    assert re.match(r"node-1\.example +default/p +deschedule +violated +\dm\d\ds +2 +p: set violating", first)
    assert re.match(r"node-1\.example +default/p +dontschedule +unknown +[\dms]+ +- +-", second)


async def test_explain_node_shows_the_value_and_state_of_each_rule(tas: Tas, bus: Bus) -> None:
    await put_policy(
        bus,
        "p",
        {
            "strategies": {
                "dontschedule": rules("load1 GreaterThan 5", "absent Equals 1"),
                "scheduleonmetric": {"rules": [{"metricname": "load1", "operator": "LessThan"}]},
            },
            "suspend": True,
        },
    )
    began = time.time()
    await put_samples(bus, "node-1", {"load1": "7"}, ago=90)
    done = await tas("explain", "node", "node-1", "--stale-after", "10m", "--json")
    assert done.code == 0
    (policy,) = done.json["policies"]
    assert policy["suspended"] is True
    dontschedule, scheduleonmetric = policy["strategies"]
    assert dontschedule["state"] == "violated"
    first, second = dontschedule["rules"]
    assert (first["value"], first["state"], first["fresh"], first["source"]) == ("7", "violated", True, "test")
    assert 89 < first["age_seconds"] < 90 + time.time() - began
    assert (second["value"], second["state"]) == (None, "unknown")
    assert scheduleonmetric["state"] is None
    done = await tas("explain", "node", "node-1", "--stale-after", "10s")
    assert re.search(
        r"default/p \(suspended\) +dontschedule +load1 GreaterThan 5 +7 +\dm\d\ds \(stale, kept for 5\dm\d+s\) +test",
        done.out,
    )
    assert "unknown (onStale: keep)" in done.out  # and not rejected: the policy is suspended


async def test_explain_of_an_unknown_node_is_an_error(tas: Tas, bus: Bus) -> None:
    done = await tas("explain", "node", "node-9")
    assert done.code == 1
    assert "node node-9: the bus has neither samples nor labels of this node" in done.err
    assert done.out == ""


async def test_unreadable_entries_are_reported_and_left_out(tas: Tas, bus: Bus) -> None:
    await put_samples(bus, "node-1", {"load1": "1"})
    await bus.put(NODES, "node-2.metrics", b"{", revision=0, read_at=time.monotonic())
    await bus.put(NODES, "_table.broken.1-0", b"{", revision=0, read_at=time.monotonic())
    await bus.put(POLICIES, "default.p", b"{", revision=0, read_at=time.monotonic())
    done = await tas("get", "nodes", "--json")
    assert [node["node"] for node in done.json] == ["node-1"]
    assert "left out: NODES/node-2.metrics: " in done.err
    assert "left out: NODES/_table.broken.1-0: " in done.err
    for arguments in (("get", "policies"), ("explain", "node", "node-1")):
        done = await tas(*arguments)
        assert done.code == 0
        assert "left out: POLICIES/default.p: policy default/p" in done.err


async def test_a_text_from_elsewhere_does_not_control_the_terminal(tas: Tas, bus: Bus) -> None:
    hostile = "\x1b]0;owned\x07\x9b31m\u202e"
    state = {
        "kind": "prometheus",
        "holder": hostile,
        "since": "2026-01-01T00:00:00Z",
        "time": "2026-01-01T00:00:00Z",
        "problem": hostile,
        "metrics": {hostile: {"missing": hostile}},
        "refused": [{"reason": "node", "count": 1, "example": hostile}],
    }
    await bus.put(SOURCES, "prometheus", encode(state), revision=0, read_at=time.monotonic())
    await bus.put(POLICIES, "default.p", encode({hostile: hostile}), revision=0, read_at=time.monotonic())
    for command in (("get", "sources"), ("get", "sources", "--json"), ("get", "policies"), ("explain", "node", "n")):
        done = await tas(*command)
        shown = done.out + done.err
        assert "owned" in shown
        assert all(line.isprintable() for line in shown.split("\n"))


SHORT_COMMANDS = [
    ("bus", "url"),
    ("certs", "status", "nowhere"),
    ("configure", "verify", "-m", "nowhere.yaml"),
    ("crd",),
    ("demo", "labeling", "--within", "soon"),
    ("dismiss",),
    ("docs", "--check", "--folder", "nowhere"),
    ("doctor", "--skip", "nothing"),
    ("events", "--since", "soon"),
    ("explain", "node", "node-1"),
    ("get", "nodes", "--json"),
    ("policy", "lint", "nowhere.yaml"),
    ("pause", "--reason"),
    ("publish", "No_Node", "m=1"),
    ("release",),
    ("simulate", "--only", "nobody"),
    ("reset",),
    ("resume",),
    ("status", "--no-such-flag"),
    ("support", "--output"),
    ("trace", "m", "node-1"),
]

IN_MAKE_TEST = {"certs", "doctor", "policy", "simulate"}
"""Each imports much that no other one does. `tests/unit/cli/test_starts.py` starts most of the others alone."""


@pytest.mark.parametrize(
    "command",
    [pytest.param(each, marks=[] if each[0] in IN_MAKE_TEST else [pytest.mark.ci]) for each in SHORT_COMMANDS],
    ids=" ".join,
)
async def test_a_new_process_prints_what_a_fork_prints(tas: Tas, bus: Bus, command: tuple[str, ...]) -> None:
    """The other tests run these commands as forks of a process that has imported them."""
    forked = await tas(*command)
    assert forked.out or forked.err

    async def prints_the_same() -> bool:  # on a busy machine the limits of a new process may be too short
        return await tas.process(*command) == forked

    await eventually(prints_the_same)


def test_each_command_that_runs_as_a_fork_runs_as_a_process_once() -> None:
    assert {command for command, *_ in SHORT_COMMANDS} == SHORT


@pytest.mark.parametrize("arguments", [("publish", "n", "m=1"), ("get", "nodes"), ("explain", "node", "n")])
async def test_without_a_bus_a_command_fails_soon_and_names_the_address(
    tas: Tas, server: Server, arguments: tuple[str, ...]
) -> None:
    tas.long_limits = False
    url = server.url
    await server.stop()
    began = time.monotonic()
    done = await tas(*arguments)
    assert time.monotonic() - began < 60
    assert done.code == 1
    assert f"no bus answers at {url} within 3 s" in done.err
    assert "Start one (tas run all), or give its address with --bus or TAS_BUS" in done.err
    assert "Traceback" not in done.err


async def test_a_command_creates_nothing_on_a_server_of_another_program(tas: Tas, new_server: Server) -> None:
    tas.environment["TAS_BUS"] = new_server.url
    done = await tas("publish", "n", "m=1")
    assert done.code == 1
    assert "tas.samples.n.cli" in done.err
    async with Bus.connect(new_server.url, name="test", streams=()) as bus:
        await bus.wait_connected()
        assert (await bus.api("STREAM.NAMES"))["total"] == 0


async def redirected(tas: Tas, command: str, target: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a shell with its output redirected; again if the bus was too slow for the limits."""
    words = " ".join(f"'{part}'" for part in (*COMMAND, *command.split()))
    while True:
        done = await asyncio.to_thread(
            subprocess.run,
            ["sh", "-c", f"{words} {target}"],
            capture_output=True,
            text=True,
            env=tas.environment,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        if "no bus answers" not in done.stderr and "no answer within" not in done.stderr:
            return done


async def test_a_pipe_that_its_reader_closes_is_no_error(tas: Tas, bus: Bus) -> None:
    await asyncio.gather(
        *(put_samples(bus, f"node-{number}", {f"m{metric}": "1" for metric in range(50)}) for number in range(50))
    )
    done = await redirected(tas, "get nodes", "| head -1")
    assert done.stdout.split() == ["NODE", "METRIC", "VALUE", "AGE", "SOURCE"]
    assert done.stderr == ""


@pytest.mark.parametrize("what", ["nodes", "policies", "verdicts", "sources"])
async def test_without_entries_get_says_so_on_stderr(tas: Tas, bus: Bus, what: str) -> None:
    done = await tas("get", what)
    assert (done.code, done.err.partition(":")[0]) == (0, f"no {what}"), done.err
    assert (await tas("get", what, "--json")).json == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device here is always full")
@pytest.mark.parametrize("command", ["crd", "get policies --json"])
async def test_a_full_disk_is_an_error_of_one_line(tas: Tas, bus: Bus, command: str) -> None:
    done = await redirected(tas, command, "> /dev/full")
    assert (done.returncode, done.stderr) == (1, "Error: standard output: No space left on device\n")


async def test_the_live_view_ends_without_a_traceback_when_its_reader_closes_the_pipe(tas: Tas, bus: Bus) -> None:
    reader, writer = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *tas.command, "top", stdout=writer, stderr=asyncio.subprocess.PIPE, env=tas.environment
    )
    os.close(writer)
    assert await asyncio.to_thread(os.read, reader, 1)
    os.close(reader)
    await put_samples(bus, "node-1", {"m": "1"})  # a change, which is a line
    _, errors = await process.communicate()
    assert (process.returncode, errors) == (1, b"")  # of click, as of each command that is in the middle of its output
