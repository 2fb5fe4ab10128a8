"""The status of TASPolicies with a real API server and a real nats-server, also in the output of kubectl."""

import pytest

from tests.e2e.cluster import Cluster
from tests.integration.conftest import bus, server
from tests.kubernetes.fixtures import admin
from tests.kubernetes.label_fixtures import world
from tests.kubernetes.status_scenarios import Checking, StatusScenarios, status, wait_for_status
from tests.kubernetes.world import World, deschedule

__all__ = ["admin", "bus", "server", "status", "world"]


@pytest.fixture(autouse=True)
def no_other_policies(cluster: Cluster, crd: None) -> None:
    """Deletes the policies of other tests, whose status would be patched too."""
    cluster.kubectl("delete", "taspolicies", "--all", "--all-namespaces")


class TestStatus(StatusScenarios):
    async def test_kubectl_shows_the_status_in_columns(self, cluster: Cluster, world: World, status: Checking) -> None:
        node = await world.node()
        key = await world.policy(await world.namespace(), world.name(), deschedule())
        await world.sample(node, health=1)
        await world.evaluate(node)
        await wait_for_status(world, key, MetricsSeen=("True", "Fresh"), Violating=("True", "NodesViolate"))
        table = cluster.kubectl("get", "taspolicies", "--namespace", key.namespace, "--output", "wide")
        head, row = table.splitlines()
        assert head.split() == ["NAME", "READY", "METRICS", "VIOLATING", "AGE", "MESSAGE"]
        name, ready, metrics, violating, _, *message = row.split()
        assert (name, ready, metrics, violating) == (key.name, "True", "True", "1")
        assert " ".join(message) == f"1 of 1 node violates: {node}"
