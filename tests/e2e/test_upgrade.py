"""An upgrade and the way back: workers of an earlier commit and of this one on one bus, on the real control plane.

Two replicas of every worker serve a load. One after the other is replaced by this version, and then by the earlier one
again. All the time labels, status and placement follow, and no label is set or removed without a reason.
"""

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.processes import REPOSITORY
from tests.kubernetes.admin import Admin

from .cluster import Cluster
from .test_replicas import Replicas, Turn, nodes, under_load

__all__ = ["nodes"]

EARLIER = "baf9ef06c8d88c384fbfc47b06c45e90fcc19b89"
"""The last commit before the chart, rights and a closed bus."""


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The files of the earlier commit."""
    known = subprocess.run(["git", "cat-file", "-e", EARLIER], cwd=REPOSITORY, check=False, capture_output=True)
    if known.returncode:
        pytest.skip("this clone does not have the earlier commit: git fetch --unshallow")
    folder = tmp_path / "earlier"
    folder.mkdir()
    archive = subprocess.run(["git", "archive", EARLIER], cwd=REPOSITORY, check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    program = "import cli.wiring; print(cli.wiring.__file__)"
    imported = subprocess.run([sys.executable, "-c", program], cwd=folder, check=True, capture_output=True, text=True)
    assert Path(imported.stdout.strip()).is_relative_to(folder), "the earlier version would not run"
    return folder


@pytest.mark.usefixtures("nodes")
async def test_every_worker_is_upgraded_and_rolled_back_under_load(
    cluster: Cluster, admin: Admin, namespace: str, earlier: Path, measured: Callable[[str], None]
) -> None:
    async def upgrade_and_rollback(replicas: Replicas, turn: Turn) -> None:
        for tree, number, worker in itertools.product((REPOSITORY, earlier), (0, 1), replicas):
            victim = replicas[worker][number]
            assert victim.tree != tree
            victim.tree = tree
            await turn(victim, victim.end)

    load, waits = await under_load(cluster, admin, namespace, earlier.parent, upgrade_and_rollback, tree=earlier)
    measured(
        f"{len(waits)} replacements: {load.samples} samples, {len(load.pods)} pods, all placed; the first pod after "
        f"one within {max(waits):.1f} s (median {sorted(waits)[len(waits) // 2]:.1f} s)"
    )
