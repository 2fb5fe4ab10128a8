"""`tas run` on a cluster, as a user runs it."""

import json
from pathlib import Path

import aiohttp
import pytest

from bus.connection import Bus
from tests.integration.cli.tas import FREE, HEALTH, Running, Tas, filter_request
from tests.integration.servers import Server, eventually
from tests.integration.workers.running import policies_on
from tests.kubernetes.admin import Admin
from tests.kubernetes.watch_scenarios import strategies
from tests.sandbox import Sandbox


async def workers_of(running: Running) -> dict[str, str | None]:
    workers: dict[str, str | None] = json.loads((await running.health("/readyz"))[1])["workers"]
    return workers


async def test_on_a_cluster_a_published_sample_changes_what_the_extender_answers(
    tas: Tas, admin: Admin, kubeconfig: Path, namespace: str
) -> None:
    await admin.create_policy(namespace, "demo-policy", strategies=strategies(2))
    async with tas.running("run", "all", "--kubeconfig", str(kubeconfig), *FREE) as running:
        await running.ready()
        assert {"bus", "materialize", "watch", "extender"} <= set(await workers_of(running))
        assert "policies" not in await workers_of(running)
        (policy,) = (await tas("get", "policies", "--json")).json
        assert policy["name"] == "demo-policy"
        assert (await tas("publish", "node-1", "health_metric=2")).code == 0
        # Samples of a node that is not in the cluster are refused.
        await tas("publish", "stranger", "health_metric=2")
        refused = await running.logged("sample_refused")
        assert refused["reason"] == "Kubernetes has no node of this name"

        async def rejected() -> bool:
            return await passing(running, namespace) == ["node-2"]

        await eventually(rejected)
        await admin.delete_policy(namespace, "demo-policy")

        async def passes() -> bool:
            return await passing(running, namespace) == ["node-1", "node-2"]

        await eventually(passes)
        status, metrics = await running.health("/metrics")
        assert status == 200
        assert 'tas_watch_objects{resource="nodes"} 2.0' in metrics
        assert await running.end() == 0
        assert running.noise == []
    assert tas.left_behind() == []


async def test_an_extender_stays_in_its_service_while_the_api_server_refuses_what_watch_asks(
    tas: Tas, server: Server, tmp_path: Path
) -> None:
    """`run all` is the default of the chart: all its replicas would leave the Service at once."""
    async with Sandbox.start(nodes=("node-1", "node-2")) as sandbox:
        kubeconfig = str(sandbox.kubeconfig(tmp_path / "kubeconfig"))
        async with tas.running("run", "all", "--bus", server.url, "--kubeconfig", kubeconfig, *FREE) as running:
            await running.ready()
            assert (await running.health("/readyz/serving"))[0] == 200
            sandbox.faults.answer(503, times=1_000_000, which=lambda call: call.verb in ("list", "watch"))
            sandbox.cut_watches()

            async def is_unready() -> bool:
                return (await running.health("/readyz"))[0] == 503

            await eventually(is_unready)
            assert await passing(running, "default") == ["node-1", "node-2"]
            assert (await running.health("/readyz/serving"))[0] == 200


async def test_a_value_is_traced_to_its_label(tas: Tas, admin: Admin, kubeconfig: Path, namespace: str) -> None:
    rule = {"metricname": "health_metric", "operator": "Equals", "target": 2}
    await admin.create_policy(namespace, "demo-policy", strategies={"deschedule": {"rules": [rule]}})
    async with tas.running("run", "all", "--kubeconfig", str(kubeconfig), *FREE) as running:
        await running.ready()

        async def traced_to(found: str) -> None:
            async def has_details() -> bool:
                trace = (await tas("trace", "health_metric", "node-1", "--json")).json
                details: list[str] = trace["stages"][-1]["details"]
                return trace["stopped_at"] is None and details == [f"{namespace}/demo-policy: demo-policy{found}"]

            await eventually(has_details, every=0.2)

        assert (await tas("publish", "node-1", "health_metric=2")).code == 0
        await traced_to("=violating is desired; the node has 'violating'")
        assert (await tas("publish", "node-1", "health_metric=0")).code == 0
        await traced_to(" is desired absent; the node does not have it")


async def passing(running: Running, namespace: str) -> list[str]:
    url = (await running.logged("extender_listening"))["url"]
    asked = filter_request("node-1", "node-2", namespace=namespace)
    async with aiohttp.ClientSession() as session, session.post(f"{url}/filter", json=asked) as response:
        names: list[str] = (await response.json())["NodeNames"]
        return names


pytestmark = pytest.mark.usefixtures("long_limits")


@pytest.fixture
def connections(server: Server, kubeconfig: Path) -> tuple[str, ...]:
    return ("--bus", server.url, *HEALTH, "--kubeconfig", str(kubeconfig))


async def test_watch_alone_logs_when_the_api_server_is_unreachable_and_recovers(
    tas: Tas, sandbox: Sandbox, bus: Bus, admin: Admin, connections: tuple[str, ...]
) -> None:
    await admin.create_policy("default", "odd", strategies=strategies() | {"unheard": {"rules": []}})
    async with tas.running("run", "watch", *connections) as running:
        await running.ready()
        assert set(await policies_on(bus)) == {"default/odd"}
        problems = json.loads((await running.health("/problems"))[1])["problems"]
        assert "no strategy of this name" in problems["default/odd"][0]
        sandbox.faults.drop(times=10**6, which=lambda call: call.user_agent == "tas-on-nats/watch")
        sandbox.cut_watches()

        async def unreachable() -> bool:
            return sandbox.url in ((await workers_of(running))["watch"] or "")

        await eventually(unreachable)
        assert set(await policies_on(bus)) == {"default/odd"}
        sandbox.faults.clear()
        await running.ready()
        assert await running.end() == 0
        assert running.noise == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "all", "--kubeconfig", "in-cluster", "--policies", "."), "cannot be combined with --policies"),
        (("run", "watch", "--kubeconfig", "/nowhere"), "does not exist"),
        (("run", "watch", "--bus", "nats://127.0.0.1:1"), "Outside of a pod, name a file with --kubeconfig"),
    ],
)
async def test_invalid_options_are_one_line_with_exit_code_2(
    tas: Tas, arguments: tuple[str, ...], message: str
) -> None:
    done = await tas(*arguments)
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err
