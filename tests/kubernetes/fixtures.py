"""Fixtures of the scenarios, from a fixture `kubeconfig` of an API server with the CRD."""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kubernetes.admin import Admin
from workers.kubernetes.client import KubernetesClient

_numbers = itertools.count(1)


@pytest.fixture
async def admin(kubeconfig: Path) -> AsyncIterator[Admin]:
    """An administrator of the API server."""
    async with Admin.connect(kubeconfig) as admin:
        yield admin


@pytest.fixture
async def client(kubeconfig: Path) -> AsyncIterator[KubernetesClient]:
    """The product's client."""
    async with KubernetesClient.connect(kubeconfig, worker="test") as client:
        yield client


@pytest.fixture
async def node(admin: Admin) -> AsyncIterator[str]:
    """A new node."""
    name = f"own-{next(_numbers)}.example.com"
    await admin.create_node(name)
    yield name
    await admin.delete_node(name)
