"""The worker `labels` with a real API server and a real nats-server."""

from tests.integration.conftest import bus, server
from tests.kubernetes.fixtures import admin, client
from tests.kubernetes.label_fixtures import labels, world
from tests.kubernetes.label_scenarios import LabelScenarios

__all__ = ["admin", "bus", "client", "labels", "server", "world"]


class TestLabels(LabelScenarios):
    pass
