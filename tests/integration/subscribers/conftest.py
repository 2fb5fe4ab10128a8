"""Fixtures of the programs of `examples/subscribers`."""

import importlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.installed import EXAMPLES
from tests.integration.bus.limits import long_limits
from tests.sandbox import Sandbox

__all__ = ["long_limits"]


@pytest.fixture(autouse=True)
def _long_limits(long_limits: None) -> None:
    pass


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports an example."""
    monkeypatch.syspath_prepend(EXAMPLES / "subscribers")
    return importlib.import_module


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox.start(nodes=("node-1", "node-2", "node-3")) as sandbox:
        yield sandbox


@pytest.fixture
def kubeconfig(sandbox: Sandbox, tmp_path: Path) -> str:
    """The flag with the credentials of the sandbox."""
    return f"--kubeconfig={sandbox.kubeconfig(tmp_path / 'kubeconfig')}"
