"""The contract of the sandbox, checked on a real API server: where they differ, the sandbox is wrong."""

import json
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
import yaml

from cli.crd import crd_manifest
from tests.contract.kubernetes.client import Client, Object, until
from tests.contract.kubernetes.suite import ALL_POLICIES, CRD, KubernetesContract, Server
from tests.contract.kubernetes.tables import TableContract

from .api import ApiError
from .cluster import Cluster

CRDS = CRD.rpartition("/")[0]


class RealServer(Server):
    """The API server of the harness."""

    def __init__(self, client: Client) -> None:
        self.client = client

    @asynccontextmanager
    async def without_policies(self) -> AsyncIterator[None]:
        (await self.client.delete(CRD)).ok()
        await until(self._are_not_served, "policies are not served")
        try:
            yield
        finally:
            await self.install()

    async def forget(self) -> str:
        return "1"  # older than the CRD

    async def install(self) -> None:
        """Creates the CRD, and waits until it is served."""
        definition: Object = yaml.safe_load(crd_manifest())
        (await self.client.create(CRDS, definition)).ok()
        await until(self._are_served, "policies are served")

    async def _are_not_served(self) -> bool:
        return (await self.client.get(CRD)).status == 404 and not await self._are_served()

    async def _are_served(self) -> bool:
        return (await self.client.get(ALL_POLICIES)).status == 200


@pytest.fixture(scope="module", autouse=True)
def leave_definition_as_found(cluster: Cluster) -> Iterator[None]:
    """Later tests find the CRD as before: it exists, or they create it. And they find no pods and policies of these."""
    was_there = _is_there(cluster)
    yield
    for namespace in cluster.api.get("/api/v1/namespaces")["items"]:
        if (name := namespace["metadata"]["name"]).startswith("contract-"):
            cluster.delete_pods(name)
            cluster.delete_policies(name)
    if not was_there and _is_there(cluster):
        cluster.api.delete(CRD)


class TestRealApiServer(KubernetesContract, TableContract):
    @pytest.fixture
    async def server(self, cluster: Cluster) -> AsyncIterator[Server]:
        context = ssl.create_default_context(cafile=str(cluster.folder / "ca.crt"))
        context.load_cert_chain(cluster.folder / "admin.crt", cluster.folder / "admin.key")
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
            url = json.loads(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
            server = RealServer(Client(session, url))
            if not _is_there(cluster):
                await server.install()
            yield server


def _is_there(cluster: Cluster) -> bool:
    try:
        cluster.api.get(CRD)
    except ApiError as error:
        if error.status == 404:
            return False
        raise
    return True
