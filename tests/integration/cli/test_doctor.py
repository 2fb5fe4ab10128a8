"""`tas doctor` on a simulated cluster: healthy, and broken in several ways."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bus.connection import Bus
from cli.doctor.bus_facts import Stored, read_bus
from lab.sandbox.resources import PODS, TASPOLICIES
from lab.sandbox.server import extender_entry
from tas.policy.policy import API_VERSION, KIND
from tas.samples.sample import newest
from tests.integration.cli.tas import FREE, Done, Tas
from tests.integration.servers import Server, eventually
from tests.integration.tables import put_tables
from tests.sandbox import Sandbox

SKIPPED = "bus.sync,clocks.nodes,policies.crd,rights,scheduler.alike,workloads.daemonset"
"""The simulated cluster has no accounts, leases of nodes, schemas, DaemonSets, and no kube-scheduler that is a pod."""

NEW = {"workers.expected"}
"""Found in each new installation: how many processes should run is known after ten minutes. A hint, so exit code 0."""

RULES = [{"metricname": "health_metric", "operator": "Equals", "target": 2}]
STRATEGIES = {"dontschedule": {"rules": RULES}, "deschedule": {"rules": RULES}}


def pod(name: str, *, key: str = "demo", image: str = "web:1") -> dict[str, Any]:
    """A pod of the policy `demo`, with a node affinity for the label `key`."""
    expression = {"key": key, "operator": "NotIn", "values": ["violating"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    limits = {"telemetry/scheduling": "1"}
    return {
        "metadata": {"name": name, "labels": {"telemetry-policy": "demo"}},
        "spec": {
            "containers": [{"name": "main", "image": image, "resources": {"limits": limits}}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        },
    }


def create_policy(sandbox: Sandbox, namespace: str) -> None:
    body = {"kind": KIND, "apiVersion": API_VERSION, "metadata": {"name": "demo"}, "spec": {"strategies": STRATEGIES}}
    sandbox.cluster.create(TASPOLICIES, namespace, body, manager="test")


def configuration(path: Path, *entries: dict[str, Any]) -> str:
    """A file with a configuration of the scheduler."""
    head = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    path.write_text(json.dumps(head | {"extenders": entries}))
    return str(path)


def bad(done: Done) -> dict[str, str]:
    """What each check found, without those that are ok."""
    return {each["check"]: each["what"] for each in done.json if each["severity"] != "ok"}


async def found(doctor: Callable[[], Awaitable[Done]], checks: set[str]) -> dict[str, str]:
    """The findings, once they are of exactly these checks."""
    last: dict[str, str] = {}

    async def is_found() -> bool:
        done = await doctor()
        last.clear()
        last.update(bad(done))
        worse = {each["severity"] for each in done.json} - {"ok", "hint"}
        assert done.code == int(bool(worse)), done.err
        assert {each["severity"] for each in done.json if each["check"] in NEW} == {"hint"}
        return set(last) == checks

    try:
        await eventually(is_found, every=0.2)
    except AssertionError as error:
        raise AssertionError(last) from error
    return last


async def test_the_samples_of_tables_are_those_of_their_nodes(bus: Bus) -> None:
    nodes = {f"node-{number}": {"health_metric": "0"} for number in range(8)}
    await put_tables(bus, nodes)
    read = await read_bus(bus, embedded=True)
    assert isinstance(read.stored, Stored)
    assert read.stored.samples.keys() == read.stored.nodes.keys() == nodes.keys()
    assert all(newest(samples, "health_metric") is not None for samples in read.stored.samples.values())


async def test_a_healthy_installation_has_no_finding_and_each_fault_is_named(
    tas: Tas, server: Server, tmp_path: Path
) -> None:
    async with Sandbox.start(nodes=["node-1", "node-2"]) as sandbox:
        kubeconfig = str(sandbox.kubeconfig(tmp_path / "kubeconfig"))
        create_policy(sandbox, "default")
        for node in ("node-1", "node-2"):
            sandbox.metrics.set("health_metric", node, 0)
        descheduler = pod("descheduler", image="registry.k8s.io/descheduler/descheduler:v0.36.0")
        sandbox.cluster.create(PODS, "default", descheduler, manager="test")
        command = ("run", "all", "--bus", server.url, "--kubeconfig", kubeconfig, "--node-resource", "1000", *FREE)
        async with tas.running(*command) as running:
            url = (await running.logged("extender_listening"))["url"].removesuffix("/scheduler")
            health = (await running.logged("health_listening"))["url"].removeprefix("http://")
            good = configuration(tmp_path / "good.json", extender_entry(url))
            listen = url.removeprefix("http://")
            flags = ("--listen", listen, "--extender-health", health, "--skip", SKIPPED, "--json")

            async def doctor(*, config: str = good) -> Done:
                files = ("--scheduler-config", config, "--kubeconfig", kubeconfig)
                return await tas("doctor", "--bus", server.url, *files, *flags)

            await running.ready()
            async with sandbox.scheduler(extender_entry(url)):
                sandbox.cluster.create(PODS, "default", pod("web"), manager="test")
                await found(doctor, NEW)

                # Four faults at once: each is found by itself.
                sandbox.metrics.set("load1", "node-1", 1)
                rules = [{"metricname": "node_load1", "operator": "GreaterThan", "target": 8}]
                strategies = {"dontschedule": {"rules": rules}}
                patch = {"spec": {"strategies": STRATEGIES | strategies}}
                sandbox.cluster.patch(TASPOLICIES, "default", "demo", patch, manager="test")
                create_policy(sandbox, "kube-system")
                sandbox.cluster.create(PODS, "default", pod("astray", key="scheduling-policy"), manager="test")
                broken = configuration(tmp_path / "broken.json")
                what = await found(
                    lambda: doctor(config=broken),
                    {
                        *NEW,
                        "metrics.present",
                        "metrics.sources",
                        "policies.label",
                        "proxy.scheduler",
                        "scheduler.configured",
                        "workloads.key",
                        "workloads.label",
                        "workloads.resource",
                    },
                )
                assert what["metrics.present"].endswith("no node has a sample, but there is load1")
                assert "default/demo sets the label" in what["policies.label"]
                assert "scheduling-policy" in what["workloads.key"]
                assert what["workloads.label"] == "no pod has the label of kube-system/demo"

            sandbox.remove_crd()
            done = await doctor()
            assert done.code == 1
            (served,) = (each for each in done.json if each["check"] == "policies.served")
            assert (served["severity"], served["run"]) == ("error", "tas crd | kubectl apply -f -")
            done = await tas("doctor", "--bus", server.url, "--kubeconfig", str(tmp_path / "absent"))
            assert done.code == 2
            assert "does not exist" in done.err
