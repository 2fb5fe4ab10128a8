"""Commands that read the bus, with records of one who may write there: every field has every hostile value."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest

from bus.buckets import BREAKERS, EVENTS, HOLDS, NODES, PODS, POLICIES, REFUSALS, SOURCES, VERDICTS, WORKERS, Bucket
from bus.connection import Bus
from bus.records.codec import encode
from cli.queries.get import MAX_VALUES
from cli.queries.tables import MAX_LINES
from tas.events import cloudevents
from tas.events.event import Cause, event_of
from tests.e2e.processes import free_ports
from tests.fuzz.decoders import GOLDEN
from tests.integration.bus.limits import long_limits
from tests.integration.cli.tas import Tas
from tests.integration.servers import Server, eventually
from tests.unit.tas.events.examples import EXAMPLES

__all__ = ["long_limits"]

pytestmark = pytest.mark.usefixtures("long_limits")

FORGED = "FORGED"
LINE = f"x\n{FORGED}  healthy"
"""A text whose second line would be a row of a table."""

VALUES: tuple[Any, ...] = (LINE, "\x1b[31m", "1" * 5000, None, [LINE], {LINE: LINE}, -1, 2**64, 1e308)

RECORDS: tuple[tuple[str, Bucket, str], ...] = (
    ("node-metrics", NODES, "{}.metrics"),
    ("node-facts", NODES, "{}.facts"),
    ("node-inventory", NODES, "{}.inventory"),
    ("node-table", NODES, "_table.{}.1-0"),
    ("node-hold", HOLDS, "{}"),
    ("policy", POLICIES, "default.{}"),
    ("synced", POLICIES, "_synced"),
    ("source", SOURCES, "{}"),
    ("verdict", VERDICTS, "{}"),
    ("breaker", BREAKERS, "{}"),
    ("refused-labels", REFUSALS, "{}"),
    ("process", WORKERS, "all.{}"),
    ("expected", WORKERS, "_expected.{}"),
)

DEEP: Any = []
for _ in range(400):
    DEEP = [DEEP]


def changed(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The document with each value at each place, of a list at its first one, and with other names of fields."""
    yield document | {"unknown": 10**400}
    yield document | {"unknown": DEEP}
    for path in places(document, ()):
        for value in VALUES:
            found = deepcopy(document)
            parent(found, path)[path[-1]] = value
            yield found
        if isinstance(path[-1], str):
            found = deepcopy(document)
            parent(found, path)[LINE] = parent(found, path).pop(path[-1])
            yield found


