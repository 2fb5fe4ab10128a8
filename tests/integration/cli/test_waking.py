"""A pod for which every node was rejected is placed as soon as one node passes, by the whole product."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bus.buckets import SAMPLES, VERDICTS
from bus.connection import Bus
from bus.kinds import NODE_VERDICTS
from bus.records.verdicts import decode_verdict
from bus.subjects import samples_subject
from lab.sandbox import extender_entry
from lab.sandbox.resources import PODS, TASPOLICIES
from tas.policy.policy import PolicyKey, StrategyType
from tas.policy.rules import State
from tests.integration.cli.tas import Tas
from tests.integration.servers import Server, eventually
from tests.integration.workers.running import samples_on
from tests.sandbox import Sandbox

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


@asynccontextmanager
async def scheduling(tas: Tas, server: Server, folder: Path, *flags: str) -> AsyncIterator[Sandbox]:
    """A cluster with the product, and a scheduler with the extender."""
    async with Sandbox.start(nodes=NODES) as sandbox:
        kubeconfig = str(sandbox.kubeconfig(folder / "kubeconfig"))
        ports = ("--listen", "127.0.0.1:0", "--health-listen", "127.0.0.1:0")
        command = ("run", "all", "--bus", server.url, "--kubeconfig", kubeconfig, *ports, *flags)
        async with tas.running(*command) as running:
            await running.ready()
            listen = (await running.logged("extender_listening"))["url"].removeprefix("http://").partition("/")[0]
            async with sandbox.scheduler(extender_entry(f"http://{listen}")):
                yield sandbox


@pytest.fixture
async def sandbox(tmp_path: Path, server: Server, bus: Bus) -> AsyncIterator[Sandbox]:
    """A cluster with a policy that rejects nodes without samples."""
    async with scheduling(Tas(tmp_path / "home"), server, tmp_path) as sandbox:
        create_policy(sandbox, "p", SPEC)
        await eventually(partial(have_verdicts, bus, "p"))
        yield sandbox


def create_policy(sandbox: Sandbox, name: str, spec: Any) -> None:
    policy = {"apiVersion": TASPOLICIES.group_version, "kind": TASPOLICIES.kind, "metadata": {"name": name}}
    sandbox.cluster.create(TASPOLICIES, "default", policy | {"spec": spec}, manager="test")


async def have_verdicts(bus: Bus, policy: str) -> bool:
    """Whether the verdict of each node has the policy."""
    entries = [await bus.get(VERDICTS, NODE_VERDICTS.key(node)) for node in NODES]
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

    await eventually(lambda: is_rejected(sandbox, "no fresh sample"))
    await recover(sandbox, bus)
    # Without a wake the scheduler tries the pod again after 5 minutes.
    await eventually(lambda: placed_on(sandbox) is not None)


def is_rejected(sandbox: Sandbox, reason: str) -> bool:
    conditions = sandbox.cluster.get(PODS, "default", "waits")["status"].get("conditions", [])
    return any(reason in condition.get("message", "") for condition in conditions)


def placed_on(sandbox: Sandbox) -> str | None:
    found: str | None = sandbox.cluster.get(PODS, "default", "waits")["spec"].get("nodeName")
    return found


@pytest.mark.parametrize("ends", ["released", "keepFor"])
async def test_a_node_that_was_sick_when_it_fell_silent_gets_no_pod_until_it_is_kept_no_more(
    tmp_path: Path, server: Server, bus: Bus, ends: str
) -> None:
    tas = Tas(tmp_path / "home")
    rules = [{"metricname": "health_metric", "operator": "Equals", "target": 1}]
    keep = {"keepFor": "8s"} if ends == "keepFor" else {}
    async with scheduling(tas, server, tmp_path, "--stale-after", "1s") as sandbox:
        create_policy(sandbox, "p", {"strategies": {"dontschedule": {"rules": rules, **keep}}})
        await eventually(partial(have_verdicts, bus, "p"))
        for node in NODES:
            await bus.publish(SAMPLES, samples_subject(node, "test"), b'{"metrics": {"health_metric": 1}}')
        await eventually(partial(are_rejected_by_last_known_values, bus))
        sandbox.cluster.create(PODS, "default", POD, manager="test")
        await eventually(lambda: is_rejected(sandbox, "Node violates p: health_metric Equals 1 (last known)"))
        assert placed_on(sandbox) is None
        assert (
            "unknown (rejected by a value of" in (await tas("get", "verdicts", "--bus", server.url, COLUMNS="200")).out
        )
        if ends == "released":
            released = await tas("release", NODES[1], "--bus", server.url)
            assert (released.code, NODES[1] in released.out) == (0, True)
            await eventually(lambda: placed_on(sandbox) is not None)
            assert placed_on(sandbox) == NODES[1]
        else:
            await eventually(lambda: placed_on(sandbox) is not None)


async def are_rejected_by_last_known_values(bus: Bus) -> bool:
    entries = [await bus.get(VERDICTS, NODE_VERDICTS.key(node)) for node in NODES]
    verdicts = [decode_verdict(entry.value) for entry in entries if entry is not None and entry.value is not None]
    found = [each.policies[PolicyKey("default", "p")].strategies[StrategyType.DONTSCHEDULE] for each in verdicts]
    return len(found) == len(NODES) and all(
        each.rejects and each.kept_since is not None and each.state is State.UNKNOWN for each in found
    )
