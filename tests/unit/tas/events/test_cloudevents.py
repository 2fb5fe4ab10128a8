"""Events as messages: headers and bodies, and what a reader of them accepts."""

import re

import pytest

from bus.subjects import event_subject
from tas.errors import InvalidInputError
from tas.events.cloudevents import body, decode, headers
from tas.events.data import BreakerTripped, EventData, LabelApplied, Unknown, ViolationStarted
from tas.events.event import DATA_TYPES, Cause, cause_of, event_of
from tests.unit.tas.events.examples import EXAMPLES, NODE, STRATEGY

CAUSE = Cause("1795277068888665", 1795277068888700)
STARTED = event_of(ViolationStarted(**STRATEGY, value="2"), CAUSE, time=1795277068.25, resync=True)


def test_there_is_an_example_of_every_type() -> None:
    assert {type(data) for data in EXAMPLES} == set(DATA_TYPES.values())


@pytest.mark.parametrize("data", EXAMPLES, ids=lambda data: data.TYPE)
def test_an_event_is_the_same_after_encoding_and_decoding(data: EventData) -> None:
    event = event_of(data, CAUSE, time=1795277068.25)
    assert decode(headers(event), body(event)) == event
    assert cause_of(event) == CAUSE


@pytest.mark.parametrize("data", EXAMPLES, ids=lambda data: data.TYPE)
def test_no_header_has_a_character_that_is_escaped_facts_n2(data: EventData) -> None:
    found = headers(event_of(data, CAUSE, time=0.0, resync=True))
    assert all(re.fullmatch(r"[!#$&-~]+", value) for value in found.values()), found
    assert found["ce-resync"] == "true"


def test_facts_n1_n3_n53_the_headers_are_those_of_the_binding_and_of_the_go_sdk() -> None:
    assert headers(STARTED) == {
        "ce-specversion": "1.0",
        "ce-id": "1795277068888665/1795277068888700/violation.started.v1/ip-10-0-0-1.ec2.internal/default/demo.policy"
        "/deschedule",
        "ce-type": "telemetry.aware.scheduling.violation.started.v1",
        "ce-source": "/telemetry-aware-scheduling",
        "ce-subject": "nodes/ip-10-0-0-1.ec2.internal",
        "ce-time": "2026-11-21T16:04:28.250000Z",
        "ce-resync": "true",
        "ce-datacontenttype": "application/json",
        "content-type": "application/json",
    }


def test_headers_are_read_without_regard_to_case_and_with_unknown_attributes() -> None:
    found = {name.upper(): value for name, value in headers(STARTED).items()} | {"ce-other": "1"}
    assert decode(found, body(STARTED)[:-1] + b',"added":[1]}') == STARTED


def test_an_unknown_type_or_version_is_an_event_with_its_document() -> None:
    found = headers(STARTED) | {"ce-type": "telemetry.aware.scheduling.violation.started.v2"}
    event = decode(found, b'{"other":[1]}')
    assert event.data == Unknown(document={"other": [1]})
    assert body(event) == b'{"other":[1]}'
    assert decode(found, b"").data == Unknown()
    deep = b'{"a":' * 64 + b"1" + b"}" * 64
    assert body(decode(found, deep)) == deep


@pytest.mark.parametrize(
    ("change", "data", "field"),
    [
        ({"ce-specversion": "0.3"}, b"{}", "ce-specversion"),
        ({"ce-id": ""}, b"{}", "ce-id"),
        ({"ce-time": "yesterday"}, b"{}", "ce-time"),
        ({"ce-time": "2026-01-01T00:00:00"}, b"{}", "ce-time"),
        ({"ce-time": "0001-01-01T00:00:00+01:00"}, b"{}", "ce-time"),
        ({"ce-time": "9999-12-31T23:59:59-01:00"}, b"{}", "ce-time"),
        ({"ce-type": "another"}, b"[" * 65 + b"]" * 65, "body"),
        ({}, b"{", "body"),
        ({}, b'{"node":1}', "body"),
    ],
)
def test_what_is_no_event_is_refused_with_its_field(change: dict[str, str], data: bytes, field: str) -> None:
    with pytest.raises(InvalidInputError) as found:
        decode(headers(STARTED) | change, data)
    assert found.value.field == field


def test_a_message_without_headers_is_no_event() -> None:
    with pytest.raises(InvalidInputError, match="binary mode"):
        decode(None, b"{}")


def test_different_transitions_have_different_ids() -> None:
    ids = {event_of(data, CAUSE, time=0.0).id for data in EXAMPLES}
    ids |= {event_of(data, CAUSE._replace(revision=7), time=0.0).id for data in EXAMPLES}
    assert len(ids) == 2 * len(EXAMPLES)


def test_an_id_of_another_form_has_no_cause() -> None:
    for text in ("", "a/1/x", "1/b/x", "1", "1/" + 5000 * "9" + "/x"):
        event = decode(headers(STARTED) | {"ce-id": text or "-"}, body(STARTED))
        assert cause_of(event) is None


def test_each_thing_has_a_subject_of_its_own() -> None:
    def label(key: str) -> EventData:
        return LabelApplied(**NODE, label=key, value="")

    assert event_subject(label("a.b/c_d")) == "tas.events.label.ip-10-0-0-1_ec2_internal.a_b/c=d"
    assert len({event_subject(label(key)) for key in ("a.b", "a_b", "a_.b", "a._b")}) == 4
    assert event_subject(STARTED.data) == (
        "tas.events.violation.ip-10-0-0-1_ec2_internal.default.demo_policy.deschedule"
    )
    assert event_subject(BreakerTripped(limit=1, wanted=2)) == "tas.events.breaker._all"
