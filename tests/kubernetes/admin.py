"""An administrator of an API server, sandbox or real: makes changes without the product."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp.connector import NEEDS_CLEANUP_CLOSED

from tests.integration.servers import eventually
from workers.kubernetes.credentials import Credentials

Object = dict[str, Any]
MERGE_PATCH = "application/merge-patch+json"
POLICIES = "/apis/telemetry.intel.com/v1alpha1"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CRD = f"{CRDS}/taspolicies.telemetry.intel.com"


class AdminError(Exception):
    """The API server answered with a status other than 2xx."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        super().__init__(f"{method} {path}: {status} {body[:500]}")
        self.status = status


class Admin:
    """Creates, changes and deletes objects. Uses no code of the product but the reading of the kubeconfig file.

    Attributes:
        kubeconfig: The file with its credentials.
    """

    def __init__(self, kubeconfig: Path, credentials: Credentials, session: aiohttp.ClientSession) -> None:
        self.kubeconfig = kubeconfig
        self._credentials = credentials
        self._session = session

    @classmethod
    @asynccontextmanager
    async def connect(cls, kubeconfig: Path) -> AsyncIterator["Admin"]:
        credentials = await Credentials.load(kubeconfig)
        tls = credentials.tls if credentials.tls is not None else True
        connector = aiohttp.TCPConnector(ssl=tls, enable_cleanup_closed=NEEDS_CLEANUP_CLOSED)
        async with aiohttp.ClientSession(connector=connector) as session:
            yield cls(kubeconfig, credentials, session)

    async def request(
        self, method: str, path: str, body: Object | None = None, *, content_type: str = "application/json"
    ) -> Object:
        headers = {"Content-Type": content_type} | await self._credentials.headers()
        data = None if body is None else json.dumps(body)
        url = self._credentials.server + path
        async with self._session.request(method, url, data=data, headers=headers) as response:
            text = await response.text()
            if not 200 <= response.status < 300:
                raise AdminError(method, path, response.status, text)
            answer: Object = json.loads(text)
            return answer

    async def create(self, path: str, body: Object) -> Object:
        return await self.request("POST", path, body)

    async def get(self, path: str) -> Object:
        return await self.request("GET", path)

    async def patch(self, path: str, body: Object) -> Object:
        return await self.request("PATCH", path, body, content_type=MERGE_PATCH)

    async def delete(self, path: str) -> None:
        """Deletes at once; a missing object is no error."""
        try:
            await self.request("DELETE", path, {"gracePeriodSeconds": 0})
        except AdminError as error:
            if error.status != 404:
                raise

    # Nodes, policies and pods

    async def create_node(self, name: str, **labels: str) -> Object:
        """Creates a node that is Ready, so that no controller changes it."""
        created = await self.create("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})

        async def ready() -> bool:
            nonlocal created
            if not _is_ready(created):
                created = await self.get(f"/api/v1/nodes/{name}")
            return _is_ready(created)

        await eventually(ready, every=0.02)
        return created

    async def label_node(self, name: str, labels: Mapping[str, str | None]) -> Object:
        return await self.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": dict(labels)}})

    async def delete_node(self, name: str) -> None:
        await self.delete(f"/api/v1/nodes/{name}")

    async def create_policy(self, namespace: str, name: str, **spec: Any) -> Object:
        body = {
            "apiVersion": "telemetry.intel.com/v1alpha1",
            "kind": "TASPolicy",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }
        return await self.create(self.policies(namespace), body)

    async def change_policy(self, namespace: str, name: str, patch: Object) -> Object:
        return await self.patch(f"{self.policies(namespace)}/{name}", patch)

    async def delete_policy(self, namespace: str, name: str) -> None:
        await self.delete(f"{self.policies(namespace)}/{name}")

    def policies(self, namespace: str) -> str:
        return f"{POLICIES}/namespaces/{namespace}/taspolicies"

    async def policies_are_served(self) -> bool:
        """False also for some time after the CRD is created."""
        with suppress(AdminError):
            await self.get(self.policies("default"))
            return True
        return False

    @asynccontextmanager
    async def without_policies(self) -> AsyncIterator[None]:
        """Deletes the CRD and so all policies, and creates the CRD again after the body."""
        found = await self.get(CRD)
        metadata = {name: found["metadata"].get(name) for name in ("name", "annotations")}
        await self.delete(CRD)
        try:
            await eventually(self._is_crd_deleted, every=0.05)
            yield
        finally:
            await self.create(CRDS, {"metadata": metadata, "spec": found["spec"]})
            await eventually(self.policies_are_served, every=0.05)

    async def _is_crd_deleted(self) -> bool:
        for path in (CRD, self.policies("default")):
            try:
                await self.get(path)
            except AdminError as error:
                if error.status == 404:
                    continue
            return False
        return True

    async def create_pod(self, namespace: str, name: str, policy: str | None, **spec: Any) -> Object:
        labels = {} if policy is None else {"telemetry-policy": policy}
        body = {
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {"containers": [{"name": "main", "image": "pause"}]} | spec,
        }
        return await self.create(f"/api/v1/namespaces/{namespace}/pods", body)

    async def bind(self, namespace: str, pod: str, node: str) -> None:
        body = {"metadata": {"name": pod}, "target": {"apiVersion": "v1", "kind": "Node", "name": node}}
        await self.create(f"/api/v1/namespaces/{namespace}/pods/{pod}/binding", body)

    async def refuse(self, namespace: str, pod: str, message: str) -> None:
        """What a scheduler writes that has found no node for the pod."""
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        status = {"conditions": [condition | {"lastTransitionTime": "2026-01-01T00:00:00Z"}]}
        await self.patch(f"/api/v1/namespaces/{namespace}/pods/{pod}/status", {"status": status})

    async def delete_pod(self, namespace: str, name: str) -> None:
        await self.delete(f"/api/v1/namespaces/{namespace}/pods/{name}")


def _is_ready(node: Object) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)
