"""The client and the reflector with a real API server."""

from tests.kubernetes.client_scenarios import ClientScenarios


class TestClient(ClientScenarios):
    pass
