"""What was refused of messages of samples, by source: a program that publishes by itself has no state that says so."""

from collections.abc import Sequence

from tas.processes.process import RefusedSamples

KEPT_SECONDS = 3600.0
"""So long after the last refusal it is shown."""

MAX_KEPT = 100
"""The most sources and reasons in memory: those that were refused last."""


class RefusedBySource:
    """What was refused of each source, for each reason."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], RefusedSamples] = {}  # the last ones at the end

    def note(self, subject: str, reason: str, example: str, *, count: int, now: float) -> None:
        """Applies a refusal of the object `subject` of an error, if that names its source."""
        source = source_of(subject)
        if not source:
            return
        known = self._found.pop((source, reason), None)
        self._found[source, reason] = RefusedSamples(
            source, reason, count + (0 if known is None else known.count), example, now
        )
        if len(self._found) > MAX_KEPT:
            del self._found[next(iter(self._found))]

    def newest(self, now: float) -> Sequence[RefusedSamples]:
        """All that was refused lately, the newest first."""
        return [each for each in reversed(self._found.values()) if now - each.time < KEPT_SECONDS]


def source_of(subject: str) -> str:
    """The source in the object of an error: `sample node-1/machine` or `table machine/1-0`; empty if it names none."""
    kind, _, name = subject.partition(" ")
    first, slash, last = name.partition("/")
    return "" if not slash else first if kind == "table" else last
