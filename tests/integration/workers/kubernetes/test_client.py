"""The client of the API server over a sandbox."""

from tests.kubernetes.client_scenarios import ClientScenarios


class TestClient(ClientScenarios):
    pass
