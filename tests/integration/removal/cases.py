"""The hard cases of the law of removal: what the histories are for, and how often they have to meet each."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum


class Case(StrEnum):
    """What a history met, as it is counted and shown."""

    SAMPLE = "removed by a sample"
    SELECTOR = "removed by nodeSelector"
    CLEAR = "removed by onStale: clear"
    ORPHAN = "removed by a list of policies"
    STOPPED_READ = "stopped after the reads of a removal"
    STOPPED_SEND = "stopped when a removal was about to be sent"
    HELD_BACK = "woke more than 2 s after such a stop"
    WOKE_LATE = "replica of labels woke after more than 2 s"
    SLEPT = "slept through the pause"
    WIPED = "bus wiped while labels stood"
    UNJUDGED = "bus wiped, and no verdicts for a while"
    CONTRADICTED = "labelled by a hand against an old verdict"


REMOVALS = (Case.SAMPLE, Case.SELECTOR, Case.CLEAR, Case.ORPHAN)


def late(case: Case) -> str:
    """The name of removals that were judged with so much allowance that they prove little."""
    return f"{case}, judged late"


SANDBOX, REAL = "the sandbox", "the real API server"
"""What the histories are played on."""

Least = Mapping[int, Mapping[Case, int]]
"""How often each case must be met, by the number of seeds from which on that is asked."""

LEAST: Mapping[str, Least] = {
    SANDBOX: {
        8: {Case.SAMPLE: 6, Case.ORPHAN: 2, Case.SLEPT: 4, Case.WIPED: 2},
        200: {
            Case.SAMPLE: 300,
            Case.SELECTOR: 30,
            Case.CLEAR: 25,
            Case.ORPHAN: 200,
            Case.STOPPED_READ: 3,
            Case.STOPPED_SEND: 4,
            Case.HELD_BACK: 4,
            Case.WOKE_LATE: 10,
            Case.SLEPT: 4,
            Case.WIPED: 50,
            Case.UNJUDGED: 30,
            Case.CONTRADICTED: 12,
        },
    },
    REAL: {3: {Case.SAMPLE: 6, Case.ORPHAN: 8, Case.WIPED: 1}},
}
"""Half of what was met on a machine with much else to do, or less; docs/law-of-removal.md has both.

Except `SLEPT`: every run stops one replica of each of the four workers.
"""


def missing(met: Mapping[str, int], seeds: Sequence[int], least: Least) -> list[str]:
    """The cases that the histories of all these `seeds` met too seldom, one line each."""
    asked = max((count for count in least if count <= len(seeds)), default=None)
    if asked is None:
        return []
    return [
        f"{case}: {met.get(case, 0)} times, at least {times} are asked of {asked} seeds"
        for case, times in least[asked].items()
        if met.get(case, 0) < times
    ]


def added(every: Iterable[Mapping[str, int]]) -> Counter[str]:
    """What several histories met."""
    found: Counter[str] = Counter()
    for each in every:
        found.update(each)
    return found
