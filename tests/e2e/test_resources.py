"""The worker `resources` over a real API server and a real nats-server."""

from collections.abc import Iterator

import pytest

from tests.e2e.cluster import NODES, RESOURCE, Cluster
from tests.integration.conftest import bus, server
from tests.kubernetes.fixtures import admin
from tests.kubernetes.label_fixtures import world
from tests.kubernetes.resource_scenarios import ResourceScenarios, resources

__all__ = ["admin", "bus", "resources", "server", "world"]


@pytest.fixture(autouse=True)
def others(cluster: Cluster) -> Iterator[None]:
    """The nodes of all tests are as before: the worker itself takes nothing away."""
    yield
    for node in NODES:
        nothing = {RESOURCE: None}
        cluster.api.patch(f"/api/v1/nodes/{node}/status", {"status": {"capacity": nothing, "allocatable": nothing}})


class TestResources(ResourceScenarios):
    pass
