"""The checks of the bus."""

import msgspec
import pytest

from tas.diagnosis.bus import BusFacts, check_bus
from tas.diagnosis.finding import Missing, Severity
from tests.unit.tas.diagnosis.found import bad, one, severities

GOOD = BusFacts(address="nats://h:4222", version="2.12.3", needed=(2, 12, 3), sync=True, copies={"SAMPLES": 1})


def test_a_good_bus_has_no_finding() -> None:
    assert bad(check_bus(GOOD)) == {}
    assert len(severities(check_bus(GOOD))) == 5


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
        ({"wrong": ["KV_NODES: history is 1, must be 64"]}, {"bus.streams": Severity.ERROR}),
        ({"absent": ["SAMPLES"]}, {"bus.streams": Severity.ERROR}),
        ({"cluster": "c"}, {"bus.replicas": Severity.WARNING}),
        ({"cluster": "c", "copies": {"SAMPLES": 3}}, {}),
        ({"cluster": "c", "copies": {}}, {"bus.replicas": Severity.UNKNOWN}),
    ],
)
def test_each_fault_is_found(fields: dict[str, object], found: dict[str, Severity]) -> None:
    assert bad(check_bus(msgspec.structs.replace(GOOD, **fields))) == found


def test_without_an_answer_nothing_else_is_checked() -> None:
    findings = list(check_bus(Missing("no bus answers", "tas run all")))
    assert severities(findings)["bus.reached"] is Severity.ERROR
    assert set(severities(findings).values()) == {Severity.ERROR, Severity.UNKNOWN}
    assert one(findings, "bus.reached").mend == "tas run all"
