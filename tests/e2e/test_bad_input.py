"""Bad input with a real API server and a real nats-server."""

from tests.kubernetes.bad_input_scenarios import BadInputScenarios
from tests.kubernetes.enforcement import enforced

__all__ = ["enforced"]


class TestBadInput(BadInputScenarios):
    pass
