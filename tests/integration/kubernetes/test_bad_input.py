"""Bad input over a sandbox and a real nats-server."""

import pytest

from tests.kubernetes.bad_input_scenarios import BadInputScenarios
from tests.kubernetes.enforcement import enforced

__all__ = ["enforced"]


@pytest.mark.usefixtures("quick_status")
class TestBadInput(BadInputScenarios):
    pass
