"""`tas demo --kubeconfig`: with the product it runs and cleans up; without the product it changes nothing."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.demo.stories import STORIES
from lab.sandbox import extender_entry
from lab.sandbox.resources import NAMESPACES, NODES, PODS, TASPOLICIES
from tests.integration.cli.tas import FREE, Done, Running, Tas
from tests.integration.lab.demo.test_demo import missing_steps
from tests.integration.servers import Server, eventually
from tests.sandbox import Sandbox

NAMES = ("one.example.com", "two.example.com", "three.example.com", "four.example.com")
OUTPUT_OF_STORY = {
    "health-metric": [
        "demo-policy=violating",
        "demo-app-1 is evicted",
        "observed  demo-app-3 is on",
        "no node has a label",
    ],
    "labeling": ["labeling-policy/card0=true", "observed  demo-app-3 is Pending", "observed  demo-app-3 is on"],
    "memory": ["observed  demo-app-3 is Pending", "telemetry.intel.com/recovered=", "observed  demo-app-3 is on"],
}
"""Parts of the output of each demo on a cluster, in this order."""

READS_HEALTH = {"deschedule": {"rules": [{"metricname": "health_metric", "operator": "Equals", "target": 2}]}}


@dataclass
class DemoCluster:
    """A simulated cluster with the product, and the command that runs demos there."""

    tas: Tas
    sandbox: Sandbox
    running: Running
    flags: dict[str, str]

    async def demo(self, story: str, *more: str, **flags: str) -> Done:
        arguments = [part for flag, value in (self.flags | flags).items() for part in (f"--{flag}", value)]
        return await self.tas("demo", story, *arguments, *more)

    def create_pod(self, name: str) -> None:
        """Creates a pod for which the scheduler calls the extender."""
        container = {"name": "main", "image": "pause", "resources": {"limits": {"telemetry/scheduling": "1"}}}
        pod = {"metadata": {"name": name}, "spec": {"containers": [container]}}
        self.sandbox.cluster.create(PODS, "default", pod, manager="test")

    def create_policy(self, name: str, strategies: dict[str, Any]) -> None:
        policy = {
            "apiVersion": TASPOLICIES.group_version,
            "kind": TASPOLICIES.kind,
            "metadata": {"name": name},
            "spec": {"strategies": strategies},
        }
        self.sandbox.cluster.create(TASPOLICIES, "default", policy, manager="test")

    async def placed(self, name: str) -> None:
        await eventually(lambda: "nodeName" in self.sandbox.cluster.get(PODS, "default", name)["spec"])

    def changes(self) -> list[tuple[str, str]]:
        """The verb and path of the command's requests that are neither get nor list."""
        calls = [call for call in self.sandbox.calls if call.user_agent.startswith("tas-on-nats/demo")]
        assert calls
        return [(call.verb, call.path) for call in calls if call.verb not in ("get", "list")]


@pytest.fixture
async def cluster(tas: Tas, tmp_path: Path) -> AsyncIterator[DemoCluster]:
    async with Sandbox.start(nodes=NAMES) as sandbox:
        kubeconfig = str(sandbox.kubeconfig(tmp_path / "kubeconfig"))
        async with tas.running("run", "all", "--kubeconfig", kubeconfig, *FREE) as running:
            await running.ready()
            health = (await running.logged("health_listening"))["url"].removeprefix("http://")
            listen = (await running.logged("extender_listening"))["url"].removeprefix("http://").partition("/")[0]
            flags = {"kubeconfig": kubeconfig, "listen": listen, "extender-health": health, "within": "120s"}
            yield DemoCluster(tas, sandbox, running, flags)


@pytest.fixture
async def with_extender(cluster: DemoCluster) -> AsyncIterator[DemoCluster]:
    """The scheduler calls the extender, and has done so for a pod that still runs."""
    async with cluster.sandbox.scheduler(extender_entry(f"http://{cluster.flags['listen']}")):
        cluster.create_pod("app")
        await cluster.placed("app")
        yield cluster


def cluster_state(cluster: DemoCluster) -> dict[str, Any]:
    """All that a demo could change: the namespaces, policies and pods, and the labels of nodes."""
    store = cluster.sandbox.cluster.store
    found: dict[str, Any] = {
        each["metadata"]["name"]: (each["metadata"]["uid"], each.get("spec"))  # the product may write the status
        for resource in (NAMESPACES, PODS, TASPOLICIES)
        for each in store.items(resource)
    }
    return found | {node["metadata"]["name"]: node["metadata"]["labels"] for node in store.items(NODES)}


@pytest.mark.parametrize("story", [name for name, story in STORIES.items() if not story.own_nodes])
async def test_a_demo_runs_beside_other_objects_and_changes_none_of_them(
    with_extender: DemoCluster, story: str
) -> None:
    before = cluster_state(with_extender)
    done = await with_extender.demo(story)
    assert done.code == 0, done.out + done.err
    assert "about pod default/app\n" in done.out
    assert "tas-demo-probe" not in done.out
    assert done.out.count("    expected  ") == done.out.count("    observed  ")
    assert (
        missing_steps(done.out, [*OUTPUT_OF_STORY[story], "there is no namespace", f"{story}: all steps succeeded\n"])
        == []
    ), done.out
    assert cluster_state(with_extender) == before


