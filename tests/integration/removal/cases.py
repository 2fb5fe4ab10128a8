"""The hard cases of the law of removal, and how often the histories must meet each of them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum


class Case(StrEnum):
    """A hard case, as it is counted and shown."""

    SAMPLE = "removed by a sample"
    SELECTOR = "removed by nodeSelector"
    CLEAR = "removed by onStale: clear"
    ORPHAN = "removed by a list of policies"
    STOPPED_READ = "stopped after the reads of a removal"
    STOPPED_SEND = "stopped when a removal was about to be sent"
    HELD_BACK = "continued more than 2 s after such a stop"
    WOKE_LATE = "replica of labels continued after more than 2 s"
    SLEPT = "stopped for the long pause"
    WIPED = "bus wiped while labels were set"
    UNJUDGED = "bus wiped, and no verdicts for a while"
    CONTRADICTED = "labelled by a user against an old verdict"
    TWIN = "removed although another policy of the name claims the label"
    EQUALS = "removed by rules with Equals"
    SOURCES = "removed while the sources of the node contradicted each other"
    AHEAD = "removed by a sample from a clock that was ahead"
    CLOCK = "removed by a replica whose clock was wrong"
    TABLE = "removed by a sample in a table"
    UNSEEN = "table of which values were never stored"
    OVERWRITTEN = "version that was overwritten before an evaluate got it"
    HIDDEN = "violation overwritten while every evaluate was behind"
    LIED = "all nodes with the same extreme values"
    ADMITTED = "first label of a node with a limit"
    TRIPPED = "tripped breaker"
    PAUSED = "pause that was longer than a patch"


REMOVALS = (Case.SAMPLE, Case.SELECTOR, Case.CLEAR, Case.ORPHAN)


def late(case: Case) -> str:
    """The name of removals that were judged so late that they prove little."""
    return f"{case}, judged late"


SANDBOX, REAL = "the sandbox", "the real API server"
"""The API servers of the histories."""

WHOLE = "the sandbox, with all workers in one process"
"""Of the histories on the sandbox those whose workers share connections, watches and view."""

Least = Mapping[int, Mapping[Case, int]]
"""How often each case must be met, by the number of seeds from which on this is required."""

LEAST: Mapping[str, Least] = {
    SANDBOX: {
        8: {
            Case.SAMPLE: 4,
            Case.ORPHAN: 2,
            Case.SLEPT: 4,
            Case.WIPED: 2,
            Case.TWIN: 3,
            Case.EQUALS: 2,
            Case.SOURCES: 5,
            Case.AHEAD: 1,
            Case.CLOCK: 1,
            Case.TABLE: 4,
            Case.UNSEEN: 8,
            Case.OVERWRITTEN: 20,
            Case.HIDDEN: 1,
            Case.LIED: 6,
            Case.ADMITTED: 12,
        },
        60: {
            Case.SAMPLE: 90,
            Case.SELECTOR: 9,
            Case.CLEAR: 7,
            Case.ORPHAN: 60,
            Case.STOPPED_READ: 1,
            Case.STOPPED_SEND: 1,
            Case.HELD_BACK: 1,
            Case.WOKE_LATE: 3,
            Case.SLEPT: 4,
            Case.WIPED: 15,
            Case.UNJUDGED: 9,
            Case.CONTRADICTED: 3,
            Case.TWIN: 45,
            Case.EQUALS: 60,
            Case.SOURCES: 90,
            Case.AHEAD: 15,
            Case.CLOCK: 45,
            Case.TABLE: 45,
            Case.UNSEEN: 75,
            Case.OVERWRITTEN: 150,
            Case.HIDDEN: 6,
            Case.LIED: 39,
            Case.ADMITTED: 105,
            Case.TRIPPED: 3,
            Case.PAUSED: 9,
        },
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
            Case.TWIN: 150,
            Case.EQUALS: 200,
            Case.SOURCES: 300,
            Case.AHEAD: 50,
            Case.CLOCK: 150,
            Case.TABLE: 150,
            Case.UNSEEN: 250,
            Case.OVERWRITTEN: 400,
            Case.HIDDEN: 20,
            Case.LIED: 130,
            Case.ADMITTED: 350,
            Case.TRIPPED: 12,
            Case.PAUSED: 30,
        },
    },
    WHOLE: {
        4: {
            Case.SAMPLE: 4,
            Case.ORPHAN: 2,
            Case.WIPED: 1,
            Case.TWIN: 2,
            Case.EQUALS: 1,
            Case.SOURCES: 3,
            Case.TABLE: 2,
            Case.UNSEEN: 4,
            Case.LIED: 1,
            Case.ADMITTED: 4,
        },
        30: {
            Case.SAMPLE: 40,
            Case.SELECTOR: 2,
            Case.CLEAR: 1,
            Case.ORPHAN: 15,
            Case.WOKE_LATE: 1,
            Case.SLEPT: 4,
            Case.WIPED: 4,
            Case.TWIN: 15,
            Case.EQUALS: 10,
            Case.SOURCES: 25,
            Case.AHEAD: 3,
            Case.CLOCK: 10,
            Case.TABLE: 8,
            Case.UNSEEN: 20,
            Case.LIED: 10,
            Case.ADMITTED: 25,
            Case.PAUSED: 1,
        },
    },
    REAL: {
        3: {
            Case.SAMPLE: 6,
            Case.ORPHAN: 3,
            Case.WIPED: 1,
            Case.TWIN: 3,
            Case.EQUALS: 3,
            Case.SOURCES: 5,
            Case.AHEAD: 2,
        }
    },
}
"""At most half of the numbers of a busy machine; docs/reference/law-of-removal-record.md has both.

Except `SLEPT`: every run stops one replica of each of the four workers.
"""


def missing(met: Mapping[str, int], seeds: Sequence[int], least: Least) -> list[str]:
    """The cases that the histories of all `seeds` met too seldom, one line each."""
    required = max((count for count in least if count <= len(seeds)), default=None)
    if required is None:
        return []
    return [
        f"{case}: {met.get(case, 0)} times, at least {times} are required of {required} seeds"
        for case, times in least[required].items()
        if met.get(case, 0) < times
    ]


def added(every: Iterable[Mapping[str, int]]) -> Counter[str]:
    """The cases of several histories together."""
    found: Counter[str] = Counter()
    for each in every:
        found.update(each)
    return found
