"""A control plane node for each test."""

from pathlib import Path

import pytest

from tests.unit.cli.configure.node import Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)
