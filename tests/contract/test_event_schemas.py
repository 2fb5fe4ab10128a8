"""The published schemas, and the AsyncAPI document: they only grow, and say what is published and read."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bus.asyncapi import asyncapi, schemas
from bus.records.tables import decode_table
from bus.subjects import event_subject, samples_subject, tables_subject
from tas.events.cloudevents import body, headers
from tas.events.data import EventData
from tas.events.event import DATA_TYPES, Cause, event_of
from tas.samples.parts import MAX_ROWS, Part
from tas.samples.table import TableKey
from tests.unit.tas.events.examples import EXAMPLES

ROOT = Path(__file__).parents[2]
GOLDEN = {path.stem: json.loads(path.read_bytes()) for path in (ROOT / "tests/contract/golden/events").glob("*.json")}
PAGE = (ROOT / "docs" / "reference" / "events.md").read_text()
CHANNELS: dict[str, Any] = asyncapi()["channels"]


def compatible(published: dict[str, Any], current: dict[str, Any]) -> Iterator[str]:
    """Why `current` breaks readers of the schema `published` (types, required fields, and everything they refer to)."""
    yield from _differences("", published, current)


def _differences(path: str, published: Any, current: Any) -> Iterator[str]:
    if isinstance(published, dict) and isinstance(current, dict):
        for key, value in published.items():
            if key in ("description", "title", "$schema"):
                continue
            if key not in current:
                yield f"{path}/{key} is missing"
            elif key == "required":
                gone = sorted(set(value) - set(current[key]))
                if gone:
                    yield f"{path}/{key}: {', '.join(gone)} may be missing now"
            else:
                yield from _differences(f"{path}/{key}", value, current[key])
    elif published != current:
        yield f"{path} is {current!r}, was {published!r}"


def test_every_type_has_a_published_schema() -> None:
    assert GOLDEN.keys() == schemas().keys()


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_a_schema_still_serves_the_readers_of_the_published_one(name: str) -> None:
    assert list(compatible(GOLDEN[name], schemas()[name])) == []


def test_what_breaks_readers_is_noticed() -> None:
    (name,) = (name for name in GOLDEN if name.endswith("violation.ended.v1"))
    published = GOLDEN[name]

    def changed(path: tuple[str, ...], value: Any) -> list[str]:
        current = copy.deepcopy(published)
        inner = current["$defs"]["ViolationEnded"]
        for step in path[:-1]:
            inner = inner[step]
        if value is None:
            del inner[path[-1]]
        else:
            inner[path[-1]] = value
        return list(compatible(published, current))

    assert len(changed(("properties", "value"), None)) == 1
    assert len(changed(("properties", "value", "type"), "number")) == 1
    assert len(changed(("required",), ["node"])) == 1
    assert changed(("properties", "added"), {"type": "string"}) == []
    assert changed(("description",), "Other words.") == []
    assert changed(("required",), [*published["$defs"]["ViolationEnded"]["required"], "value"]) == []


@pytest.mark.parametrize("data", EXAMPLES, ids=lambda data: data.TYPE)
def test_an_event_has_the_fields_of_its_schema(data: EventData) -> None:
    event = event_of(data, Cause("1", 2), time=0.0)
    document, schema = json.loads(body(event)), schemas()[event.type]["$defs"][type(data).__name__]
    assert schema["properties"].keys() == document.keys()
    assert set(schema["required"]) <= document.keys()


@pytest.mark.parametrize("data", EXAMPLES, ids=lambda data: data.TYPE)
def test_an_event_is_published_on_a_channel_of_the_document(data: EventData) -> None:
    name = type(data).__name__
    (address,) = (each["address"] for each in CHANNELS.values() if name in each["messages"])
    pattern = re.sub(r"\\\{\w+\\\}", r"[^.]+", re.escape(address))
    assert re.fullmatch(pattern, event_subject(data))
    message = asyncapi()["components"]["messages"][name]
    assert message["name"] == event_of(data, Cause("1", 2), time=0.0).type
    traits = asyncapi()["components"]["messageTraits"]["cloudEvent"]["headers"]
    published = headers(event_of(data, Cause("1", 2), time=0.0, resync=True))
    assert published.keys() == traits["properties"].keys()
    assert all(published[name] == each["const"] for name, each in traits["properties"].items() if "const" in each)


def references(document: Any) -> Iterator[str]:
    if isinstance(document, dict):
        yield from ([document["$ref"]] if "$ref" in document else [])
        for each in document.values():
            yield from references(each)
    elif isinstance(document, list):
        for each in document:
            yield from references(each)


def test_all_references_of_the_document_exist() -> None:
    found = set(references(asyncapi()))
    assert len(found) > 3 * len(DATA_TYPES)
    for reference in found:
        target: Any = asyncapi()
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]


def test_the_page_has_a_row_for_each_type() -> None:
    for data in EXAMPLES:
        row = re.search(rf"^\| `{re.escape(data.TYPE)}` \| `([^`]+)` \|", PAGE, re.MULTILINE)
        assert row, data.TYPE
        (address,) = (each["address"] for each in CHANNELS.values() if type(data).__name__ in each["messages"])
        assert row[1] == re.sub(r"\{(\w+)\}", r"<\1>", address.removeprefix("tas.events."))


class TestSamples:
    """The document describes what programs may write: the examples of the contract have only fields of the schemas."""

    SCHEMAS: dict[str, Any] = asyncapi()["components"]["schemas"]

    @pytest.mark.parametrize(
        ("example", "schema"), [("sample", "Sample"), ("table", "Table"), ("table-times", "Table")]
    )
    def test_a_message_that_is_read_has_the_fields_of_the_schema(self, example: str, schema: str) -> None:
        message = json.loads((ROOT / f"tests/contract/golden/bus/{example}.json").read_bytes())
        described = self.SCHEMAS[schema]
        assert set(described["required"]) <= message.keys() <= described["properties"].keys()
        for field, value in message.items():
            assert self._has_type(described["properties"][field], value), field
        metrics = described["properties"]["metrics"]
        for metric, value in message["metrics"].items():
            assert re.fullmatch(metrics["propertyNames"]["pattern"], metric)
            assert self._has_type(metrics["additionalProperties"], value)

    @staticmethod
    def _has_type(schema: dict[str, Any], value: Any) -> bool:
        """Whether the value has one of the types of a schema, and each element of a list that of its items."""
        if "anyOf" in schema:
            return any(TestSamples._has_type(each, value) for each in schema["anyOf"])
        names = {str: "string", int: "number", float: "number", list: "array", dict: "object", type(None): "null"}
        found, types = names[type(value)], schema["type"]
        if found not in (types if isinstance(types, list) else [types]):
            return False
        return found != "array" or all(TestSamples._has_type(schema["items"], each) for each in value)

    @pytest.mark.parametrize(
        ("name", "subject"), [("samples", samples_subject("a.b", "s")), ("tables", "tas.tables.s.2-1")]
    )
    def test_the_subjects_are_those_of_the_bus(self, name: str, subject: str) -> None:
        pattern = re.sub(r"\\\{\w+\\\}", r"[^.]+", re.escape(CHANNELS[name]["address"]))
        assert re.fullmatch(pattern, subject)
        assert set(re.findall(r"{(\w+)}", CHANNELS[name]["address"])) == CHANNELS[name]["parameters"].keys()

    def test_the_limits_are_those_of_the_decoders(self) -> None:
        subject = tables_subject(TableKey("s", Part(1, 0)))
        for rows, refused in ((MAX_ROWS, {}), (MAX_ROWS + 1, {"nodes": 1})):
            body = json.dumps({"nodes": [f"n{row}" for row in range(rows)], "metrics": {}}).encode()
            assert decode_table(subject, body, arrived=0.0, sequence=1)[2].counts == refused
        assert self.SCHEMAS["Table"]["properties"]["nodes"]["maxItems"] == MAX_ROWS
