"""Bounds the names of nodes that a source may invent, where no cluster says which nodes exist.

Each name is a message on the bus, a key, and a row of each view: 99,000 names in half a megabyte took a minute and a
half. With a cluster, names of other nodes are refused by `tas.sources.nodes`.
"""

import msgspec

from tas.sources.result import RefusalReason, ResultBuilder, Sample, SourceResult, with_refusals

MAX_NAMES = 20_000
"""The most names of a source, each counted for `REMEMBERED_SECONDS` after its last value."""

MAX_NEW_NAMES = 2_000
"""The most new names in one request of a source that writes: Prometheus sends 2,000 samples at once by default."""

REMEMBERED_SECONDS = 3600.0

_SWEEP_SECONDS = 60.0


class NewNames:
    """The names of one source. `now` is in seconds of any clock."""

    def __init__(self, *, most_new: int = MAX_NAMES, most: int = MAX_NAMES) -> None:
        """`most_new`: so many in one result; `most`: so many together."""
        self._most_new = most_new
        self._most = most
        self._last: dict[str, float] = {}
        self._swept = 0.0

    def admit(self, result: SourceResult, now: float) -> SourceResult:
        """`result` without the samples of names that are too many; these are counted as refused."""
        self._sweep(now)
        room = min(self._most - len(self._last), self._most_new)
        builder = ResultBuilder()
        kept: list[Sample] = []
        for sample in result.samples:
            if sample.node not in self._last:
                if room <= 0:
                    self._refuse(builder, sample)
                    continue
                room -= 1
            self._last[sample.node] = now
            kept.append(sample)
        if len(kept) == len(result.samples):
            return result
        return with_refusals(msgspec.structs.replace(result, samples=tuple(kept)), builder.result().refusals)

    def _refuse(self, builder: ResultBuilder, sample: Sample) -> None:
        if not builder.counted(RefusalReason.NODE):
            reason = (
                f"is one new name too many: at most {self._most_new} at once, and {self._most} of a source, "
                "while no cluster says which nodes exist"
            )
            builder.refuse(RefusalReason.NODE, sample.metric, "node", sample.node, reason)

    def _sweep(self, now: float) -> None:
        if now - self._swept >= _SWEEP_SECONDS:
            self._swept = now
            self._last = {name: last for name, last in self._last.items() if now - last < REMEMBERED_SECONDS}
