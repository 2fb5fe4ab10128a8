"""Fixtures of workers: a simulated cluster, the access to it, and long time limits of the bus."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.bus.limits import long_limits
from tests.sandbox import Sandbox

__all__ = ["long_limits"]


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox.start() as sandbox:
        yield sandbox


@pytest.fixture
def kubeconfig(sandbox: Sandbox, tmp_path: Path) -> Path:
    return sandbox.kubeconfig(tmp_path / "kubeconfig")
