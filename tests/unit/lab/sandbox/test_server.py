import asyncio

import aiohttp
import pytest

from lab.sandbox.resources import CRDS, NAMESPACES, NODES, PODS, TASPOLICIES
from tests.contract.kubernetes.client import Client
from tests.sandbox import Sandbox


async def test_a_new_sandbox_has_the_requested_nodes() -> None:
    async with Sandbox.start(nodes=["node-1", "node-2"]) as sandbox:
        store = sandbox.cluster.store
        assert [node["metadata"]["name"] for node in store.items(NODES)] == ["node-1", "node-2"]
        assert store.items(NODES)[0]["metadata"]["labels"] == {"kubernetes.io/hostname": "node-1"}
        assert [each["metadata"]["name"] for each in store.items(NAMESPACES)] == ["default", "kube-system"]
        assert sandbox.cluster.serves(TASPOLICIES)
        assert sandbox.calls == []


async def test_a_sandbox_stops_with_open_watches() -> None:
    async with aiohttp.ClientSession() as session:
        async with Sandbox.start(nodes=["node-1"]) as sandbox:
            response = await session.get(f"{sandbox.url}/api/v1/nodes?watch=true")
            await response.content.readline()
            before = asyncio.all_tasks()
        assert await response.content.read() == b""
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"{sandbox.url}/version")
    assert asyncio.all_tasks() <= before


async def test_two_sandboxes_are_independent() -> None:
    async with Sandbox.start(nodes=["node-1"]) as one, Sandbox.start() as other:
        assert one.url != other.url
        assert other.cluster.store.items(NODES) == []


async def test_the_definition_can_be_deleted_and_created_again() -> None:
    async with Sandbox.start() as sandbox:
        policy = {"apiVersion": "telemetry.intel.com/v1alpha1", "kind": "TASPolicy", "metadata": {"name": "p"}}
        sandbox.cluster.create(TASPOLICIES, "default", policy, manager="test")
        sandbox.remove_crd()
        assert not sandbox.cluster.serves(TASPOLICIES)
        sandbox.install_crd()
        assert sandbox.cluster.store.items(TASPOLICIES) == []


async def test_a_deleted_namespace_deletes_its_contents() -> None:
    async with Sandbox.start() as sandbox:
        pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}
        sandbox.cluster.create(NAMESPACES, "", {"metadata": {"name": "mine"}}, manager="test")
        for namespace in ("mine", "default"):
            sandbox.cluster.create(PODS, namespace, pod, manager="test")
        sandbox.cluster.delete(NAMESPACES, "", "mine")
        assert [each["metadata"]["namespace"] for each in sandbox.cluster.store.items(PODS)] == ["default"]


async def test_the_definition_is_stored_as_it_is_applied() -> None:
    async with Sandbox.start() as sandbox, aiohttp.ClientSession() as session:
        sandbox.remove_crd()
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        sent = {"metadata": {"name": "taspolicies.telemetry.intel.com"}, "spec": {"versions": [{"name": "v1alpha1"}]}}
        created = (await Client(session, sandbox.url).create(path, sent)).ok()
        assert created["spec"] == sent["spec"]
        assert sandbox.cluster.serves(TASPOLICIES)
        assert len(sandbox.cluster.store.items(CRDS)) == 1
