"""What `tas events` prints for one event."""

import json

import pytest

from cli.queries.events import event_json, event_line
from tas.events.data import BreakerTripped, EventData, LabelApplied, PolicyRefused, Unknown, ViolationStarted
from tas.events.event import Cause, Event, event_of
from tests.unit.tas.events.examples import EXAMPLES

STARTED = ViolationStarted(node="node-1", namespace="default", policy="demo", strategy="deschedule", value="2")
HOSTILE = "a\nb\x1b[31m c"


def made(data: EventData, *, resync: bool = False) -> Event:
    return event_of(data, Cause("1795277068888665", 7), time=1767225600.25, resync=resync)


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            made(STARTED),
            "2026-01-01T00:00:00Z  violation.started.v1  nodes/node-1  namespace=default  policy=demo  "
            "strategy=deschedule  value=2",
        ),
        (
            made(LabelApplied(node="node-1", label="demo", value="violating", policy="demo"), resync=True),
            "2026-01-01T00:00:00Z  label.applied.v1  nodes/node-1  label=demo  value=violating  policy=demo  resync",
        ),
        (
            made(PolicyRefused(namespace="a", policy="p", policy_uid="u", generation=1, problems=(HOSTILE,), total=1)),
            "2026-01-01T00:00:00Z  policy.refused.v1  namespaces/a/taspolicies/p  generation=1  "
            r"""problems='["a\\nb\\u001b[31m c"]'  total=1""",
        ),
        (
            Event(id="1", type="x.v2", source="/x", subject="", time=0, data=Unknown(document={"a": HOSTILE})),
            r"1970-01-01T00:00:00Z  x.v2  -  {'a': 'a\nb\x1b[31m c'}",
        ),
        (
            made(ViolationStarted(node="1", namespace="1", policy="1", strategy="s", value="1", generation=10**25)),
            "2026-01-01T00:00:00Z  violation.started.v1  nodes/1  namespace=1  policy=1  strategy=s  "
            "generation=10000000000000000000000000  value=1",
        ),
        (
            Event(
                id="1",
                type="x  policy=p",
                source="/x",
                subject="nodes/a  b=c",
                time=0,
                data=Unknown(document="y" * 400),
            ),
            f"1970-01-01T00:00:00Z  'x  policy=p'  'nodes/a  b=c'  '{'y' * 298}…",
        ),
        (
            made(ViolationStarted(node="1", namespace="1", policy="1", strategy="s", value="y" * 400)),
            "2026-01-01T00:00:00Z  violation.started.v1  nodes/1  namespace=1  policy=1  strategy=s  "
            f"value='{'y' * 298}…",
        ),
        (
            made(BreakerTripped(policy="demo", limit=1, wanted=2)),
            "2026-01-01T00:00:00Z  breaker.tripped.v1  breakers/demo  limit=1  wanted=2",
        ),
    ],
    ids=["violation", "label", "hostile", "unknown", "numbers", "forged", "long", "breaker"],
)
def test_an_event_is_one_line(event: Event, line: str) -> None:
    assert event_line(event) == line


@pytest.mark.parametrize("data", EXAMPLES, ids=lambda data: type(data).__name__)
def test_an_event_in_json_is_a_cloud_event_in_one_line(data: EventData) -> None:
    event = made(data)
    text = event_json(event)
    assert text.isprintable()
    document = json.loads(text)
    assert (document["specversion"], document["id"], document["type"]) == ("1.0", event.id, event.type)
    assert document["datacontenttype"] == "application/json"
    assert isinstance(document["data"], dict)


def test_an_event_in_json_may_have_any_number() -> None:
    event = Event(id="1", type="x.v2", source="/x", subject="", time=0, data=Unknown(document={"a": 10**25}))
    assert json.loads(event_json(event))["data"] == {"a": 10**25}
