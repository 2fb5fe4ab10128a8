"""Several consumers of one list and one watch: whom a list serves, and that nobody waits for, or disturbs, another."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from tas.values.backoff import Backoff
from tests.integration.servers import eventually
from tests.integration.workers.kubernetes.test_client_faults import NODE, event, served
from tests.kubernetes.admin import Admin
from tests.sandbox import Call, Sandbox
from workers.kubernetes.client import Change, ChangeType, KubernetesClient, Listing
from workers.kubernetes.reflector import ADMISSION_SECONDS, Reflector
from workers.kubernetes.resources import LABELLED_NODES, NODES, LabelledNode, Object


class Seen:
    """A consumer, with what it was handed: each list as `list` with its nodes, each change as its resource version.

    Attributes:
        may_list: It is ready for a list only while this is set.
        waits: Whether it waits for that now.
    """

    def __init__(self, reflector: Reflector[LabelledNode] | Reflector[Object]) -> None:
        self.colours: dict[str, str] = {}
        self.handed: list[str] = []
        self.may_list = asyncio.Event()
        self.may_list.set()
        self.waits = False
        self.consumer = reflector.consumer(on_list=self._list, on_change=self._change, before_list=self._before_list)

    async def _before_list(self) -> None:
        self.waits = True
        await self.may_list.wait()
        self.waits = False

    def _list(self, listing: Listing[LabelledNode] | Listing[Object]) -> None:
        self.handed.append("list")
        self.colours = {each.metadata.name: each.metadata.labels.get("colour", "") for each in listing.items}

    def _change(self, change: Change[LabelledNode] | Change[Object]) -> None:
        self.handed.append(change.resource_version)
        metadata = change.object.metadata
        if change.type is ChangeType.DELETED:
            self.colours.pop(metadata.name, None)
        else:
            self.colours[metadata.name] = metadata.labels.get("colour", "")

    @property
    def lists(self) -> int:
        assert self.consumer.listed == self.handed.count("list")
        return self.consumer.listed

    @asynccontextmanager
    async def following(self) -> AsyncIterator["Seen"]:
        task = asyncio.create_task(self.consumer.run())
        try:
            yield self
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.wait([task])


class Nodes:
    """The reflector of the nodes of a sandbox, and its requests."""

    def __init__(self, sandbox: Sandbox, admin: Admin, client: KubernetesClient) -> None:
        self.sandbox, self._admin = sandbox, admin
        self.reflector = Reflector(client, LABELLED_NODES)

    @staticmethod
    def are_listed(call: Call) -> bool:
        return (call.verb, call.resource) == ("list", "nodes")

    def requests(self, verb: str) -> int:
        return self.sandbox.count(which=lambda call: call.user_agent == "tas-on-nats/test")[verb, "nodes"]

    async def paint(self, colour: str, *, seen_by: tuple[Seen, ...]) -> None:
        await self._admin.label_node("node-1", {"colour": colour})
        await eventually(lambda: all(each.colours.get("node-1") == colour for each in seen_by))


@asynccontextmanager
async def both(nodes: Nodes) -> AsyncIterator[tuple[Seen, Seen]]:
    """Two consumers, both with a list; one watch."""
    first, second = Seen(nodes.reflector), Seen(nodes.reflector)
    async with first.following(), second.following():
        await eventually(lambda: (first.lists, second.lists) == (1, 1))
        await eventually(lambda: nodes.sandbox.watches == 1)
        yield first, second


async def test_who_is_ready_together_shares_a_list(sandbox: Sandbox, admin: Admin, client: KubernetesClient) -> None:
    nodes = Nodes(sandbox, admin, client)
    async with both(nodes) as (first, second):
        await nodes.paint("red", seen_by=(first, second))
        assert (nodes.requests("list"), nodes.requests("watch")) == (1, 1)
        assert first.handed == second.handed == ["list", first.handed[1]]


async def test_who_joins_later_gets_a_list_of_its_own_and_then_each_change_once(
    sandbox: Sandbox, admin: Admin, client: KubernetesClient
) -> None:
    nodes = Nodes(sandbox, admin, client)
    first, late = Seen(nodes.reflector), Seen(nodes.reflector)
    async with first.following():
        await eventually(lambda: first.lists == 1)
        await nodes.paint("red", seen_by=(first,))
        async with late.following():
            await eventually(lambda: late.lists == 1)
            assert late.colours["node-1"] == "red"
            await nodes.paint("blue", seen_by=(first, late))
            assert (first.lists, late.lists) == (1, 1)
            assert late.handed == ["list", first.handed[-1]]  # and not the change that its list had
            assert len(first.handed) == 3
            assert (nodes.requests("list"), nodes.requests("watch"), sandbox.watches) == (2, 1, 1)


async def test_a_list_serves_nobody_who_became_ready_after_its_request(
    sandbox: Sandbox, admin: Admin, client: KubernetesClient
) -> None:
    nodes = Nodes(sandbox, admin, client)
    release = sandbox.faults.hold(which=nodes.are_listed)
    first, late = Seen(nodes.reflector), Seen(nodes.reflector)
    late.may_list.clear()
    async with first.following(), late.following():
        await eventually(lambda: nodes.requests("list") == 1 and late.waits)
        late.may_list.set()
        await eventually(lambda: not late.waits)
        second = sandbox.faults.hold(which=nodes.are_listed)
        release.set()
        await eventually(lambda: first.lists == 1 and nodes.requests("list") == 2)
        assert late.lists == 0
        second.set()
        await eventually(lambda: late.lists == 1)
        assert first.lists == 1


async def test_nobody_waits_for_what_another_does_before_its_list(
    sandbox: Sandbox, admin: Admin, client: KubernetesClient
) -> None:
    nodes = Nodes(sandbox, admin, client)
    first, blocked = Seen(nodes.reflector), Seen(nodes.reflector)
    blocked.may_list.clear()
    async with blocked.following():
        await eventually(lambda: blocked.waits)
        assert nodes.requests("list") == 0
        async with first.following():
            await eventually(lambda: first.lists == 1)
            await nodes.paint("red", seen_by=(first,))
            first.consumer.relist()
            await eventually(lambda: first.lists == 2)
            assert blocked.handed == []
            assert blocked.consumer.problem == "not listed yet"
            blocked.may_list.set()
            await eventually(lambda: blocked.lists == 1)
            await nodes.paint("blue", seen_by=(first, blocked))
            assert first.lists == 2


async def test_one_who_lists_again_disturbs_nobody(sandbox: Sandbox, admin: Admin, client: KubernetesClient) -> None:
    nodes = Nodes(sandbox, admin, client)
    async with both(nodes) as (again, fine):
        release = sandbox.faults.hold(which=nodes.are_listed)
        again.consumer.relist()
        await eventually(lambda: nodes.requests("list") == 2)
        await nodes.paint("red", seen_by=(fine,))  # the watch goes on meanwhile
        assert again.handed == ["list"]
        release.set()
        await eventually(lambda: again.lists == 2)
        await eventually(lambda: sandbox.watches == 1)
        await nodes.paint("blue", seen_by=(again, fine))
        assert fine.lists == 1
        assert again.handed == ["list", "list", fine.handed[-1]]  # the change before its list is a part of its list
        assert len(fine.handed) == 3


async def test_a_list_that_may_wait_is_requested_once_at_a_time(
    sandbox: Sandbox, admin: Admin, client: KubernetesClient
) -> None:
    nodes = Nodes(sandbox, admin, client)
    async with both(nodes) as (first, second):
        for _ in range(3):
            first.consumer.relist_later()
        await eventually(lambda: first.lists == 2)
        requested_at = first.consumer._later_at
        for _ in range(3):
            first.consumer.relist_later()
        timer = first.consumer._later
        assert timer is not None
        assert timer.when() == requested_at + ADMISSION_SECONDS
        first.consumer.relist()
        await eventually(lambda: first.lists == 3)
        assert timer.cancelled(), "the list came before"
        for lists in (4, 5):
            first.consumer.relist_later()
            first.consumer.relist()
            await eventually(lambda lists=lists: first.lists == lists)  # type: ignore[misc]
        first.consumer.relist_later()
        assert (timer := first.consumer._later) is not None
        assert timer.when() <= asyncio.get_running_loop().time() + ADMISSION_SECONDS, "however many came before"
        assert second.lists == 1


async def test_a_failing_list_of_one_is_no_problem_of_another(
    sandbox: Sandbox, admin: Admin, client: KubernetesClient
) -> None:
    nodes = Nodes(sandbox, admin, client)
    first, late = Seen(nodes.reflector), Seen(nodes.reflector)
    async with first.following():
        await eventually(lambda: first.lists == 1)
        await eventually(lambda: first.consumer.problem is None)
        sandbox.faults.answer(503, times=10**6, which=nodes.are_listed)
        async with late.following():
            await eventually(lambda: "503" in (late.consumer.problem or ""))
            await nodes.paint("red", seen_by=(first,))
            assert first.consumer.problem is None
            assert late.handed == []
            sandbox.faults.clear()
            await eventually(lambda: late.lists == 1)
            assert late.consumer.problem is None


async def test_a_list_that_fails_again_and_again_is_a_problem_of_who_waits_for_it_also_if_the_watch_goes_on(
    sandbox: Sandbox, admin: Admin, client: KubernetesClient
) -> None:
    nodes = Nodes(sandbox, admin, client)
    async with both(nodes) as (again, fine):
        await eventually(lambda: again.consumer.problem is None)
        for status in (503, 410):
            sandbox.faults.answer(status, times=10**6, which=nodes.are_listed)
            again.consumer.relist()
            await eventually(lambda status=status: str(status) in (again.consumer.problem or ""))  # type: ignore[misc]
            await nodes.paint(f"red-{status}", seen_by=(again, fine))
            assert str(status) in (again.consumer.problem or "")
            assert fine.consumer.problem is None
            lists = again.lists
            sandbox.faults.clear()
            await eventually(lambda lists=lists: again.lists > lists)  # type: ignore[misc]
            await eventually(lambda: again.consumer.problem is None)


async def test_a_list_that_ends_after_the_watch_has_expired_needs_no_other_one(
    sandbox: Sandbox, admin: Admin, client: KubernetesClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A long pause: the list certainly ends before the next watch.
    monkeypatch.setattr("workers.kubernetes.reflector.RETRY", Backoff(first=1.0, longest=1.0))
    nodes = Nodes(sandbox, admin, client)
    only = Seen(nodes.reflector)
    async with only.following():
        await eventually(lambda: only.lists == 1 and sandbox.watches == 1)
        release = sandbox.faults.hold(which=nodes.are_listed)
        only.consumer.relist()
        await eventually(lambda: nodes.requests("list") == 2)
        sandbox.faults.answer(410, which=lambda call: (call.verb, call.resource) == ("watch", "nodes"))
        with capture_logs() as logs:
            sandbox.cut_watches()
            await eventually(lambda: any(each["event"] == "kubernetes_watch_expired" for each in logs))
        release.set()
        await eventually(lambda: only.lists == 2)
        await eventually(lambda: sandbox.watches == 1)
        await nodes.paint("red", seen_by=(only,))
        assert (only.lists, nodes.requests("list")) == (2, 2)


async def test_after_an_expired_watch_all_list_again_and_share_one_watch(
    sandbox: Sandbox, admin: Admin, client: KubernetesClient
) -> None:
    nodes = Nodes(sandbox, admin, client)
    async with both(nodes) as (first, blocked):
        blocked.may_list.clear()
        release = sandbox.faults.hold(which=lambda call: (call.verb, call.resource) == ("watch", "nodes"))
        sandbox.cut_watches()
        await eventually(lambda: nodes.requests("watch") == 2)
        await admin.label_node("node-1", {"colour": "red"})
        sandbox.forget_history()
        release.set()  # 410: the change is nowhere but in a list
        await eventually(lambda: first.lists == 2)
        assert first.colours["node-1"] == "red"
        await eventually(lambda: blocked.waits)
        await nodes.paint("blue", seen_by=(first,))
        assert blocked.handed == ["list"]  # nothing after a gap
        blocked.may_list.set()
        await eventually(lambda: blocked.lists == 2)
        await nodes.paint("green", seen_by=(first, blocked))
        assert sandbox.watches == 1
        assert first.lists == 2


async def test_the_watch_ends_with_its_last_consumer_and_a_new_one_begins_with_a_list(
    sandbox: Sandbox, admin: Admin, client: KubernetesClient
) -> None:
    nodes = Nodes(sandbox, admin, client)
    first, second = Seen(nodes.reflector), Seen(nodes.reflector)
    async with AsyncExitStack() as others:
        await others.enter_async_context(second.following())
        async with first.following():
            await eventually(lambda: (first.lists, second.lists, sandbox.watches) == (1, 1, 1))
        await nodes.paint("red", seen_by=(second,))  # one has left, one stays
        assert len(first.handed) == 1
    await eventually(lambda: sandbox.watches == 0)
    before, watched = nodes.requests("list"), nodes.requests("watch")
    await admin.label_node("node-1", {"colour": "blue"})
    async with first.following():
        await eventually(lambda: first.lists == 2)
        assert first.colours["node-1"] == "blue"
        assert (nodes.requests("list") - before, second.lists) == (1, 1)
        await nodes.paint("green", seen_by=(first,))
        assert nodes.requests("watch") - watched == 1
    await eventually(lambda: sandbox.watches == 0)


class Histories:
    """A server of nodes whose lists have these versions, and whose last watch gives `events`."""

    def __init__(self, *versions: str) -> None:
        self._versions = iter(versions)
        self.listing = 0
        self.may_list = asyncio.Event()
        self.may_list.set()
        self.events: asyncio.Queue[bytes] = asyncio.Queue()
        self.watched: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            version = next(self._versions)
            self.listing += 1
            await self.may_list.wait()
            return web.json_response({"kind": "NodeList", "metadata": {"resourceVersion": version}, "items": []})
        events = self.events = asyncio.Queue()  # those of an earlier watch go nowhere
        self.watched.append(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(await events.get())


def changed(version: int) -> bytes:
    return event("MODIFIED", NODE | {"metadata": {**NODE["metadata"], "resourceVersion": str(version)}})


async def test_changes_that_arrive_during_a_list_and_are_later_follow_it(tmp_path: Path) -> None:
    server = Histories("10", "11")
    async with served(server.answer, tmp_path) as client:
        reflector = Reflector(client, NODES)
        first, late = Seen(reflector), Seen(reflector)
        async with first.following():
            await eventually(lambda: server.watched == ["10"])
            server.may_list.clear()
            async with late.following():
                await eventually(lambda: server.listing == 2)
                for version in (11, 12):
                    server.events.put_nowait(changed(version))
                await eventually(lambda: first.handed == ["list", "11", "12"])
                assert late.handed == []
                server.may_list.set()
                await eventually(lambda: late.handed == ["list", "12"])
                server.events.put_nowait(changed(13))
                await eventually(lambda: late.handed[2:] == first.handed[3:] == ["13"])
    assert server.watched == ["10"]


async def test_a_list_of_an_earlier_history_has_all_list_again(tmp_path: Path) -> None:
    """After a restore of etcd: whoever follows from a later version would miss what happens until then."""
    server = Histories("10", "5", "5")
    async with served(server.answer, tmp_path) as client:
        reflector = Reflector(client, NODES)
        first, late = Seen(reflector), Seen(reflector)
        async with first.following():
            await eventually(lambda: server.watched == ["10"])
            async with late.following():
                await eventually(lambda: (first.lists, late.lists) == (2, 1))
                await eventually(lambda: server.watched[1:] != [])
                assert set(server.watched[1:]) == {"5"}


async def test_the_watch_is_opened_again_from_where_it_was_for_those_who_do_not_list(tmp_path: Path) -> None:
    """The list of one is later than what the watch has delivered to the other."""
    server = Histories("10", "12")
    async with served(server.answer, tmp_path) as client:
        reflector = Reflector(client, NODES)
        fine, again = Seen(reflector), Seen(reflector)
        async with fine.following(), again.following():
            await eventually(lambda: server.watched == ["10"] and again.lists == 1)
            again.consumer.relist()
            await eventually(lambda: server.watched == ["10", "10"])
            for version in (11, 12, 13):
                server.events.put_nowait(changed(version))
            await eventually(lambda: fine.handed == ["list", "11", "12", "13"])
            assert again.handed == ["list", "list", "13"]


async def test_after_a_list_each_change_comes_once_and_in_order_if_the_watch_begins_again(tmp_path: Path) -> None:
    """A change before a deletion, delivered again after it, would bring the object back."""
    server = Histories("10", "10")
    async with served(server.answer, tmp_path) as client:
        reflector = Reflector(client, NODES)
        only = Seen(reflector)
        async with only.following():
            await eventually(lambda: server.watched == ["10"])
            server.may_list.clear()
            only.consumer.relist()
            await eventually(lambda: server.listing == 2)
            server.events.put_nowait(changed(11))
            server.events.put_nowait(changed(12))
            await eventually(lambda: reflector.resource_version == "12")
            server.may_list.set()
            await eventually(lambda: server.watched == ["10", "10"])
            for version in (11, 12, 13):  # what an API server delivers after version 10
                server.events.put_nowait(changed(version))
            await eventually(lambda: only.handed[-1] == "13")
    assert only.handed == ["list", "list", "11", "12", "13"]
