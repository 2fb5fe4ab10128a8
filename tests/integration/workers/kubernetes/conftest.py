"""A sandbox for each test, where `tests/e2e` has a real control plane."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.bus.limits import long_limits
from tests.kubernetes.admin import Admin
from tests.kubernetes.fixtures import admin, client, node
from tests.sandbox import Sandbox

__all__ = ["admin", "client", "long_limits", "node"]


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox.start(nodes=["node-1", "node-2"]) as sandbox:
        yield sandbox


@pytest.fixture
def kubeconfig(sandbox: Sandbox, tmp_path: Path) -> Path:
    return sandbox.kubeconfig(tmp_path / "kubeconfig")


@pytest.fixture
async def namespace(admin: Admin) -> str:
    await admin.create("/api/v1/namespaces", {"metadata": {"name": "own"}})
    return "own"
