"""An upgrade and the way back: workers of an earlier commit and of this one on one bus, on the real control plane.

Two replicas of every worker serve a load. They are replaced by this version as `helm upgrade` does, then samples come
as tables, and then each is replaced by the earlier version again, in the order of docs/upgrading.md. All the time
labels, status and placement follow, and no label is set or removed without a reason.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from bus.buckets import NODES
from bus.connection import Bus
from tests.e2e.processes import REPOSITORY
from tests.integration.servers import answered, eventually
from tests.kubernetes.admin import Admin

from .cluster import Cluster
from .test_replicas import Load, Replicas, Turn, nodes, under_load

__all__ = ["nodes"]

EARLIER = "b3ccf1a2e24bee8e3a82429ea44d1b1ba9399ad5"
"""The last commit before tables."""

TABLES = "_table.>"
"""The keys of tables in NODES."""


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The files of the earlier commit."""
    known = subprocess.run(["git", "cat-file", "-e", EARLIER], cwd=REPOSITORY, check=False, capture_output=True)
    if known.returncode:
        missing = "this clone does not have the earlier commit: git fetch --unshallow"
        if {"CI", "TAS_FAILED"} & os.environ.keys():  # the latter is set by .ci/run
            pytest.fail(missing)
        pytest.skip(missing)
    folder = tmp_path / "earlier"
    folder.mkdir()
    archive = subprocess.run(["git", "archive", EARLIER], cwd=REPOSITORY, check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    program = "import cli.wiring; print(cli.wiring.__file__)"
    imported = subprocess.run([sys.executable, "-c", program], cwd=folder, check=True, capture_output=True, text=True)
    assert Path(imported.stdout.strip()).is_relative_to(folder), "the earlier version would not run"
    return folder


@pytest.mark.usefixtures("nodes")
async def test_an_upgrade_in_one_step_then_tables_and_the_way_back_under_load(
    cluster: Cluster, admin: Admin, namespace: str, earlier: Path, measured: Callable[[str], None]
) -> None:
    async def upgrade_and_roll_back(replicas: Replicas, turn: Turn, load: Load) -> None:
        for number in (0, 1):
            await all_at_once(replicas, number, turn)
        assert await tables_of(load.bus) == []
        load.as_tables = True
        for worker in ("materialize", "evaluate", "extender", "labels"):
            await turn(replicas[worker][0], replicas[worker][0].end)
        assert await tables_of(load.bus)
        load.as_tables = False
        await eventually(partial(has_no_table, load.bus), every=0.2)
        # What is left are tombstones, which the earlier version reports as invalid keys.
        await answered(partial(load.bus.api, f"STREAM.PURGE.{NODES.stream}", {"filter": NODES.subject(TABLES)}))
        for number, worker in itertools.product((0, 1), replicas):
            replicas[worker][number].tree = earlier
            await turn(replicas[worker][number], replicas[worker][number].end)
        assert await tables_of(load.bus) == []
        for each in itertools.chain(*replicas.values()):
            assert not [event for event in each.events() if event["event"] == "entry_invalid"], each.name

    load, waits = await under_load(cluster, admin, namespace, earlier.parent, upgrade_and_roll_back, tree=earlier)
    measured(
        f"{len(waits)} steps: {load.samples} samples, {len(load.pods)} pods, all placed; the first pod after "
        f"one within {max(waits):.1f} s (median {sorted(waits)[len(waits) // 2]:.1f} s)"
    )


async def all_at_once(replicas: Replicas, number: int, turn: Turn) -> None:
    """Replaces one replica of every worker by this version, while the other one is as it was."""
    extender, *others = (
        replicas[worker][number] for worker in ("extender", *(name for name in replicas if name != "extender"))
    )

    async def all_end() -> None:
        for each in (extender, *others):
            assert each.tree != REPOSITORY
            each.tree = REPOSITORY
            await each.end()
        for each in others:
            each.start()

    await turn(extender, all_end)
    for each in others:
        await each.ready()


async def tables_of(bus: Bus) -> list[str]:
    """The keys of NODES that belong to tables, those of tombstones included."""
    return await answered(lambda: bus.keys(NODES, TABLES))


async def has_no_table(bus: Bus) -> bool:
    entries = [await answered(partial(bus.get, NODES, key)) for key in await tables_of(bus)]
    return all(entry is None or entry.value is None for entry in entries)
