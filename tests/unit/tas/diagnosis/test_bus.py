"""The checks of the bus."""

import msgspec
import pytest

from tas.diagnosis.bus import BusFacts, WrongStream, check_bus
from tas.diagnosis.finding import Missing, Severity
from tests.unit.tas.diagnosis.found import bad, one, severities

GOOD = BusFacts(address="nats://h:4222", version="2.12.3", needed=(2, 12, 3), sync=True, copies={"SAMPLES": 1})

THREE = {"SAMPLES": 3}


def test_a_good_bus_has_no_finding() -> None:
    assert bad(check_bus(GOOD)) == {}
    assert len(severities(check_bus(GOOD))) == 10


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"version": "2.12.2"}, {"bus.version": Severity.ERROR}),
        ({"version": "2.9.99"}, {"bus.version": Severity.ERROR}),
        ({"version": "3.0.0"}, {}),
        ({"version": "2.15.1-beta"}, {}),
        ({"version": "unknown"}, {"bus.version": Severity.UNKNOWN}),
        ({"sync": False}, {"bus.sync": Severity.WARNING}),
        ({"sync": Missing("no monitor")}, {"bus.sync": Severity.UNKNOWN}),
        ({"sync": False, "embedded": True}, {"bus.sync": Severity.HINT}),
        ({"wrong": [WrongStream("KV_NODES", "history is 1")]}, {"bus.streams": Severity.ERROR}),
        ({"absent": ["SAMPLES"]}, {"bus.streams": Severity.ERROR}),
        ({"absent": ["SAMPLES", "TABLES"]}, {"bus.streams": Severity.ERROR}),
        ({"absent": ["TABLES"]}, {"bus.streams": Severity.WARNING}),
        ({"absent": ["KV_WORKERS", "TABLES"]}, {"bus.streams": Severity.WARNING}),
        ({"absent": ["KV_WORKERS", "KV_PODS"]}, {"bus.streams": Severity.ERROR}),
        ({"closed": True}, {}),
        ({"closed": True, "earlier": True}, {"bus.credentials": Severity.WARNING}),
        ({"closed": True, "earlier": Missing("not told")}, {"bus.credentials": Severity.UNKNOWN}),
        ({"consumers": {"SAMPLES": (499, 1000)}}, {}),
        ({"consumers": {"SAMPLES": (500, 1000), "EVENTS": (1, 1000)}}, {"bus.consumers": Severity.WARNING}),
        ({"consumers": {"SAMPLES": (1000, 1000)}}, {"bus.consumers": Severity.ERROR}),
        ({"room": {"KV_NODES": (899, 1000)}}, {}),
        ({"room": {"KV_NODES": (900, 1000), "KV_PODS": (1, 1000)}}, {"bus.room": Severity.WARNING}),
        ({"room": {"KV_NODES": (990, 1000)}}, {"bus.room": Severity.ERROR}),
        ({"weak": {"SAMPLES": ["duplicate_window"]}}, {"bus.limits": Severity.HINT}),
        ({"weak": {"SAMPLES": ["duplicate_window"]}, "closed": True}, {"bus.limits": Severity.WARNING}),
        ({"earlier": True, "closed": True}, {"bus.credentials": Severity.WARNING}),
        ({"cluster": "c"}, {"bus.replicas": Severity.WARNING}),
        ({"cluster": "c", "copies": {"SAMPLES": 2}}, {"bus.replicas": Severity.WARNING}),
        ({"cluster": "c", "copies": {"SAMPLES": 3}}, {}),
        ({"cluster": "c", "copies": {}}, {"bus.replicas": Severity.UNKNOWN}),
        ({"cluster": "c", "copies": THREE, "late": {"n2": ["SAMPLES"]}}, {"bus.copies": Severity.WARNING}),
        ({"cluster": "c", "copies": THREE, "stuck": ["SAMPLES"]}, {"bus.copies": Severity.ERROR}),
        (
            {"cluster": "c", "copies": THREE, "silent": ["KV_NODES"]},
            {"bus.copies": Severity.ERROR, "bus.streams": Severity.UNKNOWN, "bus.replicas": Severity.UNKNOWN},
        ),
    ],
)
def test_each_fault_is_found(fields: dict[str, object], found: dict[str, Severity]) -> None:
    assert bad(check_bus(msgspec.structs.replace(GOOD, **fields))) == found


