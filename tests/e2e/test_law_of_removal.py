"""The law of removal over the real API server: the histories, the model and the judge of `tests.integration`.

What only the sandbox can play is left out: answers that fail, lists that fail, watches that are cut. The API server
stands still now and then. `TAS_REMOVAL_E2E_SEEDS` says how many seeds, or which (`7-9`).
"""

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.integration.removal.play import played

from .cluster import Cluster
from .removal import stage

DEFAULT_SEEDS = "1-3"


def seeds() -> range:
    first, dash, last = os.environ.get("TAS_REMOVAL_E2E_SEEDS", DEFAULT_SEEDS).partition("-")
    return range(int(first), int(last) + 1) if dash else range(1, int(first) + 1)


# A worker killed by cancelling may leave a socket behind that it was just about to have; a process would not.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", seeds(), ids="seed-{}".format)
async def test_a_label_goes_only_because_something_said_so(
    seed: int, cluster: Cluster, crd: None, tmp_path: Path
) -> None:
    await play_on(cluster, seed, tmp_path, as_processes=False)


@pytest.mark.timeout(900)
async def test_it_holds_for_processes_that_are_killed_and_stopped(cluster: Cluster, crd: None, tmp_path: Path) -> None:
    await play_on(cluster, seeds()[0], tmp_path, as_processes=True)


async def play_on(cluster: Cluster, seed: int, folder: Path, *, as_processes: bool) -> None:
    again = f"TAS_REMOVAL_E2E_SEEDS={seed}-{seed} python -m pytest tests/e2e/test_law_of_removal.py"
    with capture_logs():
        reasons = await played(seed, folder, again=again, as_processes=as_processes, stage=stage(cluster))
    print(f"removals: {dict(reasons)}")
