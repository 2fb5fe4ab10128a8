"""Events in messages of the bus."""

from bus.events import MAX_BODY_BYTES, decoded
from bus.pull import Message
from tas.events import cloudevents
from tas.events.data import SourceDry
from tas.events.event import Cause, event_of


def message(size: int) -> Message:
    """A message with an event whose data has so many bytes."""
    small = event_of(SourceDry(source="s"), Cause("1", 2), time=3.0)
    padding = "x" * (size - len(cloudevents.body(small)) - len(',"problem":""'))
    event = event_of(SourceDry(source="s", problem=padding), Cause("1", 2), time=3.0)
    data = cloudevents.body(event)
    assert len(data) == size
    return Message("tas.events.source.s", data, 7, 4.0, 1, "reply", headers=cloudevents.headers(event))


def test_an_event_that_is_larger_than_any_published_one_is_not_read() -> None:
    largest, larger = message(MAX_BODY_BYTES), message(MAX_BODY_BYTES + 1)
    found, invalid = decoded([larger, largest])
    assert [each.sequence for each in found] == [7]
    (error,) = invalid
    assert (error.subject, error.field, error.value) == ("event tas.events.source.s", "body", "65537")


def test_a_receipt_has_all_that_an_acknowledgement_needs_and_no_content() -> None:
    receipt = message(1000).receipt
    assert (receipt.sequence, receipt.reply, receipt.arrived) == (7, "reply", 4.0)
    assert (receipt.data, receipt.headers) == (b"", None)