def places(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The path of each value within a document."""
    if path:
        yield path
    within = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for name, each in within:
        yield from places(each, (*path, name))


def parent(document: Any, path: tuple[Any, ...]) -> Any:
    """The object or list that has the value at `path`."""
    for name in path[:-1]:
        document = document[name]
    return document


async def put_all(bus: Bus) -> None:
    puts = []
    for name, bucket, key in RECORDS:
        valid = json.loads((GOLDEN / "bus" / f"{name}.json").read_text())
        for number, document in enumerate(changed(valid)):
            if name == "policy" and document.get("name") == valid["name"]:
                document["name"] = f"x{number}"
            if number == 0 or "{}" in key:
                puts.append((bucket, key.format(f"x{number}"), json.dumps(document).encode()))
    for start in range(0, len(puts), 500):
        some = puts[start : start + 500]
        await asyncio.gather(*(bus.put(*each, revision=0, read_at=time.monotonic()) for each in some))


async def test_no_record_stops_a_command_or_forges_a_row(tas: Tas, server: Server, bus: Bus) -> None:
    tas.environment["TAS_BUS"] = server.url
    await put_all(bus)
    for what in ("nodes", "policies", "verdicts", "sources", "gpus"):
        shown, as_json = await tas("get", what), await tas("get", what, "--json")
        for done in (shown, as_json):
            assert (done.code, "Traceback" in done.err) == (0, False), done.err[-2000:]
        lines = (shown.out + shown.err).split("\n")
        assert all(line.isprintable() for line in lines)
        assert any(FORGED in line for line in lines), "it is shown"
        assert not any(line.lstrip().startswith(FORGED) for line in lines)
        assert isinstance(as_json.json, list)
        assert "left out: " in shown.err
    for words in ("status --all", "doctor", "trace load1 x5"):
        done = await tas(*words.split())
        assert (done.code, "Traceback" in done.err) == (1, False), done.err[-2000:]
        assert not any(line.lstrip().startswith(FORGED) for line in done.out.split("\n"))
    found = await tas("get", "verdicts")
    assert "dontschedule.value = " in found.err
    assert "is no Kubernetes quantity" in found.err


async def test_no_record_stops_the_live_view_or_forges_a_line(tas: Tas, server: Server, bus: Bus) -> None:
    """Without a terminal each change is a line: of a node, a policy, the pods that wait."""
    tas.environment["TAS_BUS"] = server.url
    await put_all(bus)
    now = datetime.now(UTC).isoformat()
    many = {f"m{number}": "1" for number in range(20_000)}
    for node, metrics in (("many", many), ("honest", {"load": "1"})):
        scrape = {"source": "s", "measured": now, "arrived": now, "sequence": 1, "metrics": metrics}
        record = encode({"scrapes": [scrape]})
        await bus.put(NODES, f"{node}.metrics", record, revision=0, read_at=time.monotonic())
    pod = json.loads((GOLDEN / "bus" / "pod.json").read_text()) | {"node": None}
    pods = [(f"x.{'p' * 60}{number}", encode(pod)) for number in range(2_000)]
    for start in range(0, len(pods), 500):
        some = pods[start : start + 500]
        await asyncio.gather(*(bus.put(PODS, *each, revision=0, read_at=time.monotonic()) for each in some))
    (port,) = free_ports(1)
    process = await tas.start("top", "--extender-health", f"127.0.0.1:{port}")
    lines: list[str] = []

    async def read() -> None:
        assert process.stdout is not None
        async for line in process.stdout:  # a line of more than 64 KiB is an error here
            lines.append(line.decode())  # noqa: PERF401 - read while it comes

    async def drain() -> bytes:
        assert process.stderr is not None
        return await process.stderr.read()

    reading, errors = asyncio.create_task(read()), asyncio.create_task(drain())
    try:
        for text in ("node honest: violates", "node many: violates", "cluster: waiting: "):
            await eventually(lambda text=text: any(text in line for line in lines))  # type: ignore[misc]
        # It follows on: the view is not stopped by what it has.
        await bus.put(NODES, "late.metrics", record, revision=0, read_at=time.monotonic())
        await eventually(lambda: any("node late: violates" in line for line in lines))
        os.kill(process.pid, signal.SIGINT)
        await eventually(reading.done)
        assert (await process.wait(), b"Traceback" in await errors) == (0, False)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    await reading
    assert all(line.rstrip("\n").isprintable() and len(line) < 5000 for line in lines)
    assert any(FORGED in line for line in lines), "it is shown"
    assert not any(line.lstrip().startswith(FORGED) for line in lines)
    (node,) = [line for line in lines if line.startswith("node many: ")]
    assert node.rstrip().endswith("+19950 more")


async def test_no_event_stops_a_command_or_forges_a_row(tas: Tas, server: Server, bus: Bus) -> None:
    """Each field of each event, and each attribute, has each hostile value."""
    tas.environment["TAS_BUS"] = server.url
    messages: list[tuple[str, bytes, dict[str, str]]] = []
    for number, data in enumerate(EXAMPLES):
        event = event_of(data, Cause("1", number), time=time.time())
        headers = cloudevents.headers(event)
        subject, body = f"tas.events.x.{number}", cloudevents.body(event)
        documents = (*changed(json.loads(body)), [LINE], LINE, DEEP)
        messages += ((subject, json.dumps(document).encode(), headers) for document in documents)
        texts = ("x" * 3000, "", "\x1b[31m", "FORGED  healthy", "9999-99-99T00:00:00Z")
        messages += ((subject, body, headers | {name: text}) for name in headers for text in texts)
        unknown = headers | {"ce-type": f"other.{FORGED}"}
        messages.append((subject, json.dumps({LINE: [LINE, DEEP]}).encode(), unknown))
    for start in range(0, len(messages), 200):
        await bus.publish_each(EVENTS, messages[start : start + 200])
    shown, as_json = await tas("events"), await tas("events", "--json")
    for done in (shown, as_json):
        assert (done.code, "Traceback" in done.err) == (0, False), done.err[-2000:]
        lines = (done.out + done.err).split("\n")
        assert all(line.isprintable() for line in lines)
        assert not any(line.lstrip().startswith(FORGED) for line in lines)
    assert any(FORGED in line for line in shown.out.split("\n")), "it is shown"
    assert max(map(len, shown.out.split("\n"))) < 20_000
    events = [json.loads(line) for line in as_json.out.splitlines()]
    assert len(events) > len(EXAMPLES)
    assert shown.out.count("\n") == len(events)


async def test_reasons_for_a_node_forge_no_row(tas: Tas, server: Server, bus: Bus) -> None:
    tas.environment["TAS_BUS"] = server.url
    now = "2026-01-01T00:00:00Z"
    refused = {"kind": "prometheus", "holder": "h", "since": now, "time": now, "refusedNow": {"node-1": {"load": LINE}}}
    await bus.put(SOURCES, "a", encode(refused), revision=0, read_at=time.monotonic())
    spec = {"strategies": {"dontschedule": {"rules": [{"metricname": "load", "operator": "Equals", "target": 1}]}}}
    policy = {"namespace": "default", "name": "p", "uid": "u", "generation": 1, "spec": spec, "origin": ""}
    await bus.put(POLICIES, "default.p", encode(policy), revision=0, read_at=time.monotonic())
    await bus.put(
        NODES, "node-1.facts", encode({"uid": "u", "labels": {LINE: LINE}}), revision=0, read_at=time.monotonic()
    )
    done = await tas("explain", "node", "node-1")
    assert done.code == 0, done.err
    assert f"x\\n{FORGED}" in done.out
    assert not any(line.lstrip().startswith(FORGED) for line in done.out.split("\n"))


async def test_what_is_too_long_is_cut_with_the_number_of_what_is_left_out(tas: Tas, server: Server, bus: Bus) -> None:
    """One record of a node has 20,000 metrics, and one of a source 20,000 problems."""
    tas.environment["TAS_BUS"] = server.url
    many = 20_000
    metrics = {f"m{number}": "1" for number in range(many)}
    now = "2026-01-01T00:00:00Z"
    scrape = {"source": "s", "measured": now, "arrived": now, "sequence": 1, "metrics": metrics}
    state = {
        "kind": "k",
        "holder": "h",
        "since": now,
        "time": now,
        "metrics": {name: {"missing": "?"} for name in metrics},
    }
    for bucket, key, document in ((NODES, "node-1.metrics", {"scrapes": [scrape]}), (SOURCES, "s", state)):
        await bus.put(bucket, key, encode(document), revision=0, read_at=time.monotonic())
    nodes, sources = await tas("get", "nodes"), await tas("get", "sources")
    assert f"and {many - MAX_VALUES} more values" in nodes.out
    assert len(nodes.out.splitlines()) == MAX_VALUES + 2
    assert f"and {many - MAX_LINES} more lines" in sources.out
    assert len(sources.out.splitlines()) == MAX_LINES + 2
    assert len((await tas("get", "nodes", "--json")).json[0]["samples"]) == many
