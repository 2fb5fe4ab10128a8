"""A pod for which every node was rejected is placed as soon as one node passes, by the whole product."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bus.buckets import SAMPLES, VERDICTS
from bus.connection import Bus
from bus.records.verdicts import decode_verdict
from bus.subjects import samples_subject, verdict_key
from sandbox import Sandbox, extender_entry
from sandbox.resources import PODS, TASPOLICIES
from tas.policy.policy import PolicyKey
from tests.integration.cli.tas import Tas
from tests.integration.servers import Server, eventually
from tests.integration.workers.running import samples_on

NODES = ("one.example.com", "two.example.com")
SPEC = {
    "strategies": {
        "dontschedule": {
            "rules": [{"metricname": "health_metric", "operator": "Equals", "target": 1}],
            "onStale": "fail",
        }
    }
}
CONTAINER = {"name": "main", "image": "pause", "resources": {"limits": {"telemetry/scheduling": "1"}}}
POD = {
    "metadata": {"name": "waits", "labels": {"telemetry-policy": "p"}},
    "spec": {"containers": [CONTAINER]},
}

Recover = Callable[[Sandbox, Bus], Awaitable[None]]


@pytest.fixture
async def sandbox(tmp_path: Path, server: Server, bus: Bus) -> AsyncIterator[Sandbox]:
    """A cluster with the product, a policy that rejects nodes without samples, and a scheduler with the extender."""
    async with Sandbox.start(nodes=NODES) as sandbox:
        kubeconfig = str(sandbox.kubeconfig(tmp_path / "kubeconfig"))
        ports = ("--listen", "127.0.0.1:0", "--health-listen", "127.0.0.1:0")
        tas = Tas(tmp_path / "home")
        async with tas.running("run", "all", "--bus", server.url, "--kubeconfig", kubeconfig, *ports) as running:
            await running.ready()
            listen = (await running.logged("extender_listening"))["url"].removeprefix("http://").partition("/")[0]
            create_policy(sandbox, "p")
            await eventually(partial(have_verdicts, bus, "p"))
            async with sandbox.scheduler(extender_entry(f"http://{listen}")):
                yield sandbox


def create_policy(sandbox: Sandbox, name: str) -> None:
    policy = {"apiVersion": TASPOLICIES.group_version, "kind": TASPOLICIES.kind, "metadata": {"name": name}}
    sandbox.cluster.create(TASPOLICIES, "default", policy | {"spec": SPEC}, manager="test")


async def have_verdicts(bus: Bus, policy: str) -> bool:
    """Whether the verdict of each node has the policy."""
    entries = [await bus.get(VERDICTS, verdict_key(node)) for node in NODES]
    verdicts = [decode_verdict(entry.value) for entry in entries if entry is not None and entry.value is not None]
    return len(verdicts) == len(NODES) and all(PolicyKey("default", policy) in each.policies for each in verdicts)


async def samples_return(_: Sandbox, bus: Bus) -> None:
    async def stored() -> bool:
        await bus.publish(SAMPLES, samples_subject(NODES[0], "test"), b'{"metrics": {"health_metric": 0}}')
        return bool(await samples_on(bus, NODES[0]))

    await eventually(stored, every=0.1)


def edited(**spec: Any) -> Recover:
    async def edit(sandbox: Sandbox, _: Bus) -> None:
        sandbox.cluster.patch(TASPOLICIES, "default", "p", {"spec": spec}, manager="test")

    return edit


@pytest.mark.parametrize("recover", [samples_return, edited(suspend=True)], ids=["samples-return", "suspend"])
async def test_a_pod_that_was_rejected_for_missing_samples_is_placed_once_a_node_passes(
    sandbox: Sandbox, bus: Bus, recover: Recover
) -> None:
    sandbox.cluster.create(PODS, "default", POD, manager="test")

    def rejected() -> bool:
        conditions = sandbox.cluster.get(PODS, "default", "waits")["status"].get("conditions", [])
        return any("no fresh sample" in condition.get("message", "") for condition in conditions)

    await eventually(rejected)
    await recover(sandbox, bus)
    # Without a wake the scheduler tries the pod again after 5 minutes.
    await eventually(lambda: "nodeName" in sandbox.cluster.get(PODS, "default", "waits")["spec"])