async def test_a_demo_creates_a_pod_to_check_the_scheduler_only_with_probe(cluster: DemoCluster) -> None:
    before = cluster_state(cluster)
    async with cluster.sandbox.scheduler(extender_entry(f"http://{cluster.flags['listen']}")):
        refused = await cluster.demo("labeling")
        assert refused.code == 1
        assert "nothing was changed: no evidence that the scheduler of" in refused.err
        cards = await cluster.demo("gpu")
        assert cards.code == 1
        assert "nothing was changed: no worker gpu reports its health at" in cards.err
        assert cluster.changes() == []
        done = await cluster.demo("labeling", "--probe")
    assert done.code == 0, done.out + done.err
    assert "tas-demo-probe is Pending: 0/4 nodes are available" in done.out
    assert cluster_state(cluster) == before


@pytest.mark.long
async def test_a_scheduler_without_the_extender_is_detected_and_all_is_cleaned_up(cluster: DemoCluster) -> None:
    before = cluster_state(cluster)
    async with cluster.sandbox.scheduler():
        cluster.create_pod("app")
        await cluster.placed("app")
        refused = await cluster.demo("memory")
        assert (refused.code, cluster.changes()) == (1, [])
        done = await cluster.demo("memory", "--probe", within="40s")
    cluster.sandbox.cluster.delete(PODS, "default", "app")
    assert done.code == 1
    assert "FAILED    tas-demo-probe is on " in done.out
    assert "there is no namespace memory-demo" in done.out
    assert cluster_state(cluster) == before


def taint(cluster: DemoCluster) -> None:
    for name in NAMES[:2]:
        taints = [{"key": "mine", "effect": "NoSchedule"}]
        cluster.sandbox.cluster.patch(NODES, "", name, {"spec": {"taints": taints}}, manager="test")


REFUSED: dict[str, tuple[Callable[[DemoCluster], object], str]] = {
    "crd": (lambda cluster: cluster.sandbox.remove_crd(), "serves no TASPolicies"),
    "metric": (
        lambda cluster: cluster.create_policy("mine", READS_HEALTH),
        "TASPolicy default/mine reads health_metric: the demo's samples would count for this policy",
    ),
    "name": (
        lambda cluster: cluster.create_policy("demo-policy", {}),
        "TASPolicy default/demo-policy has the name of a policy of the demo",
    ),
    "namespace": (
        lambda cluster: cluster.sandbox.cluster.create(
            NAMESPACES, "", {"metadata": {"name": "health-metric-demo"}}, manager="test"
        ),
        "namespace health-metric-demo already exists",
    ),
    "nodes": (taint, "the demo needs 3 nodes that are Ready"),
    "listen": (lambda cluster: cluster.flags.update({"listen": "127.0.0.1:1"}), "no extender answers at"),
    "health": (
        lambda cluster: cluster.flags.update({"extender-health": cluster.flags["listen"]}),
        "no worker extender reports its health at",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_demo_that_cannot_run_reports_why_and_changes_nothing(with_extender: DemoCluster, case: str) -> None:
    change, reason = REFUSED[case]
    change(with_extender)
    before = cluster_state(with_extender)
    done = await with_extender.demo("health-metric", "--probe")
    assert done.code == 1
    assert "health-metric cannot run, and nothing was changed: " in done.err
    assert reason in done.err
    assert done.out == ""
    assert with_extender.changes() == []
    assert cluster_state(with_extender) == before


async def test_the_bus_of_another_cluster_is_refused(with_extender: DemoCluster, tmp_path: Path) -> None:
    server = Server(tmp_path / "another")
    await server.start()
    try:
        done = await with_extender.demo("memory", bus=server.url)
    finally:
        await server.stop()
    assert done.code == 1
    assert "nothing was changed" in done.err
    assert server.url in done.err
    assert with_extender.changes() == []


async def test_a_demo_runs_beside_a_rule_for_another_source(with_extender: DemoCluster) -> None:
    rule = READS_HEALTH["deschedule"]["rules"][0] | {"source": "agent"}
    with_extender.create_policy("mine", {"deschedule": {"rules": [rule]}})
    done = await with_extender.demo("health-metric")
    assert done.code == 0, done.out + done.err


async def test_an_interrupted_demo_cleans_up(with_extender: DemoCluster) -> None:
    before = cluster_state(with_extender)
    arguments = [part for flag, value in with_extender.flags.items() for part in (f"--{flag}", value)]
    process = await with_extender.tas.start("demo", "memory", *arguments)
    assert process.stdout is not None
    output = b""
    async with asyncio.timeout(120):
        async for line in process.stdout:
            output += line
            if b"pod demo-app-1 is created" in line:
                break
        assert b"pod demo-app-1 is created" in output, (output, await process.communicate())
        os.kill(process.pid, signal.SIGINT)
        out, err = await process.communicate()
    assert process.returncode == 1, (output + out, err)
    assert b"there is no namespace memory-demo" in out
    assert cluster_state(with_extender) == before
