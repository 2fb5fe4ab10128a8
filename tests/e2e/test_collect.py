"""`collect` with a real API server, whose aggregator forwards to an adapter of the tests, and a real nats-server."""

import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from bus.connection import Bus
from tests.e2e.adapter import AggregatedAdapter
from tests.e2e.cluster import Cluster
from tests.integration.conftest import bus, server
from tests.integration.workers.collecting import World, collecting
from tests.kubernetes.admin import Admin
from tests.kubernetes.collect_scenarios import NODE, CollectScenarios, metrics_world
from tests.kubernetes.fixtures import admin, client
from workers.collect.sources.custom_metrics import CustomMetrics
from workers.collect.sources.metrics_server import MetricsServer
from workers.kubernetes.client import KubernetesClient

__all__ = ["admin", "bus", "client", "metrics_world", "server"]

ACCOUNT = "system:serviceaccount:telemetry-aware-scheduling:tas-collect"
ROOT = Path(__file__).parents[2]
RIGHTS = ROOT / "deploy" / "rbac" / "collect.yaml"
SOURCES_PAGE = ROOT / "docs" / "how-to" / "sources.md"
GRANT = re.compile(r"^ *kubectl (?P<kubectl>patch clusterrole tas-collect .*MY_METRIC.*)$", re.MULTILINE)
"""The command of the page for one more metric."""


@pytest.fixture
def kubeconfig(cluster: Cluster) -> Path:
    return cluster.kubeconfig


@pytest.fixture
async def adapter(admin: Admin, tmp_path: Path) -> AsyncIterator[AggregatedAdapter]:
    async with AggregatedAdapter.start(admin, tmp_path) as adapter:
        yield adapter


class TestCollect(CollectScenarios):
    async def test_the_rights_of_its_account_suffice_and_it_requests_only_metrics(
        self, bus: Bus, cluster: Cluster, product_namespace: str, metrics_world: World, adapter: AggregatedAdapter
    ) -> None:
        await adapter.serve("v1beta2", "v1beta1", usage=True)
        adapter.metrics.set("load", NODE, "1")
        adapter.metrics.use(NODE, cpu="1", memory="1Gi")
        await metrics_world.use("load", "cpu")
        cluster.kubectl("delete", "--ignore-not-found", "-f", str(RIGHTS))
        (manifest,) = (each for each in yaml.safe_load_all(RIGHTS.read_text()) if each["kind"] == "ServiceAccount")
        cluster.apply(yaml.dump(manifest))
        kubeconfig = cluster.account("telemetry-aware-scheduling", "tas-collect")
        mark = cluster.audit.mark()  # other tests may have used this account
        async with (
            KubernetesClient.connect(kubeconfig, worker="collect") as client,
            collecting(bus, CustomMetrics("custom-metrics", client), MetricsServer("metrics-server", client)),
        ):
            await metrics_world.problem("custom-metrics", "is forbidden")
            await metrics_world.problem("metrics-server", "is forbidden")
            cluster.apply(RIGHTS)
            await metrics_world.has(NODE, "metrics-server", {"cpu": 1})
            # Each metric is a right of its own.
            command = GRANT.search(SOURCES_PAGE.read_text())
            assert command is not None
            cluster.kubectl(*shlex.split(command["kubectl"].replace("MY_METRIC", "load")))
            await metrics_world.has(NODE, "custom-metrics", {"load": 1})
            await metrics_world.misses("custom-metrics", "cpu", 'cannot get resource "nodes/cpu"')
        group = "/apis/custom.metrics.k8s.io"
        assert {call.uri for call in cluster.audit.calls(mark, user=ACCOUNT)} == {
            *(group, f"{group}/v1beta2/nodes/*/load", f"{group}/v1beta2/nodes/*/cpu"),
            "/apis/metrics.k8s.io/v1beta1/nodes",
        }

    async def test_an_adapter_that_does_not_answer_is_reported_until_it_answers_again(
        self, bus: Bus, metrics_world: World, adapter: AggregatedAdapter, client: KubernetesClient
    ) -> None:
        await adapter.serve("v1beta1")
        adapter.metrics.set("load", NODE, "1")
        await metrics_world.use("load")
        async with collecting(bus, CustomMetrics("custom-metrics", client)):
            await metrics_world.has(NODE, "custom-metrics", {"load": 1})
            adapter.down = True
            await metrics_world.problem("custom-metrics", "(503)")
            adapter.down = False
            await metrics_world.comes(NODE, "custom-metrics")
            await metrics_world.problem("custom-metrics", "")
