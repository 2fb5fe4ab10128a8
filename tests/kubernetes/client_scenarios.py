"""The client and the reflector over any API server."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from email.utils import parsedate_to_datetime
from functools import partial
from math import inf

import pytest

from tests.integration.servers import eventually
from tests.kubernetes.admin import Admin
from workers.kubernetes.client import WRITE_SECONDS, Change, ChangeType, KubernetesClient, Listing
from workers.kubernetes.errors import ConflictError, ExpiredError, InvalidError, NotFoundError
from workers.kubernetes.reflector import Reflector
from workers.kubernetes.resources import EVENTS, FULL_NODES, LABELLED_NODES, NODES, PODS, POLICIES, Object, Resource

RULES = {"rules": [{"metricname": "health_metric", "operator": "Equals", "target": 1}]}


class Followed:
    """A reflector of nodes, with all calls of its callbacks."""

    def __init__(self, client: KubernetesClient, *, watch_seconds: float) -> None:
        self.nodes: dict[str, Object] = {}
        self.lists: list[Listing[Object]] = []
        self.changes: list[Change[Object]] = []
        self.reflector = Reflector(client, NODES, watch_seconds=watch_seconds)
        self.consumer = self.reflector.consumer(on_list=self._list, on_change=self._change)

    def _list(self, listing: Listing[Object]) -> None:
        self.lists.append(listing)
        self.nodes = {node.metadata.name: node for node in listing.items}

    def _change(self, change: Change[Object]) -> None:
        self.changes.append(change)
        if change.type is ChangeType.DELETED:
            self.nodes.pop(change.object.metadata.name, None)
        else:
            self.nodes[change.object.metadata.name] = change.object

    def has(self, name: str, **labels: str) -> bool:
        node = self.nodes.get(name)
        return node is not None and labels.items() <= node.metadata.labels.items()


@asynccontextmanager
async def followed(client: KubernetesClient, *, watch_seconds: float = 60) -> AsyncIterator[Followed]:
    followed = Followed(client, watch_seconds=watch_seconds)
    task = asyncio.create_task(followed.consumer.run())
    try:
        await eventually(lambda: followed.consumer.listed > 0)
        yield followed
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def watches_ended(client: KubernetesClient) -> float:
    (metric,) = client.metrics.requests.collect()
    return sum(
        sample.value
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.labels["verb"] == "watch" and sample.labels["code"] == "200"
    )


@pytest.mark.real_api
class ClientScenarios:
    """For subclasses with the fixtures of `tests.kubernetes.fixtures`, and `namespace`."""

    async def test_a_list_is_complete_and_a_watch_continues_from_it(
        self, admin: Admin, client: KubernetesClient, node: str
    ) -> None:
        listing = await client.list(NODES)
        assert node in {item.metadata.name for item in listing.items}
        changes = client.watch(NODES, resource_version=listing.resource_version)
        async with aclosing(changes):
            await admin.label_node(node, {"colour": "red"})
            await admin.delete_node(node)
            seen = [await anext(changes)]
            while (seen[-1].type, seen[-1].object.metadata.name) != (ChangeType.DELETED, node):
                seen.append(await anext(changes))
        ours = [change for change in seen if change.object.metadata.name == node]
        assert [change.object.metadata.labels.get("colour") for change in ours] == ["red", "red"]
        assert [change.type for change in ours] == [ChangeType.MODIFIED, ChangeType.DELETED]
        versions = [int(change.resource_version) for change in seen]
        assert versions == sorted(versions)
        assert versions[0] > int(listing.resource_version)

    async def test_pages_together_are_the_list(self, admin: Admin, client: KubernetesClient, namespace: str) -> None:
        names = {f"pod-{number}" for number in range(7)}
        for name in names:
            await admin.create_pod(namespace, name, "paged")
        listing = await client.list(PODS, label_selector="telemetry-policy=paged", page_objects=3)
        assert sorted(pod.metadata.name for pod in listing.items) == sorted(names)

    async def test_the_version_comes_with_the_time(self, client: KubernetesClient) -> None:
        before = time.time()
        version, date = await client.version()
        assert version.git_version.startswith("v")
        theirs = parsedate_to_datetime(date).timestamp()
        assert before - 2 < theirs < time.time() + 1

    async def test_of_a_node_only_metadata_is_sent(self, client: KubernetesClient, node: str) -> None:
        thin = await client.get(NODES, node)
        full = await client.get(FULL_NODES, node)
        assert thin.metadata.uid == full.metadata.uid
        assert thin.metadata.labels == full.metadata.labels
        # The bytes of the response: decoding would drop a status.
        body = await client._call("GET", "list", NODES, NODES.path(), what="list", accept="PartialObjectMetadataList")
        assert b'"PartialObjectMetadata' in body
        assert b'"status":' not in body

    async def test_a_watch_ends_after_its_requested_duration(self, client: KubernetesClient) -> None:
        listing = await client.list(POLICIES)
        changes = client.watch(POLICIES, resource_version=listing.resource_version, seconds=1)
        async with aclosing(changes), asyncio.timeout(100):
            async for change in changes:
                assert change.type is not ChangeType.DELETED

    async def test_a_missing_object_is_confirmed_by_its_name(self, client: KubernetesClient, namespace: str) -> None:
        with pytest.raises(NotFoundError) as caught:
            await client.get(POLICIES, "nobody", namespace=namespace)
        assert caught.value.confirms_missing(group=POLICIES.group, plural=POLICIES.plural, name="nobody")
        assert not caught.value.confirms_missing(group=POLICIES.group, plural=POLICIES.plural, name="other")
        with pytest.raises(NotFoundError) as caught:
            await client.merge_patch(NODES, "nobody", {"metadata": {"labels": {"a": "b"}}}, field_manager="test")
        assert caught.value.confirms_missing(group="", plural="nodes", name="nobody")

    async def test_a_resource_that_is_not_served_confirms_no_missing_object(self, client: KubernetesClient) -> None:
        other = Resource(group="nobody.example.com", version="v1", plural="things", type=Object)
        with pytest.raises(NotFoundError) as caught:
            await client.list(other)
        assert not caught.value.confirms_missing(group=other.group, plural=other.plural, name="")

    async def test_a_patch_without_effect_keeps_the_version(self, client: KubernetesClient, node: str) -> None:
        patch = {"metadata": {"labels": {"colour": "red"}}}
        patched = await client.merge_patch(NODES, node, patch, field_manager="tas-test")
        assert patched.metadata.labels["colour"] == "red"
        again = await client.merge_patch(NODES, node, patch, field_manager="tas-test")
        assert again.metadata.resource_version == patched.metadata.resource_version
        gone = {"metadata": {"labels": {"colour": None, "never": None}}}
        removed = await client.merge_patch(NODES, node, gone, field_manager="tas-test")
        assert "colour" not in removed.metadata.labels

    async def test_a_patch_has_the_field_manager(self, admin: Admin, client: KubernetesClient) -> None:
        # The API server tracks no field managers of a node created without any label.
        await admin.create_node("owned.example.com", zone="a")
        patch = {"metadata": {"labels": {"colour": "violating"}}}
        try:
            patched = await client.merge_patch(LABELLED_NODES, "owned.example.com", patch, field_manager="tas-test")
        finally:
            await admin.delete_node("owned.example.com")
        (managed,) = [each for each in patched.metadata.managed_fields if each.manager == "tas-test"]
        assert managed.operation == "Update"
        assert "f:colour" in managed.fields_v1["f:metadata"]["f:labels"]

    async def test_a_conditional_patch_changes_only_the_object_that_was_read(
        self, client: KubernetesClient, node: str
    ) -> None:
        read = (await client.get(NODES, node)).metadata
        patched = await client.merge_patch(
            NODES,
            node,
            {"metadata": {"uid": read.uid, "resourceVersion": read.resource_version, "labels": {"a": "1"}}},
            field_manager="test",
        )
        with pytest.raises(ConflictError):
            await client.merge_patch(
                NODES,
                node,
                {"metadata": {"uid": read.uid, "resourceVersion": read.resource_version, "labels": {"a": "2"}}},
                field_manager="test",
            )
        with pytest.raises(InvalidError):
            await client.merge_patch(
                NODES, node, {"metadata": {"uid": "another", "labels": {"a": "2"}}}, field_manager="test"
            )
        assert (await client.get(NODES, node)).metadata.labels == patched.metadata.labels

    async def test_an_invalid_label_refuses_the_patch_and_is_named(self, client: KubernetesClient, node: str) -> None:
        patch = {"metadata": {"labels": {"good": "1", "bad": "no value!"}}}
        with pytest.raises(InvalidError) as caught:
            await client.merge_patch(NODES, node, patch, field_manager="test")
        assert "no value!" in str(caught.value)
        assert "good" not in (await client.get(NODES, node)).metadata.labels

    async def test_the_status_subresource_is_patched_separately(self, client: KubernetesClient, node: str) -> None:
        patch = {"status": {"capacity": {"telemetry/scheduling": "5"}}, "metadata": {"labels": {"x": "1"}}}
        patched = await client.merge_patch(FULL_NODES, node, patch, field_manager="test", subresource="status")
        assert patched.status.capacity["telemetry/scheduling"] == "5"

    async def test_a_patch_whose_reads_are_old_is_not_sent(self, client: KubernetesClient, node: str) -> None:
        patch = {"metadata": {"labels": {"late": "1"}}}
        await client.merge_patch(NODES, node, patch, field_manager="test", read_at=inf)
        with pytest.raises(ExpiredError):
            await client.merge_patch(
                NODES,
                node,
                {"metadata": {"labels": {"late": "2"}}},
                field_manager="test",
                read_at=time.monotonic() - WRITE_SECONDS,
            )
        assert (await client.get(NODES, node)).metadata.labels["late"] == "1"

    async def test_a_reflector_reports_the_list_and_every_change(
        self, admin: Admin, client: KubernetesClient, node: str
    ) -> None:
        async with followed(client) as nodes:
            assert nodes.has(node)
            await admin.label_node(node, {"colour": "blue"})
            await eventually(lambda: nodes.has(node, colour="blue"))
            await admin.delete_node(node)
            await eventually(lambda: not nodes.has(node))
            await admin.create_node(node, colour="green")
            await eventually(lambda: nodes.has(node, colour="green"))
            assert nodes.consumer.listed == 1
            assert nodes.consumer.problem is None

    async def test_a_reflector_continues_after_watches_end(
        self, admin: Admin, client: KubernetesClient, node: str
    ) -> None:
        async with followed(client, watch_seconds=1) as nodes:
            for number in range(4):
                await admin.label_node(node, {"number": str(number)})
                await eventually(partial(nodes.has, node, number=str(number)))
                await eventually(lambda number=number: watches_ended(client) > number)  # type: ignore[misc]
            assert nodes.consumer.listed == 1
            versions = [int(change.resource_version) for change in nodes.changes]
            assert versions == sorted(set(versions))  # each change once

    async def test_a_reflector_lists_again_on_request(self, admin: Admin, client: KubernetesClient, node: str) -> None:
        async with followed(client) as nodes:
            nodes.consumer.relist()
            await eventually(lambda: nodes.consumer.listed == 2)
            await admin.label_node(node, {"colour": "grey"})
            await eventually(lambda: nodes.has(node, colour="grey"))

    async def test_a_created_object_is_stored(self, client: KubernetesClient, admin: Admin, node: str) -> None:
        event = {
            "metadata": {"name": f"{node}.tried", "namespace": "default"},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node},
            "type": "Warning",
            "reason": "Tried",
            "message": "a message",
        }
        created = await client.create(EVENTS, event, namespace="default")
        assert (created.metadata.name, created.metadata.namespace) == (f"{node}.tried", "default")
        stored = await admin.get(f"/api/v1/namespaces/default/events/{node}.tried")
        assert stored["message"] == "a message"
        with pytest.raises(ConflictError):
            await client.create(EVENTS, event, namespace="default")

    async def test_only_the_object_of_the_uid_is_deleted(
        self, client: KubernetesClient, admin: Admin, namespace: str
    ) -> None:
        created = await admin.create_policy(namespace, "one", strategies={"deschedule": RULES})
        with pytest.raises(ConflictError):
            await client.delete(POLICIES, "one", uid="another", namespace=namespace)
        await client.delete(POLICIES, "one", uid=created["metadata"]["uid"], namespace=namespace)
        with pytest.raises(NotFoundError) as caught:
            await client.get(POLICIES, "one", namespace=namespace)
        assert caught.value.confirms_missing(group="telemetry.intel.com", plural="taspolicies", name="one")

    async def test_a_pod_is_evicted(self, client: KubernetesClient, admin: Admin, namespace: str) -> None:
        for name in ("goes", "stays"):
            await admin.create_pod(namespace, name, "one")
        await client.evict("goes", namespace=namespace)

        async def is_deleted() -> bool:
            with suppress(NotFoundError):
                await client.get(PODS, "goes", namespace=namespace)
                return False
            return True

        await eventually(is_deleted)
        assert (await client.get(PODS, "stays", namespace=namespace)).metadata.name == "stays"
        with pytest.raises(NotFoundError):
            await client.evict("nobody", namespace=namespace)
