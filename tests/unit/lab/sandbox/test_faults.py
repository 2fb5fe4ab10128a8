"""Faults that tests inject, as a client over HTTP sees them."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import aiohttp
import pytest

from lab.sandbox.resources import NODES
from tests.contract.kubernetes.client import Client, until
from tests.sandbox import Call, Drop, Sandbox

PATH = "/api/v1/nodes/node-1"
LABEL = {"metadata": {"labels": {"a": "b"}}}


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox.start(nodes=["node-1"], bookmark_seconds=0.05) as sandbox:
        yield sandbox


@pytest.fixture
async def client(sandbox: Sandbox) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession() as session:
        yield Client(session, sandbox.url)


def is_patch(call: Call) -> bool:
    return call.verb == "patch"


def labels(sandbox: Sandbox) -> dict[str, str]:
    found: dict[str, str] = sandbox.cluster.get(NODES, "", "node-1")["metadata"]["labels"]
    return found


@pytest.mark.parametrize(
    ("status", "reason"),
    [(409, "Conflict"), (429, "TooManyRequests"), (500, "InternalError"), (503, "ServiceUnavailable")],
)
async def test_the_next_matching_requests_fail_and_change_nothing(
    sandbox: Sandbox, client: Client, status: int, reason: str
) -> None:
    sandbox.faults.answer(status, times=2, which=is_patch, retry_after=3)
    assert (await client.get(PATH)).status == 200
    for _ in range(2):
        answer = await client.patch(PATH, LABEL)
        answer.failed(status, reason)
        assert answer.headers["Retry-After"] == "3"
        assert answer.body["details"]["retryAfterSeconds"] == 3
        assert "a" not in labels(sandbox)
    assert (await client.patch(PATH, LABEL)).ok()["metadata"]["labels"]["a"] == "b"
    assert sandbox.faults.waiting == 0


async def test_an_injected_404_does_not_name_the_object(sandbox: Sandbox, client: Client) -> None:
    sandbox.faults.answer(404)
    answer = await client.get(PATH)
    assert (answer.status, answer.body) == (404, "404 page not found\n")


async def test_a_dropped_request_is_not_handled_but_one_with_a_dropped_answer_is(
    sandbox: Sandbox, client: Client
) -> None:
    sandbox.faults.drop(Drop.BEFORE, which=is_patch)
    with pytest.raises(aiohttp.ClientError):
        await client.patch(PATH, LABEL)
    assert "a" not in labels(sandbox)
    sandbox.faults.drop(Drop.AFTER, which=is_patch)
    with pytest.raises(aiohttp.ClientError):
        await client.patch(PATH, LABEL)
    assert labels(sandbox)["a"] == "b"
    assert [call.status for call in sandbox.calls] == [0, 200]
    sandbox.faults.drop(Drop.WITHIN, which=is_patch)
    with pytest.raises(aiohttp.ClientError):
        await client.patch(PATH, LABEL)
    assert not any(call.answered for call in sandbox.calls)
    before = time.time()
    await client.get(PATH)
    assert before <= sandbox.calls[-1].answered <= time.time()


async def test_a_delayed_request_is_handled_later(sandbox: Sandbox, client: Client) -> None:
    sandbox.faults.delay(0.2, which=is_patch)
    began = time.monotonic()
    slow = asyncio.create_task(client.patch(PATH, LABEL))
    before = (await client.get(PATH)).ok()["metadata"]["labels"].get("a")
    assert before is None or time.monotonic() - began >= 0.2  # on a busy machine it took as long
    assert (await slow).status == 200
    assert time.monotonic() - began >= 0.2


async def test_faults_can_be_cleared(sandbox: Sandbox, client: Client) -> None:
    sandbox.faults.answer(500, times=10)
    sandbox.faults.clear()
    assert (await client.get(PATH)).status == 200


async def test_a_cut_watch_ends_with_an_error(sandbox: Sandbox, client: Client) -> None:
    async with client.watch("/api/v1/nodes", resourceVersion="0") as watch:
        assert (await watch.next())["type"] == "ADDED"
        assert sandbox.watches == 1
        sandbox.cut_watches()
        with pytest.raises(aiohttp.ClientError):
            await watch.next()

    async def none_left() -> bool:
        return sandbox.watches == 0

    await until(none_left, "the watch has ended here too")


async def test_a_fault_drops_the_connection_of_a_watch_at_its_end(
    sandbox: Sandbox, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    sandbox.faults.drop(Drop.WITHIN, which=lambda call: call.verb == "watch")
    async with client.watch("/api/v1/nodes", resourceVersion="0", timeoutSeconds="0.1") as watch:
        assert (await watch.next())["type"] == "ADDED"
        with suppress(aiohttp.ClientError):  # if the client has not read the end before
            await watch.rest()

    async def all_gone() -> bool:
        return sandbox.watches == 0

    await until(all_gone, "the watch has ended here too")
    assert (await client.get(PATH)).status == 200
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


async def test_the_watch_of_a_disconnected_client_is_closed(sandbox: Sandbox, client: Client) -> None:
    async with client.watch("/api/v1/nodes", resourceVersion="0") as watch:
        await watch.next()
        assert sandbox.watches == 1

    async def none_left() -> bool:
        return sandbox.watches == 0

    await until(none_left, "nothing had to be written for that")


async def test_forgotten_history_does_not_end_open_watches(sandbox: Sandbox, client: Client) -> None:
    old = await client.version("/api/v1/nodes")
    (await client.patch(PATH, LABEL)).ok()
    new = await client.version("/api/v1/nodes")
    async with client.watch("/api/v1/nodes", resourceVersion=new) as watch:
        sandbox.forget_history()
        sandbox.add_node("node-2")
        assert (await watch.next())["object"]["metadata"]["name"] == "node-2"
    async with client.watch("/api/v1/nodes", resourceVersion=old) as watch:
        (event,) = await watch.rest()
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


async def test_a_continued_list_is_expired_after_history_is_forgotten(sandbox: Sandbox, client: Client) -> None:
    sandbox.add_node("node-2")
    token = (await client.get("/api/v1/nodes", limit=1)).ok()["metadata"]["continue"]
    sandbox.add_node("node-3")
    sandbox.forget_history()
    (await client.get("/api/v1/nodes", **{"continue": token})).failed(410, "Expired")


async def test_requests_are_counted_by_verb_and_resource(sandbox: Sandbox, client: Client) -> None:
    await client.get("/api/v1/nodes")
    mark = len(sandbox.calls)
    await client.get(PATH)
    await client.patch(f"{PATH}/status", LABEL)
    await client.get("/apis")
    async with client.watch("/api/v1/nodes", resourceVersion="0") as watch:
        await watch.next()
    await client.get("/apis/telemetry.intel.com/v1alpha1/namespaces/default/taspolicies/p")
    assert sandbox.count(since=mark) == {
        ("get", "nodes"): 1,
        ("patch", "nodes"): 1,
        ("GET", ""): 1,
        ("watch", "nodes"): 1,
        ("get", "taspolicies"): 1,
    }
    assert sandbox.count(which=lambda call: call.user_agent == "nobody") == {}
    last = sandbox.calls[-1]
    assert (last.namespace, last.name, last.status, last.user_agent) == ("default", "p", 404, "suite/1")
    assert [call.subresource for call in sandbox.calls[mark:]] == ["", "status", "", "", ""]
