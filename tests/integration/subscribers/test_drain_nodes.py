import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from bus.buckets import PAUSED
from bus.connection import Bus
from bus.kinds import BREAKER_RECORDS, PAUSE_RECORDS
from lab.sandbox.resources import BUDGETS, NODES, PODS
from tas.events.data import LabelApplied, LabelRemoved
from tas.verdict.freeze import ALL, Breaker, Pause, Trip
from tests.integration.servers import eventually
from tests.sandbox import Sandbox

from .running import publish, running, store


def owner(kind: str, *, controller: bool = True) -> dict[str, Any]:
    return {"api_version": "apps/v1", "kind": kind, "name": "o", "uid": "1", "controller": controller}


@pytest.fixture
def drain(example: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    """The example, which tries again soon."""
    module = example("drain_nodes")
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.05)
    caplog.set_level(logging.INFO, "drain")
    return module


@pytest.mark.parametrize(
    ("metadata", "phase", "expected"),
    [
        ({}, "Running", True),
        ({"owner_references": [owner("ReplicaSet")]}, "Pending", True),
        ({"owner_references": [owner("DaemonSet")]}, "Running", False),
        ({"owner_references": [owner("DaemonSet", controller=False)]}, "Running", True),
        ({"annotations": {"kubernetes.io/config.mirror": "x"}}, "Running", False),
        ({}, "Succeeded", False),
        ({}, "Failed", False),
    ],
)
def test_the_pods_that_kubectl_drain_leaves_stay(
    drain: Any, metadata: dict[str, Any], phase: str, *, expected: bool
) -> None:
    from kubernetes_asyncio import client  # its import takes a quarter of a second, in each worker of pytest

    owners = [client.V1OwnerReference(**each) for each in metadata.get("owner_references", ())]
    made = client.V1ObjectMeta(**metadata | {"owner_references": owners or None})
    pod = client.V1Pod(metadata=made, status=client.V1PodStatus(phase=phase))
    assert drain.must_move(pod) is expected


async def test_a_labelled_node_is_drained_as_budgets_breaker_and_pause_allow(
    drain: Any,
    bus: Bus,
    sandbox: Sandbox,
    kubeconfig: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = sandbox.cluster
    daemon = {
        "ownerReferences": [{"kind": "DaemonSet", "name": "d", "uid": "1", "apiVersion": "v1", "controller": True}]
    }
    for name, more in (("web", {}), ("kept", {"labels": {"app": "kept"}}), ("daemon", daemon)):
        pod = {"metadata": {"name": name} | more, "spec": {"containers": [{"name": "main"}]}}
        cluster.create(PODS, "default", pod, manager="user")
        cluster.bind("default", name, {"metadata": {"name": name}, "target": {"name": "node-1"}}, manager="user")
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}
    cluster.create(BUDGETS, "default", {"metadata": {"name": "b"}, "spec": budget}, manager="user")
    for node in ("node-1", "node-2"):
        cluster.patch(NODES, "", node, {"metadata": {"labels": {"demo": "violating"}}}, manager="labels")
    cluster.patch(NODES, "", "node-3", {"spec": {"unschedulable": True}}, manager="user")

    def cordoned() -> set[str]:
        return {each["metadata"]["name"] for each in cluster.store.items(NODES) if each["spec"].get("unschedulable")}

    def pods() -> set[str]:
        return {each["metadata"]["name"] for each in cluster.store.items(PODS)}

    async def said(text: str) -> None:
        caplog.clear()
        await eventually(lambda: any(text in line for line in caplog.messages))

    checked = 0
    check_brake = drain.check_brake

    async def check_and_pause(bus: Bus, policy: str, node: str) -> None:
        """The check, but somebody pauses labels right before the second one that allows node-1 to be drained."""
        nonlocal checked
        if checked == 1:
            await store(bus, PAUSE_RECORDS, PAUSED, Pause(by="user", since=time.time()))
            checked += 1
        await check_brake(bus, policy, node)
        checked += 1

    admitted = Breaker(nodes={"node-1": 1})
    await store(bus, PAUSE_RECORDS, PAUSED, Pause(by="user", since=time.time()))
    await store(bus, BREAKER_RECORDS, "demo", admitted)
    await store(bus, BREAKER_RECORDS, ALL, Breaker(nodes={"node-1": 1, "node-2": 1}))
    async with running(drain, bus, "drain-demo", "demo", kubeconfig):
        await publish(bus, LabelApplied(node="node-1", label="demo", value="violating", policy="demo"))
        await said("node-1 is not drained: labels are paused")
        assert (cordoned(), pods()) == ({"node-3"}, {"web", "kept", "daemon"})

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(drain, "check_brake", check_and_pause)
            await store(bus, PAUSE_RECORDS, PAUSED, None)
            await eventually(lambda: checked == 2)
            await said("node-1 is not drained: labels are paused")
            assert (cordoned(), pods()) == ({"node-1", "node-3"}, {"web", "kept", "daemon"})

        await store(bus, PAUSE_RECORDS, PAUSED, None)
        await eventually(lambda: (cordoned(), pods()) == ({"node-1", "node-3"}, {"kept", "daemon"}))
        await said("default/kept stays for now")
        assert pods() == {"kept", "daemon"}
        await said("node-2 is not drained: the breaker demo has not admitted node-2")
        cluster.patch(NODES, "", "node-2", {"metadata": {"labels": {"demo": None}}}, manager="labels")
        await said("default/kept stays for now")  # again and again, without an event

        trip = Trip(since=time.time(), limit=1, wanted=2, selected=3)
        await store(bus, BREAKER_RECORDS, "demo", Breaker(nodes=admitted.nodes, trip=trip))
        await said("node-1 is not drained: the breaker demo has tripped")
        cluster.delete(BUDGETS, "default", "b")
        await said("node-1 is not drained: the breaker demo has tripped")
        everywhere = Breaker(nodes={"node-1": 1, "node-2": 1})
        await store(bus, BREAKER_RECORDS, ALL, Breaker(nodes=everywhere.nodes, trip=trip))
        await store(bus, BREAKER_RECORDS, "demo", admitted)
        await said("node-1 is not drained: the breaker _all has tripped")
        assert "kept" in pods()
        await store(bus, BREAKER_RECORDS, ALL, everywhere)
        await eventually(lambda: pods() == {"daemon"})

        cluster.patch(NODES, "", "node-1", {"metadata": {"labels": {"demo": None}}}, manager="labels")
        await publish(bus, LabelRemoved(node="node-1", label="demo", previous="violating", policy="demo"))
        await eventually(lambda: cordoned() == {"node-3"})  # which somebody else has cordoned

        async def check_and_unlabel(bus: Bus, policy: str, node: str) -> None:
            """The check, but the label goes between the read of node-1 and the patch."""
            await check_brake(bus, policy, node)
            cluster.patch(NODES, "", "node-1", {"metadata": {"labels": {"demo": None}}}, manager="labels")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(drain, "check_brake", check_and_unlabel)
            caplog.clear()
            cluster.patch(NODES, "", "node-1", {"metadata": {"labels": {"demo": "violating"}}}, manager="labels")
            await publish(bus, LabelApplied(node="node-1", label="demo", value="violating", policy="demo"))
            await eventually(lambda: any("interrupted" in line for line in caplog.messages))
            assert "node-1 is cordoned" not in caplog.messages