def test_a_missing_stream_is_the_only_finding_about_streams() -> None:
    found = one(check_bus(msgspec.structs.replace(GOOD, absent=["SAMPLES"])), "bus.streams")
    assert found.what.startswith("without SAMPLES: ")


def test_without_an_answer_nothing_else_is_checked() -> None:
    findings = list(check_bus(Missing("no bus answers", run="tas run all")))
    assert severities(findings)["bus.reached"] is Severity.ERROR
    assert set(severities(findings).values()) == {Severity.ERROR, Severity.UNKNOWN}
    assert one(findings, "bus.reached").run == "tas run all"


def test_a_wrong_stream_is_deleted_by_a_person_who_knows_what_is_lost() -> None:
    wrong = [WrongStream("KV_NODES", "history is 1"), WrongStream("KV_BREAKERS", "history is 1", "a pause")]
    nodes, breakers = (
        each for each in check_bus(msgspec.structs.replace(GOOD, wrong=wrong)) if each.check == "bus.streams"
    )
    assert nodes.mend.endswith("and its content is built again")
    assert nodes.run == "nats --server nats://h:4222 stream rm KV_NODES"
    assert breakers.mend.endswith("but a pause are lost")
    assert "--force" not in breakers.run
    # An older server would create the stream again without the setting.
    old = msgspec.structs.replace(GOOD, wrong=wrong[:1], version="2.10.25")
    assert one(check_bus(old), "bus.streams").mend.startswith("first install a newer nats-server; then delete ")


def test_the_servers_of_late_copies_are_named() -> None:
    late = {"n2": ["SAMPLES", "EVENTS"], "n3": ["SAMPLES"]}
    found = one(check_bus(msgspec.structs.replace(GOOD, cluster="c", copies=THREE, late=late)), "bus.copies")
    assert found.what == "the copies of EVENTS, SAMPLES on n2, n3 are offline or not up to date"
    assert found.run == "nats --server nats://h:4222 stream report"


def test_a_stream_without_a_majority_is_shown_by_a_command_that_works_then() -> None:
    """`nats stream report` needs a majority itself."""
    lost = msgspec.structs.replace(GOOD, cluster="c", copies=THREE, stuck=["SAMPLES"], silent=["EVENTS"])
    found = one(check_bus(lost), "bus.copies")
    assert found.what.startswith("without a majority: EVENTS, SAMPLES: most servers of c ")
    assert found.run == "nats --server nats://h:4222 stream info SAMPLES"


def test_a_full_bucket_is_named_with_the_command_that_gives_it_room() -> None:
    room = {"KV_NODES": (300 << 20, 300 << 20), "KV_PODS": (95, 100)}
    found = one(check_bus(msgspec.structs.replace(GOOD, room=room, closed=True)), "bus.room")
    assert found.what == "KV_NODES has 314572800 of at most 314572800 bytes: new keys and longer values are refused"
    assert found.run == "tas bus mend DIR --room NODES=600Mi"
    found = one(check_bus(msgspec.structs.replace(GOOD, room=room)), "bus.room")
    assert found.run == "tas bus mend --room NODES=600Mi"


def test_a_stream_without_places_is_named_with_the_command_that_makes_some() -> None:
    counts = {"KV_NODES": (1000, 1000), "EVENTS": (700, 1000)}
    found = one(check_bus(msgspec.structs.replace(GOOD, consumers=counts, closed=True)), "bus.consumers")
    assert found.what == "KV_NODES has 1000 of at most 1000 consumers: nobody can begin to read there"
    assert found.run == "tas bus mend DIR"
    found = one(check_bus(msgspec.structs.replace(GOOD, consumers=counts)), "bus.consumers")
    assert found.run == "nats --server nats://h:4222 consumer report KV_NODES"
