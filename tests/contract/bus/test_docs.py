"""The pages of the bus: their programs run, and their messages are the sample files."""

import asyncio
import base64
import json
import os
import re
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nats
import pytest

from bus.buckets import ALL, DEAD_LETTERS, POLICIES, SAMPLES, SYNCED, VERDICT_LOG, VERDICTS
from bus.connection import Bus
from bus.errors import RefusedError
from bus.events import Expected, publish_events
from bus.records.samples import MAX_SAMPLES_BYTES, MAX_SAMPLES_METRICS, decode_samples
from bus.records.tables import MAX_TABLE_BYTES, MAX_TABLE_METRICS, decode_table
from bus.server import MINIMUM_VERSION, EmbeddedServer
from bus.subjects import policy_key
from bus.subscription import Subscription
from tas.events.data import EndReason, ViolationEnded, ViolationStarted
from tas.events.event import Cause, event_of
from tas.policy.policy import PolicyKey
from tas.samples.capacity import NODE_LIMIT, SOURCE_LIMIT
from tas.samples.parts import MAX_PARTS, MAX_ROWS
from tas.values.quantity import parse_quantity
from tests.integration.bus.limits import long_limits
from tests.integration.servers import eventually
from workers.materialize.stored_tables import MAX_SOURCES

__all__ = ["long_limits"]

pytestmark = pytest.mark.usefixtures("long_limits")

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "contract" / "golden" / "bus"
PAGES = ("how-to/publish.md", "reference/bus.md", "reference/records.md", "how-to/bus-credentials.md")
PAGE = "\n".join((ROOT / "docs" / page).read_text() for page in PAGES)
PUBLISH, PUBLISH_TABLES, WATCH, LOG = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with EmbeddedServer.start(tmp_path) as server:
        yield server


@pytest.fixture
async def bus(server: EmbeddedServer) -> AsyncIterator[Bus]:
    async with Bus.connect(server.url, name="test") as bus:
        await asyncio.wait_for(bus.wait_connected(), 60)
        yield bus


