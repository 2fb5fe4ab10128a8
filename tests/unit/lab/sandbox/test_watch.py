import aiohttp

from tests.contract.kubernetes.client import Client
from tests.sandbox import Sandbox

NODES = "/api/v1/nodes"


async def test_a_bookmark_is_sent_once() -> None:
    """One bookmark for all changes since the last event or bookmark."""
    async with Sandbox.start(bookmark_seconds=0.02) as sandbox, aiohttp.ClientSession() as session:
        client = Client(session, sandbox.url)
        version = await client.version(NODES)
        query = {"resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": "1"}
        sandbox.add_node("node-1")  # on a busy machine the watch may end at once
        async with client.watch(NODES, fieldSelector="metadata.name=nobody", **query) as watch:
            (event,) = await watch.rest()
        assert event["type"] == "BOOKMARK"
        assert event["object"]["metadata"] == {"resourceVersion": str(int(version) + 1)}


async def test_a_watch_that_ends_before_its_first_bookmark_is_due_gets_one() -> None:
    """As from a real API server, shortly before the end."""
    async with Sandbox.start(bookmark_seconds=60.0) as sandbox, aiohttp.ClientSession() as session:
        client = Client(session, sandbox.url)
        version = await client.version(NODES)
        query = {"resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": "0.01"}
        sandbox.add_node("node-1")
        async with client.watch(NODES, fieldSelector="metadata.name=nobody", **query) as watch:
            (event,) = await watch.rest()
        assert event["object"]["metadata"] == {"resourceVersion": str(int(version) + 1)}


async def test_bookmarks_are_sent_only_on_request() -> None:
    async with Sandbox.start(bookmark_seconds=0.02) as sandbox, aiohttp.ClientSession() as session:
        client = Client(session, sandbox.url)
        query = {"resourceVersion": await client.version(NODES), "timeoutSeconds": "1"}
        sandbox.add_node("node-1")
        async with client.watch(NODES, fieldSelector="metadata.name=nobody", **query) as watch:
            assert await watch.rest() == []


async def test_send_initial_events_is_rejected() -> None:
    """As on a server without the feature WatchList: clients then list first."""
    async with Sandbox.start() as sandbox, aiohttp.ClientSession() as session:
        answer = await Client(session, sandbox.url).get(NODES, watch="true", sendInitialEvents="true")
        assert "WatchList" in answer.failed(422, "Invalid")
