"""The status of TASPolicies over the sandbox and a real nats-server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox import Sandbox
from tests.kubernetes.label_fixtures import world
from tests.kubernetes.status_scenarios import StatusScenarios, status

__all__ = ["status", "world"]


@pytest.fixture
async def kubeconfig(tmp_path: Path) -> AsyncIterator[Path]:
    async with Sandbox.start() as sandbox:
        yield sandbox.kubeconfig(tmp_path / "kubeconfig")


class TestStatus(StatusScenarios):
    pass