@asynccontextmanager
async def running(program: str, url: str, *arguments: str) -> AsyncIterator[asyncio.StreamReader]:
    """The program's output, as long as the body reads it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "TAS_BUS": url},
    )
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line(output: asyncio.StreamReader) -> str:
    return (await asyncio.wait_for(output.readline(), 60)).decode().strip()


async def test_the_program_that_subscribes_prints_what_begins_and_ends(server: EmbeddedServer, bus: Bus) -> None:
    program, _ = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs" / "how-to" / "subscribing.md").read_text(), re.DOTALL | re.MULTILINE
    )
    of: dict[str, Any] = {"node": "node-1", "namespace": "default", "policy": "demo-policy", "strategy": "deschedule"}
    events = (ViolationStarted(**of, value="2"), ViolationEnded(**of, reason=EndReason.MET))

    async def is_subscribed() -> bool:
        try:
            await bus.api("CONSUMER.INFO.EVENTS.pager")
        except RefusedError:
            return False
        return True

    async with running(program, server.url) as output:
        await eventually(is_subscribed)
        sequence = 0
        for data in events:
            expected = Expected(event_of(data, Cause("1", sequence), time=time.time()), sequence)
            (stored,) = await publish_events(bus, [expected])
            assert isinstance(stored, int)
            sequence = stored
        printed = [await line(output) for _ in range(2)]
        while printed[-1] != "node-1 no longer violates deschedule: met":  # among the lines of the log
            printed.append(await line(output))
    assert "node-1 violates deschedule: 2" in printed


async def test_the_program_that_publishes_stores_a_valid_sample(server: EmbeddedServer, bus: Bus) -> None:
    async with running(PUBLISH, server.url) as output:
        sequence = int((await line(output)).removeprefix("stored as "))
    message = (await bus.api("STREAM.MSG.GET.SAMPLES", {"seq": sequence}))["message"]
    node, scrape, refused = decode_samples(message["subject"], data_of(message), arrived=time.time(), sequence=sequence)
    assert (node, refused) == ("ip-10-0-0-1.ec2.internal", ())
    assert scrape is not None
    assert scrape.source == "my-program"
    assert scrape.metrics == {"health_metric": parse_quantity("2"), "load1": parse_quantity("0.5")}


async def test_the_program_that_publishes_tables_stores_each_node_in_its_part(server: EmbeddedServer, bus: Bus) -> None:
    async with running(PUBLISH_TABLES, server.url) as output:
        printed = [(await line(output)).split() for _ in range(4)]
    stored: dict[str, Any] = {}
    for _, _, sequence, _, count in printed:
        message = (await bus.api("STREAM.MSG.GET.TABLES", {"seq": int(sequence)}))["message"]
        key, table, refused = decode_table(message["subject"], data_of(message), arrived=time.time(), sequence=1)
        assert (key.source, key.part.of, refused.counts) == ("my-program", 4, {})
        assert table is not None
        assert len(table.nodes) == int(count)
        stored |= {node: table.scrapes(node)[0].metrics for node in table.nodes}
    assert stored == {f"node-{number}.example": {"load1": parse_quantity(f"0.{number}")} for number in range(1, 9)}


def data_of(message: dict[str, Any]) -> bytes:
    return base64.b64decode(message["data"])


async def test_the_program_that_watches_prints_created_and_deleted_policies(server: EmbeddedServer, bus: Bus) -> None:
    key = policy_key(PolicyKey("default", "demo.v2"))
    value = (GOLDEN / "policy.json").read_bytes()
    revision = await bus.put(POLICIES, key, value, revision=0, read_at=time.monotonic())
    async with running(WATCH, server.url) as output:
        assert await line(output) == f"default.demo_v2 {json.loads(value)['spec']}"
        assert await line(output) == "that is all for now"
        await bus.put(POLICIES, SYNCED, (GOLDEN / "synced.json").read_bytes(), revision=0, read_at=time.monotonic())
        assert await line(output) == "the list is complete"
        await bus.delete(POLICIES, key, revision=revision, read_at=time.monotonic())
        assert await line(output) == "default.demo_v2 is gone"


async def test_the_program_that_reads_the_log_continues_and_notices_missing_verdicts(
    server: EmbeddedServer, bus: Bus
) -> None:
    value = (GOLDEN / "verdict.json").read_bytes()

    async def put(node: str) -> int:
        revision = await bus.put(VERDICTS, node, value, revision=0, read_at=time.monotonic())

        async def is_copied() -> bool:
            return bool(await bus.last_messages(VERDICT_LOG, f"$KV.VERDICTS.{node}"))

        await eventually(is_copied)
        return revision

    first, second = await put("a"), await put("b_example")
    async with running(LOG, server.url) as output:
        assert [await line(output) for _ in "ab"] == [f"{first} a", f"{second} b_example"]
    third = await put("c")
    async with running(LOG, server.url, str(second)) as output:
        assert await line(output) == f"{third} c"
    await put("d")
    fifth = await put("e")
    (kept,) = await bus.last_messages(VERDICT_LOG, "$KV.VERDICTS.e")
    await bus.api("STREAM.PURGE.VERDICT_LOG", {"seq": kept.sequence})
    async with running(LOG, server.url, str(third)) as output:
        assert await line(output) == f"verdicts are missing after {third}"
        assert await line(output) == f"{fifth} e"


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[str]:
    async with serving(tmp_path, PAGE) as address:
        yield address


@asynccontextmanager
async def serving(tmp_path: Path, page: str) -> AsyncIterator[str]:
    """The address of a server with the users of the page, and `tas` with all permissions."""
    (users,) = re.findall(r"^```\n(authorization .*?)^```", page, re.DOTALL | re.MULTILINE)
    config = re.sub(r'password: ".*?"', 'password: "secret"', users).replace(
        "users: [", 'users: [ {user: "tas", password: "secret"}', 1
    )
    store = json.dumps(str(tmp_path))
    (tmp_path / "nats.conf").write_text(
        f'listen: "127.0.0.1:-1"\nports_file_dir: {store}\njetstream {{ store_dir: {store} }}\n{config}'
    )
    binary = Path(sys.executable).parent / "nats-server"
    process = await asyncio.create_subprocess_exec(
        str(binary), "--config", str(tmp_path / "nats.conf"), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await eventually(lambda: address_of(tmp_path) is not None)
        yield str(address_of(tmp_path))
    finally:
        process.terminate()
        await process.wait()


def address_of(store: Path) -> str | None:
    """The address in the ports file of a started server."""
    for ports in store.glob("*.ports"):
        with suppress(ValueError):
            return str(json.loads(ports.read_bytes())["nats"][0]).removeprefix("nats://")
    return None


async def test_the_permissions_suffice_and_allow_nothing_else(guarded: str) -> None:
    async with Bus.connect(f"nats://tas:secret@{guarded}", name="tas") as bus:
        await asyncio.wait_for(bus.wait_connected(), 60)
        revision = await bus.put(POLICIES, "default.demo", b"{}", revision=0, read_at=time.monotonic())
    own_streams: dict[str, Any] = {"streams": [POLICIES]}
    async with Bus.connect(f"nats://reader:secret@{guarded}", name="reader", **own_streams) as reader:
        await asyncio.wait_for(reader.wait_connected(), 60)
        assert [entry.key for entry in await reader.entries(POLICIES)] == ["default.demo"]
        entry = await reader.get(POLICIES, "default.demo")
        assert entry is not None
        assert entry.revision == revision
        with pytest.raises(RefusedError, match="permission"):
            await reader.put(POLICIES, "default.demo", b"{}", revision=revision, read_at=time.monotonic())
    async with Bus.connect(f"nats://program:secret@{guarded}", name="program", streams=[]) as program:
        await asyncio.wait_for(program.wait_connected(), 60)
        assert await program.publish(SAMPLES, "tas.samples.node-1.my-program", b"{}")
        with pytest.raises(RefusedError, match="permission"):
            await program.publish(SAMPLES, "tas.samples.node-2.my-program", b"{}")


async def test_the_permissions_of_a_subscription_suffice_to_handle_events_and_to_give_them_up(guarded: str) -> None:
    started = ViolationStarted(node="node-1", namespace="default", policy="demo", strategy="deschedule")
    async with Bus.connect(f"nats://tas:secret@{guarded}", name="tas") as bus:
        await asyncio.wait_for(bus.wait_connected(), 60)
        await publish_events(bus, [Expected(event_of(started, Cause("1", 1), time=time.time()), 0)])
        url = f"nats://pager:secret@{guarded}"
        async with Subscription(url, "pager", since_seconds=3600, attempts=1) as events:
            assert (await asyncio.wait_for(anext(events), 60)).data == started
            await events.retry("the channel does not exist")
        info = await bus.api("CONSUMER.INFO.EVENTS.pager")
        assert (info["num_ack_pending"], info["num_pending"]) == (0, 0)
        assert (await bus.last_messages(DEAD_LETTERS, "tas.dead_letters.*"))[0].data == b'{"node":"node-1",' + (
            b'"namespace":"default","policy":"demo","strategy":"deschedule"}'
        )


async def test_the_permissions_suffice_for_a_client_library(guarded: str) -> None:
    async with Bus.connect(f"nats://tas:secret@{guarded}", name="tas") as bus:
        await asyncio.wait_for(bus.wait_connected(), 60)
        await bus.put(POLICIES, "default.demo", b"{}", revision=0, read_at=time.monotonic())
    client = await nats.connect(f"nats://reader:secret@{guarded}", inbox_prefix=b"_INBOX_reader")
    try:
        policies = await client.jetstream().key_value("POLICIES")
        assert (await policies.get("default.demo")).value == b"{}"
        assert await policies.keys() == ["default.demo"]
    finally:
        await client.close()


@pytest.mark.parametrize("allowed", [True, False])
async def test_tas_publish_needs_the_inbox_of_the_page(tmp_path: Path, allowed: bool) -> None:
    (inbox,) = re.findall(r'needs `subscribe: \["(.*?)"\]`', PAGE)
    page = PAGE.replace("_INBOX_program.>", inbox) if allowed else PAGE
    async with serving(tmp_path, page) as address:
        async with Bus.connect(f"nats://tas:secret@{address}", name="tas") as bus:
            await asyncio.wait_for(bus.wait_connected(), 60)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cli", "publish", "node-1", "load1=1", "--source", "my-program"),
            *("--bus", f"nats://program:secret@{address}"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        out, _ = await asyncio.wait_for(process.communicate(), 60)
        assert (process.returncode == 0) is allowed
        # The account of the page cannot read what became of the samples.
        assert (b"whether they are stored is not known" in out) is allowed


def test_every_message_on_the_page_is_a_sample_file() -> None:
    blocks = re.findall(r"^ *```json\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)
    shown = [json.loads(textwrap.dedent(block)) for block in blocks]
    files = [json.loads(path.read_bytes()) for path in GOLDEN.glob("*.json")]
    assert len(shown) == len(files)
    assert all(each in files for each in shown)


def test_the_limits_on_the_page_are_those_of_the_code() -> None:
    assert f"{MAX_SAMPLES_BYTES >> 10} KiB, {MAX_SAMPLES_METRICS:,} metrics" in PAGE
    assert f"{MAX_TABLE_BYTES >> 10} KiB, {MAX_ROWS:,} nodes, {MAX_TABLE_METRICS:,} metrics" in PAGE
    assert f"{MAX_PARTS} parts of a source, {MAX_SOURCES} sources" in PAGE
    assert f"{NODE_LIMIT.pairs:,} pairs of source and metric, {SOURCE_LIMIT.pairs:,} from one source" in PAGE
    assert f"{NODE_LIMIT.size:,} bytes, {SOURCE_LIMIT.size:,} from one source" in PAGE
    kept = f"stream, {SAMPLES.max_age_seconds / 60:g} minutes, at most {SAMPLES.max_bytes >> 30} GiB"
    assert f"| `{SAMPLES.name}` | {kept}, oldest" in PAGE
    assert ".".join(map(str, MINIMUM_VERSION)) in PAGE


@pytest.mark.parametrize("of", ALL, ids=lambda of: of.name)
def test_every_stream_and_bucket_has_a_row(of: Any) -> None:
    assert f"| `{of.name}` |" in PAGE
