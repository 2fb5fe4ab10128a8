"""Fixtures of workers that write to nodes: a simulated cluster, and the access to it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lab.sandbox import Sandbox


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox.start() as sandbox:
        yield sandbox


@pytest.fixture
def kubeconfig(sandbox: Sandbox, tmp_path: Path) -> Path:
    return sandbox.kubeconfig(tmp_path / "kubeconfig")
