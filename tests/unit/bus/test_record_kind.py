"""Records of a kind: which handler gets an entry, and that an unreadable record never counts as absent."""

import json
import tracemalloc
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bus import kinds
from bus.buckets import NODES, POLICIES, SYNCED, Bucket
from bus.entry import RawEntry
from bus.kinds import NODE_FACTS, NODE_SAMPLES, NODE_TABLES, NODE_VERDICTS, POD_RECORDS, POLICY_RECORDS, synced_of
from bus.record_kind import FEW_TEXTS, Entry, RecordKind, Unreadable, hand_on
from bus.records.nodes import NodeFacts
from tas.errors import InvalidInputError
from tas.policy.policy import PolicyKey, StrategyType
from tas.policy.rules import State
from tas.samples.parts import Part
from tas.samples.table import Column, Reading, Table, TableKey
from tas.values.quantity import Quantity
from tas.verdict.verdict import NodeVerdict, PolicyVerdict, StrategyVerdict
from workers.runtime import invalid_entries

FACTS = NodeFacts(uid="u", labels={"zone": "a"})
TABLE = Table("machine", ("a",), {"load1": Column((Quantity(1),), Reading(1.0, 2.0, 3))})


class Taken:
    """The entries that handlers got, and the errors that were reported."""

    def __init__(self) -> None:
        self.samples: list[Entry[str, Any]] = []
        self.facts: list[Entry[str, NodeFacts]] = []
        self.synced: list[Entry[str, Any]] = []
        self.tables: list[Entry[TableKey, Table]] = []
        self.invalid: list[tuple[str, str, str]] = []

    def take(self, key: str, value: bytes | None, revision: int = 1) -> None:
        handlers = (
            synced_of(NODES).to(self.synced.append),
            NODE_SAMPLES.to(self.samples.append),
            NODE_FACTS.to(self.facts.append),
            NODE_TABLES.to(self.tables.append),
        )
        hand_on(NODES, handlers, self.report, RawEntry(key, value, revision, 5.0))

    def report(self, bucket: Bucket, key: str, error: InvalidInputError) -> None:
        self.invalid.append((bucket.name, key, error.field))


def test_each_entry_goes_to_the_handler_of_its_kind() -> None:
    taken = Taken()
    taken.take("node-1_example.facts", NODE_FACTS.encode(FACTS), revision=7)
    taken.take("node-1.metrics", None)
    taken.take(SYNCED, b"{}")
    taken.take("_table.machine.4-3", NODE_TABLES.encode(TABLE), revision=9)
    (facts,), (samples,), (synced,), (table,) = taken.facts, taken.samples, taken.synced, taken.tables
    assert (facts.key, facts.revision, facts.created, facts.present) == ("node-1.example", 7, 5.0, True)
    assert facts.read() == FACTS
    assert facts.document() == {"uid": "u", "labels": {"zone": "a"}}
    assert (samples.key, samples.present, samples.read()) == ("node-1", False, None)
    assert synced.key == SYNCED
    assert (table.key, table.revision, table.read()) == (TableKey("machine", Part(4, 3)), 9, TABLE)
    assert taken.invalid == []


@pytest.mark.parametrize(
    "key",
    ["node-1.other", "node-1", "Node.facts", ".metrics", "_table", "_table.a", "_table.a.3-0", "_table.a.1-0.metrics"],
)
def test_a_key_of_no_kind_is_reported_and_goes_to_no_handler(key: str) -> None:
    taken = Taken()
    taken.take(key, b"{}")
    assert not taken.facts + taken.samples + taken.synced
    assert not taken.tables
    assert taken.invalid == [("NODES", key, "key")]


def test_a_key_of_a_kind_without_a_handler_is_skipped() -> None:
    taken = Taken()
    hand_on(NODES, (NODE_FACTS.to(taken.facts.append),), taken.report, RawEntry("node-1.metrics", b"{}", 1, 0.0))
    assert (taken.facts, taken.invalid) == ([], [])


@pytest.mark.parametrize("kind", [NODE_SAMPLES, NODE_FACTS, NODE_TABLES, POLICY_RECORDS, POD_RECORDS])
def test_synced_is_a_key_of_no_other_kind(kind: Any) -> None:
    assert kind.parse_key(SYNCED) is None


def test_an_unreadable_record_is_present_and_reported_at_each_read() -> None:
    taken = Taken()
    taken.take("node-1.facts", b"{")
    (entry,) = taken.facts
    assert taken.invalid == []  # a record is decoded only when it is read
    assert entry.present
    found = entry.read()
    assert isinstance(found, Unreadable)
    assert found.error.field == "body"
    assert entry.readable() is None
    assert taken.invalid == [("NODES", "node-1.facts", "body")] * 2


