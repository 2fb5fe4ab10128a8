"""How many processes should run each worker: as many as ran together for ten minutes, less what people dismissed.

Nobody tells the product how many replicas an installation should have: a chart, a Procfile and a person with a shell
would each say it in another way. So the number is learned. It is kept for a day without being seen again: a worker that
was scaled down counts as lost until somebody dismisses it, or the day is over.

Only ready processes of one version count together: in a rolling update the new ones start before the old ones end, and
that such an update is stuck for ten minutes must not raise the number.
"""

from collections.abc import Iterable, Mapping

import msgspec

from tas.processes.process import Running, numbers

TOGETHER_SECONDS = 600.0
KEPT_SECONDS = 24 * 3600
"""How long a number stays known without being seen again."""

RENEWED_SECONDS = 3600.0
"""A number that is still seen is written again after this time."""

MOST = 10_000
"""The largest number: no installation has more replicas of a worker."""


class Expected(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many processes should run a worker; `dismissed` is who said so, if a person did."""

    count: int
    dismissed: str = ""


class Lack(msgspec.Struct, frozen=True, kw_only=True):
    """A worker of which fewer processes run than should."""

    worker: str
    running: int
    expected: int


def together(running: Iterable[Running]) -> dict[str, int]:
    """How many ready processes of one version run each worker, of the version with most."""
    found: dict[str, dict[str, int]] = {}
    for each in running:
        for worker in each.process.ready:
            versions = found.setdefault(worker, {})
            versions[each.process.version] = versions.get(each.process.version, 0) + 1
    return {worker: max(versions.values()) for worker, versions in found.items()}


class Sustained:
    """How many processes of each worker ran together for `TOGETHER_SECONDS`, from what is noted now and then."""

    def __init__(self) -> None:
        self._steps: dict[str, list[tuple[float, int]]] = {}  # since when how many

    def note(self, counts: Mapping[str, int], now: float) -> None:
        """Notes how many run together at `now`, which never goes back."""
        for worker in counts.keys() | self._steps.keys():
            steps, count = self._steps.setdefault(worker, []), counts.get(worker, 0)
            if not steps or steps[-1][1] != count:
                steps.append((now, count))
            while len(steps) > 1 and steps[1][0] <= now - TOGETHER_SECONDS:
                del steps[0]
        self._steps = {worker: steps for worker, steps in self._steps.items() if steps[-1][1] or len(steps) > 1}

    def counts(self, now: float) -> dict[str, int]:
        """The least of each worker within the time; none of a worker that was not seen as long as that."""
        began = now - TOGETHER_SECONDS
        return {
            worker: min(count for _, count in steps)
            for worker, steps in self._steps.items()
            if steps[0][0] <= began and all(count for _, count in steps)
        }

    def clear(self) -> None:
        """Forgets everything: for some time nobody looked."""
        self._steps.clear()


def to_store(stored: Expected | None, age: float, sustained: int) -> Expected | None:
    """What is to be stored of a worker of which so many ran together; None: nothing.

    `stored` is what is known, since `age` seconds.
    """
    if stored is None or sustained > stored.count:
        return Expected(count=min(sustained, MOST))
    return stored if sustained == stored.count and age >= RENEWED_SECONDS else None


def lacks(running: Iterable[Running], expected: Mapping[str, Expected]) -> list[Lack]:
    """The workers of which fewer run than should, by name."""
    found = numbers(running)
    return [
        Lack(worker=worker, running=found.get(worker, 0), expected=each.count)
        for worker, each in sorted(expected.items())
        if found.get(worker, 0) < each.count
    ]


def unknown(running: Iterable[Running], expected: Mapping[str, Expected]) -> list[str]:
    """The workers that run, and of which nobody knows yet how many should, by name."""
    return sorted(numbers(running).keys() - expected.keys())
