"""Patches of the status of policies over the sandbox: what became of each is counted, logged and returned."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from tas.policy.policy import PolicyKey
from tests.kubernetes.label_fixtures import world
from tests.kubernetes.world import World, deschedule
from tests.sandbox import Sandbox
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import KubernetesError
from workers.kubernetes.resources import POLICIES, PolicyObject
from workers.status.patches import StatusPatches, Unpatched

__all__ = ["world"]


class RefusingClient(KubernetesClient):
    """A client whose API server can refuse a patch, as an admission webhook does."""

    refuses = False

    async def merge_patch(self, resource: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if self.refuses:
            raise KubernetesError(f"{kwargs['namespace']}/{name}: denied the request", code=422)
        return await super().merge_patch(resource, name, *args, **kwargs)


STATUS = {"conditions": [], "observedGeneration": 1}


@pytest.fixture
async def kubeconfig(tmp_path: Path) -> AsyncIterator[Path]:
    async with Sandbox.start() as sandbox:
        yield sandbox.kubeconfig(tmp_path / "kubeconfig")


async def test_a_status_is_replaced_unless_the_policy_has_changed_or_is_gone(world: World, kubeconfig: Path) -> None:
    namespace, name = await world.namespace(), world.name()
    await world.admin.create_policy(namespace, name, strategies=deschedule())
    path = f"{world.admin.policies(namespace)}/{name}"
    async with RefusingClient.connect(kubeconfig, worker="status") as connected:
        client = cast("RefusingClient", connected)
        registry = CollectorRegistry()
        patches = StatusPatches(client, registry)

        async def send(found: PolicyObject, status: object = STATUS, *, ago: float = 0.0) -> PolicyObject | Unpatched:
            return await patches.send(found.metadata, status, spec="as kept", read_at=time.monotonic() - ago)

        def counted() -> dict[str, float]:
            results = ("patched", "conflict", "gone", "failed")
            return {
                each: registry.get_sample_value("tas_policy_status_patches_total", {"result": each}) or 0.0
                for each in results
            }

        found = await client.get(POLICIES, name, namespace=namespace)
        after = await send(found)
        assert isinstance(after, PolicyObject)
        assert (after.status, after.spec) == (STATUS, "as kept"), "there may be no room for its rules"
        assert await send(found) is Unpatched.CONFLICT, "it was read before the first patch"
        assert await send(after, ago=60.0) is Unpatched.CONFLICT, "it may have changed since"
        with capture_logs() as logs:
            client.refuses = True
            assert await send(after) is Unpatched.FAILED
            client.refuses = False
            (concern,) = patches.concerns()
            key = f"{namespace}/{name}"
            assert concern == f"the status of 1 policy cannot be written, as of {key}: {key}: denied the request"
            patches.settle(PolicyKey(namespace, name))
            assert list(patches.concerns()) == []
        assert [(each["event"], f"{namespace}/{name}" in each["error"]) for each in logs] == [
            ("policy_status_failed", True)
        ]
        await world.admin.delete(path)
        assert await send(after) is Unpatched.GONE
        assert list(patches.concerns()) == []
        assert counted() == {"patched": 1, "conflict": 2, "gone": 1, "failed": 1}
