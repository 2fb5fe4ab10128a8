"""The law of removal with the real API server: the histories, the model and the judge of `tests.integration`.

Faults that only the sandbox has are left out: failing requests, failing lists, broken watches. The API server is
sometimes stopped. `TAS_REMOVAL_E2E_SEEDS` is the number of seeds, or their range (`7-9`).
"""

import os
from collections import Counter
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.integration.removal.behind import views_may_be_behind  # noqa: F401  # a fixture
from tests.integration.removal.cases import REAL, REMOVALS
from tests.integration.removal.clocks import clocks_may_be_wrong  # noqa: F401  # a fixture
from tests.integration.removal.play import AS_PROCESSES, ON_ONE_LOOP, played
from tests.integration.removal.tally import RecordProperty, record

from .cluster import Cluster
from .removal import stage

pytestmark = pytest.mark.seeded

DEFAULT_SEEDS = "1-3"


def seeds() -> range:
    first, dash, last = os.environ.get("TAS_REMOVAL_E2E_SEEDS", DEFAULT_SEEDS).partition("-")
    return range(int(first), int(last) + 1) if dash else range(1, int(first) + 1)


EVERY = {ON_ONE_LOOP: seeds(), AS_PROCESSES: seeds()[:1]}


# A worker that is killed by cancellation while it connects may leave an open socket; a process would not.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.usefixtures("clocks_may_be_wrong", "views_may_be_behind")
@pytest.mark.parametrize("seed", seeds(), ids="seed-{}".format)
async def test_every_removal_of_a_label_has_a_reason(
    seed: int, cluster: Cluster, crd: None, tmp_path: Path, record_property: RecordProperty
) -> None:
    met = await play_on(cluster, seed, tmp_path, as_processes=False)
    record(record_property, met, on=REAL, played=ON_ONE_LOOP, seeds=[seed], of=EVERY)


async def test_every_removal_has_a_reason_also_if_processes_are_killed_and_stopped(
    cluster: Cluster, crd: None, tmp_path: Path, record_property: RecordProperty
) -> None:
    seed = seeds()[0]
    met = await play_on(cluster, seed, tmp_path, as_processes=True)
    record(record_property, met, on=REAL, played=AS_PROCESSES, seeds=[seed], of=EVERY)


async def play_on(cluster: Cluster, seed: int, folder: Path, *, as_processes: bool) -> Counter[str]:
    """How often each case occurred in a history; fails if the history has no removal."""
    before = cluster.labels_of_nodes()
    again = f"TAS_REMOVAL_E2E_SEEDS={seed}-{seed} python -m pytest tests/e2e/test_law_of_removal.py"
    with capture_logs():
        met = await played(seed, folder, again=again, as_processes=as_processes, stage=stage(cluster))
    assert any(met[case] for case in REMOVALS), f"nothing was removed: {dict(met)}"
    assert cluster.labels_of_nodes() == before  # other tests use these nodes
    return met
