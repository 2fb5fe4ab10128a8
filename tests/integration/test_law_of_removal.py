"""The law of removal: a label is removed only for a positive reason (docs/background/law-of-removal.md).

Random histories from a seed: samples, times without samples, edited and deleted policies, deleted and new nodes, an
API server that fails, a bus that is wiped, and workers that are killed or stopped. Before every removal there is a
sample that met the rule, and that was the newest and fresh when it was read, at most 2 s before the patch; or the
policy itself; or a list of the API server. When the faults have ended, the labels of every node equal the model's.

No later change may weaken it. `TAS_REMOVAL_SEEDS=50` runs the seeds 1 to 50, `TAS_REMOVAL_SEEDS=7-9` those three. A
seed determines the events, but not the order in which workers run.
"""

import asyncio
import gc
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.integration.lateness import Lateness
from tests.integration.removal.behind import views_may_be_behind  # noqa: F401  # a fixture
from tests.integration.removal.cases import REMOVALS, SANDBOX, WHOLE, Case, added, late
from tests.integration.removal.clocks import clocks_may_be_wrong  # noqa: F401  # a fixture
from tests.integration.removal.play import AS_PROCESSES, ON_ONE_LOOP, Turns, played
from tests.integration.removal.tally import RecordProperty, record
from tests.integration.watched import meanwhile

DEFAULT_SEEDS = "1-8"
AT_ONCE = int(os.environ.get("TAS_REMOVAL_AT_ONCE", "8"))
"""The number of histories that are played at the same time, each with its own bus and API server."""

PROCESS_EVERY = 8
"""The first of each so many seeds is played with workers as processes too."""

PROCESSES_AT_ONCE = 3
"""The number of histories with processes that are played at the same time."""

DEFAULT_PAUSE = "5"
"""Seconds for which one replica of each worker is stopped, once in each run. `TAS_REMOVAL_PAUSE` sets another value."""

MOST_SECONDS = 1800
"""The time limit of a batch without that pause, many times its usual time."""


def seeds() -> range:
    first, dash, last = os.environ.get("TAS_REMOVAL_SEEDS", DEFAULT_SEEDS).partition("-")
    return range(int(first), int(last) + 1) if dash else range(1, int(first) + 1)


def pause_seconds() -> float:
    return float(os.environ.get("TAS_REMOVAL_PAUSE", DEFAULT_PAUSE))


def is_limited(seed: int, *, as_processes: bool) -> bool:
    """Whether policies have limits, and users pause and reset: in every second history of each way."""
    return seed // PROCESS_EVERY % 2 == 1 if as_processes else seed % 2 == 0


def is_whole(seed: int, *, as_processes: bool) -> bool:
    """Whether each replica has all workers, as `tas run all`: half of the histories, with and without limits."""
    return seed // (2 * PROCESS_EVERY if as_processes else 2) % 2 == 1


def whole(every: Sequence[int], *, as_processes: bool) -> list[int]:
    """Those of these seeds for which `is_whole`."""
    return [seed for seed in every if is_whole(seed, as_processes=as_processes)]


def batches(every: Sequence[int], at_once: int) -> list[tuple[int, ...]]:
    """The seeds in groups of histories that are played at the same time."""
    return [tuple(every[start : start + at_once]) for start in range(0, len(every), at_once)]


def name(batch: Sequence[int]) -> str:
    return f"seeds-{batch[0]}-{batch[-1]}"


async def play_all(
    batch: Sequence[int], folder: Path, *, as_processes: bool = False, pause: float = 0.0
) -> dict[int, Counter[str]]:
    """Plays a batch, the first history of each kind with a pause; returns how often each case occurred, by seed."""
    kinds = [is_whole(seed, as_processes=as_processes) for seed in batch]
    lateness = Lateness()
    turns = Turns(lateness)
    again = "TAS_REMOVAL_SEEDS={0}-{0} python -m pytest tests/integration/test_law_of_removal.py"
    with capture_logs():
        async with meanwhile(lateness.run()):
            results = await asyncio.gather(
                *(
                    played(
                        seed,
                        folder,
                        again=again.format(seed),
                        as_processes=as_processes,
                        limited=is_limited(seed, as_processes=as_processes),
                        whole=kinds[number],
                        pause_seconds=0.0 if kinds[number] in kinds[:number] else pause,
                        turns=turns,
                    )
                    for number, seed in enumerate(batch)
                ),
                return_exceptions=True,
            )
    failures = [
        f"seed {seed}: {result!r}"
        for seed, result in zip(batch, results, strict=True)
        if isinstance(result, BaseException)
    ]
    assert not failures, "\n\n".join(failures)
    return {seed: result for seed, result in zip(batch, results, strict=True) if isinstance(result, Counter)}


def record_met(
    record_property: RecordProperty, met: Mapping[int, Counter[str]], *, as_processes: bool = False
) -> Counter[str]:
    """Counts the cases of a batch for the session, those of processes with all workers also apart; returns the sum."""
    every = {ON_ONE_LOOP: seeds(), AS_PROCESSES: seeds()[::PROCESS_EVERY]}
    way = AS_PROCESSES if as_processes else ON_ONE_LOOP
    record(record_property, added(met.values()), on=SANDBOX, played=way, seeds=list(met), of=every)
    some = {each: whole(of, as_processes=each == AS_PROCESSES) for each, of in every.items()}
    mine = whole(list(met), as_processes=as_processes)
    record(record_property, added(met[seed] for seed in mine), on=WHOLE, played=way, seeds=mine, of=some)
    return added(met.values())


@pytest.fixture(autouse=True)
def leftovers_collected() -> Iterator[None]:
    """Collects the sockets of cancelled workers after the event loop is closed; else another test gets the warnings."""
    yield
    gc.collect()


# A worker that is killed by cancellation may leave a socket open.
pytestmark = [
    pytest.mark.seeded,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.usefixtures("clocks_may_be_wrong", "views_may_be_behind"),
]


@pytest.mark.timeout(MOST_SECONDS)
@pytest.mark.parametrize("batch", batches(seeds(), AT_ONCE), ids=name)
async def test_a_label_is_removed_only_for_a_reason(
    batch: tuple[int, ...], tmp_path: Path, record_property: RecordProperty
) -> None:
    met = record_met(record_property, await play_all(batch, tmp_path))
    # On a busy machine all of them may be judged late; the session requires enough that are not.
    assert len(batch) < 4 or met[Case.SAMPLE] + met[late(Case.SAMPLE)] > 0, "nothing was removed"


@pytest.mark.timeout(MOST_SECONDS + pause_seconds())
@pytest.mark.parametrize("batch", batches(seeds()[::PROCESS_EVERY], PROCESSES_AT_ONCE), ids=name)
async def test_replicas_that_are_killed_and_stopped_remove_labels_only_for_a_reason(
    batch: tuple[int, ...], tmp_path: Path, record_property: RecordProperty
) -> None:
    """In the first history, and the first of processes with all workers, one replica of each is stopped for long."""
    pause = pause_seconds() if batch[0] == seeds()[0] else 0.0
    met = record_met(
        record_property, await play_all(batch, tmp_path, as_processes=True, pause=pause), as_processes=True
    )
    assert any(met[case] for case in REMOVALS), "nothing was removed"
