"""The law of removal over the real API server: the histories, the model and the judge of `tests.integration`.

What only the sandbox can play is left out: answers that fail, lists that fail, watches that are cut. The API server
stands still now and then. `TAS_REMOVAL_E2E_SEEDS` says how many seeds, or which (`7-9`).
"""

import os
from collections import Counter
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.integration.removal.cases import REAL, REMOVALS
from tests.integration.removal.play import AS_PROCESSES, ON_ONE_LOOP, played
from tests.integration.removal.tally import RecordProperty, record

from .cluster import Cluster
from .removal import stage

DEFAULT_SEEDS = "1-3"


def seeds() -> range:
    first, dash, last = os.environ.get("TAS_REMOVAL_E2E_SEEDS", DEFAULT_SEEDS).partition("-")
    return range(int(first), int(last) + 1) if dash else range(1, int(first) + 1)


EVERY = {ON_ONE_LOOP: seeds(), AS_PROCESSES: seeds()[:1]}


# A worker killed by cancelling may leave a socket behind that it was just about to have; a process would not.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", seeds(), ids="seed-{}".format)
async def test_a_label_goes_only_because_something_said_so(
    seed: int, cluster: Cluster, crd: None, tmp_path: Path, record_property: RecordProperty
) -> None:
    met = await play_on(cluster, seed, tmp_path, as_processes=False)
    record(record_property, met, on=REAL, played=ON_ONE_LOOP, seeds=[seed], of=EVERY)


@pytest.mark.timeout(900)
async def test_it_holds_for_processes_that_are_killed_and_stopped(
    cluster: Cluster, crd: None, tmp_path: Path, record_property: RecordProperty
) -> None:
    seed = seeds()[0]
    met = await play_on(cluster, seed, tmp_path, as_processes=True)
    record(record_property, met, on=REAL, played=AS_PROCESSES, seeds=[seed], of=EVERY)


async def play_on(cluster: Cluster, seed: int, folder: Path, *, as_processes: bool) -> Counter[str]:
    """How often a history met which case; fails if it gave the judge nothing to judge."""
    again = f"TAS_REMOVAL_E2E_SEEDS={seed}-{seed} python -m pytest tests/e2e/test_law_of_removal.py"
    with capture_logs():
        met = await played(seed, folder, again=again, as_processes=as_processes, stage=stage(cluster))
    assert any(met[case] for case in REMOVALS), f"nothing was removed: {dict(met)}"
    return met