SERVER_ANSWERS = (
    b'{"stream":"SAMPLES","seq":1795716068971978}',
    b'{"stream":"SAMPLES","seq":5,"duplicate":true}',
    b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 1"},"stream":"SAMPLES","seq":0}',
    b'{"type":"io.nats.jetstream.api.v1.stream_info_response","error":{"code":404,"description":"stream not found"}}',
    b'{"server":{"name":"n","id":"N"},"data":{"user":"U","account":"A"}}',
)
"""What a server writes to the reply subject of a message, whatever the permissions of its sender are."""

KINDS = [each for each in vars(kinds).values() if isinstance(each, RecordKind)] + [synced_of(NODES)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.bucket.name}.{kind.keys}")
@pytest.mark.parametrize("answer", SERVER_ANSWERS)
def test_an_answer_of_the_server_is_no_record_of_any_kind(kind: RecordKind[Any, Any], answer: bytes) -> None:
    with pytest.raises(InvalidInputError):
        kind.decode("a", answer)


def test_a_key_that_never_existed_is_absent_at_revision_0() -> None:
    entry = Entry(NODE_VERDICTS, "node-1", None, Taken().report)
    assert (entry.revision, entry.present, entry.read(), entry.readable(), entry.document()) == (
        0,
        False,
        None,
        None,
        None,
    )


@pytest.mark.parametrize("others", [0, FEW_TEXTS])
def test_what_is_mentioned_is_found_without_decoding(others: int) -> None:
    taken = Taken()
    taken.take("node-1.facts", b'{"zone": unreadable')
    taken.take("node-1.facts", None)
    written, gone = taken.facts
    texts = {"zone", "zon", "", *(f"x{number}" for number in range(others))} - ({""} if others else set())
    assert list(written.mentioned(texts)) == ["zone"]
    assert not gone.mentioned(texts)
    assert taken.invalid == []


def test_a_record_equals_its_stored_copy() -> None:
    assert NODE_FACTS.same("node-1", FACTS, NODE_FACTS.decode("node-1", NODE_FACTS.encode(FACTS)))
    assert not NODE_FACTS.same("node-1", FACTS, NodeFacts(uid="v", labels={}))
    assert not NODE_FACTS.same("node-1", FACTS, None)


def test_an_invalid_entry_is_counted_each_time_and_logged_once() -> None:
    registry = CollectorRegistry()
    report = invalid_entries(registry)
    error = InvalidInputError("policy default/demo", "body", "{", "Input data was truncated")
    with capture_logs() as lines:
        for _ in range(3):
            report(POLICIES, "default.demo", error)
        report(POLICIES, "default.other", error)
    fields = {"object": "policy default/demo", "field": "body", "value": "'{'", "reason": "Input data was truncated"}
    line = {"event": "entry_invalid", "log_level": "warning", "bucket": "POLICIES", "suppressed": 0} | fields
    assert lines == [line | {"key": "default.demo"}, line | {"key": "default.other"}]

    def count(bucket: str) -> float | None:
        return registry.get_sample_value("tas_bus_entries_invalid_total", {"bucket": bucket})

    assert (count("POLICIES"), count("NODES")) == (4, 0)


def verdict(policies: int, time: float = 1_795_000_000.0) -> NodeVerdict:
    states = {StrategyType.DONTSCHEDULE: StrategyVerdict(state=State.VIOLATED, changed=time, value="2", rejects=True)}
    verdicts = {
        PolicyKey("default", f"policy-{number}"): PolicyVerdict(uid=f"uid-{number}", generation=1, strategies=states)
        for number in range(policies)
    }
    return NodeVerdict(node_uid="u", nodes_revision=1, policies_revision=2, time=time, policies=verdicts)


def test_packed_records_read_back_in_any_order_and_take_little_memory() -> None:
    records = {f"node-{number}": verdict(50, 1_795_000_000.0 + number) for number in range(100)}
    tracemalloc.start()
    try:
        packed = {node: NODE_VERDICTS.packed(node, record) for node, record in records.items()}
        bytes_of_all, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert bytes_of_all < 100 * 2000
    entry = Entry(
        NODE_VERDICTS, "node-0", RawEntry("node-0", NODE_VERDICTS.encode(records["node-0"]), 1, 5.0), Taken().report
    )
    document = entry.document()
    assert len(document["policies"]) == 50
    assert len(json.dumps(document)) > 4 * 2000
    for node in (*records, *reversed(records)):
        assert packed[node].read() == records[node]


def test_an_entry_that_was_read_can_be_packed() -> None:
    raw = RawEntry("node-1", NODE_VERDICTS.encode(verdict(1)), 1, 5.0)
    entry = Entry(NODE_VERDICTS, "node-1", raw, Taken().report)
    assert entry.packed().read() == entry.read() == verdict(1)
