"""`tas demo --kubeconfig`: where the product is at work it plays and cleans up; elsewhere it touches nothing."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli.demo.stories import STORIES
from sandbox import Sandbox, extender_entry
from sandbox.resources import NAMESPACES, NODES, PODS, TASPOLICIES
from tests.integration.cli.demo.test_demo import missing_steps
from tests.integration.cli.tas import FREE, Done, Running, Tas
from tests.integration.servers import Server, eventually

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
class Around:
    """A cluster in a box with the product at work, and the command that plays there."""

    tas: Tas
    sandbox: Sandbox
    running: Running
    flags: dict[str, str]

    async def play(self, story: str, *more: str, **flags: str) -> Done:
        arguments = [part for flag, value in (self.flags | flags).items() for part in (f"--{flag}", value)]
        return await self.tas("demo", story, *arguments, *more)

    def create_pod(self, name: str) -> None:
        """One that the scheduler asks about."""
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

    def acts(self) -> list[tuple[str, str]]:
        """The requests of the command that are neither get nor list."""
        calls = [call for call in self.sandbox.calls if call.user_agent.startswith("tas-on-nats/demo")]
        assert calls
        return [(call.verb, call.path) for call in calls if call.verb not in ("get", "list")]


@pytest.fixture
async def around(tas: Tas, tmp_path: Path) -> AsyncIterator[Around]:
    async with Sandbox.start(nodes=NAMES) as sandbox:
        kubeconfig = str(sandbox.kubeconfig(tmp_path / "kubeconfig"))
        async with tas.running("run", "all", "--kubeconfig", kubeconfig, *FREE) as running:
            await running.ready()
            health = (await running.logged("health_listening"))["url"].removeprefix("http://")
            listen = (await running.logged("extender_listening"))["url"].removeprefix("http://").partition("/")[0]
            flags = {"kubeconfig": kubeconfig, "listen": listen, "extender-health": health, "within": "60s"}
            yield Around(tas, sandbox, running, flags)


@pytest.fixture
async def asked(around: Around) -> AsyncIterator[Around]:
    """The scheduler asks the extender, and has done so about a pod that still runs."""
    async with around.sandbox.scheduler(extender_entry(f"http://{around.flags['listen']}")):
        around.create_pod("app")
        await around.placed("app")
        yield around


def cluster_state(around: Around) -> dict[str, Any]:
    """All that a story could change: the namespaces, policies and pods, and the labels of nodes."""
    store = around.sandbox.cluster.store
    found: dict[str, Any] = {
        each["metadata"]["name"]: (each["metadata"]["uid"], each.get("spec"))  # the status is the product's to write
        for resource in (NAMESPACES, PODS, TASPOLICIES)
        for each in store.items(resource)
    }
    return found | {node["metadata"]["name"]: node["metadata"]["labels"] for node in store.items(NODES)}


@pytest.mark.parametrize("story", STORIES)
async def test_a_story_plays_beside_others_and_leaves_only_theirs(asked: Around, story: str) -> None:
    before = cluster_state(asked)
    done = await asked.play(story)
    assert done.code == 0, done.out + done.err
    assert "about pod default/app\n" in done.out
    assert "tas-demo-probe" not in done.out
    assert done.out.count("    expected  ") == done.out.count("    observed  ")
    assert (
        missing_steps(done.out, [*OUTPUT_OF_STORY[story], "there is no namespace", f"{story}: all steps succeeded\n"])
        == []
    ), done.out
    assert cluster_state(asked) == before


async def test_it_is_found_out_by_a_pod_only_if_asked_to(around: Around) -> None:
    before = cluster_state(around)
    async with around.sandbox.scheduler(extender_entry(f"http://{around.flags['listen']}")):
        refused = await around.play("labeling")
        assert refused.code == 1
        assert "nothing was changed: no evidence that the scheduler of" in refused.err
        assert around.acts() == []
        done = await around.play("labeling", "--probe")
    assert done.code == 0, done.out + done.err
    assert "tas-demo-probe is Pending: 0/4 nodes are available" in done.out
    assert cluster_state(around) == before


async def test_a_scheduler_that_does_not_ask_is_found_out_and_all_is_cleaned_up(around: Around) -> None:
    before = cluster_state(around)
    async with around.sandbox.scheduler():
        around.create_pod("app")
        await around.placed("app")
        refused = await around.play("memory")
        assert (refused.code, around.acts()) == (1, [])
        done = await around.play("memory", "--probe", within="8s")
    around.sandbox.cluster.delete(PODS, "default", "app")
    assert done.code == 1
    assert "FAILED    tas-demo-probe is on " in done.out
    assert "there is no namespace memory-demo" in done.out
    assert cluster_state(around) == before


def taint(around: Around) -> None:
    for name in NAMES[:2]:
        taints = [{"key": "mine", "effect": "NoSchedule"}]
        around.sandbox.cluster.patch(NODES, "", name, {"spec": {"taints": taints}}, manager="test")


REFUSED: dict[str, tuple[Callable[[Around], object], str]] = {
    "crd": (lambda around: around.sandbox.remove_crd(), "serves no TASPolicies"),
    "metric": (
        lambda around: around.create_policy("mine", READS_HEALTH),
        "TASPolicy default/mine reads health_metric: the demo's samples would count for this policy",
    ),
    "name": (
        lambda around: around.create_policy("demo-policy", {}),
        "TASPolicy default/demo-policy has the name of a policy of the demo",
    ),
    "namespace": (
        lambda around: around.sandbox.cluster.create(
            NAMESPACES, "", {"metadata": {"name": "health-metric-demo"}}, manager="test"
        ),
        "namespace health-metric-demo already exists",
    ),
    "nodes": (taint, "the demo needs 3 nodes that are Ready"),
    "listen": (lambda around: around.flags.update({"listen": "127.0.0.1:1"}), "no extender answers at"),
    "health": (
        lambda around: around.flags.update({"extender-health": around.flags["listen"]}),
        "no extender reports its health at",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_where_it_cannot_play_it_says_why_and_touches_nothing(asked: Around, case: str) -> None:
    change, told = REFUSED[case]
    change(asked)
    before = cluster_state(asked)
    done = await asked.play("health-metric", "--probe")
    assert done.code == 1
    assert "health-metric cannot run, and nothing was changed: " in done.err
    assert told in done.err
    assert done.out == ""
    assert asked.acts() == []
    assert cluster_state(asked) == before


async def test_another_clusters_bus_is_refused(asked: Around, tmp_path: Path) -> None:
    server = Server(tmp_path / "another")
    await server.start()
    try:
        done = await asked.play("memory", bus=server.url)
    finally:
        await server.stop()
    assert done.code == 1
    assert "nothing was changed" in done.err
    assert server.url in done.err
    assert asked.acts() == []


async def test_a_rule_that_names_another_source_is_no_hindrance(asked: Around) -> None:
    rule = READS_HEALTH["deschedule"]["rules"][0] | {"source": "agent"}
    asked.create_policy("mine", {"deschedule": {"rules": [rule]}})
    done = await asked.play("health-metric")
    assert done.code == 0, done.out + done.err


async def test_interrupted_it_cleans_up(asked: Around) -> None:
    before = cluster_state(asked)
    arguments = [part for flag, value in asked.flags.items() for part in (f"--{flag}", value)]
    process = await asked.tas.start("demo", "memory", *arguments)
    assert process.stdout is not None
    output = b""
    async with asyncio.timeout(120):
        async for line in process.stdout:
            output += line
            if b"pod demo-app-1 is created" in line:
                break
        os.kill(process.pid, signal.SIGINT)
        out, err = await process.communicate()
    assert process.returncode == 1, (output + out, err)
    assert b"there is no namespace memory-demo" in out
    assert cluster_state(asked) == before
