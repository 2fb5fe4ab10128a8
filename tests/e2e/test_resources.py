"""The worker `resources` with a real API server and a real nats-server."""

from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster
from tests.integration.conftest import bus, server
from tests.kubernetes.fixtures import admin
from tests.kubernetes.label_fixtures import world
from tests.kubernetes.resource_scenarios import ResourceScenarios, resources

__all__ = ["admin", "bus", "resources", "server", "world"]


@pytest.fixture(autouse=True)
def nodes_of_all_tests(cluster: Cluster) -> Iterator[None]:
    """Afterwards the nodes of all tests are as before: the worker itself removes nothing."""
    yield
    cluster.remove_resource()


class TestResources(ResourceScenarios):
    pass
