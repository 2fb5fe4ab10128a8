"""The results of all simulations, put together for people: means over the seeds, and their least and largest."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from lab.simulate.model.simulation import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one load and one algorithm, for each seed."""

    load: str
    algorithm: str
    results: Sequence[Result]

    def mean(self, field: str) -> float:
        """The mean of a field over the seeds."""
        values = self.values(field)
        return fsum(values) / len(values)

    def values(self, field: str) -> list[float]:
        """A field for each seed; `cpu` and the other resources mean their overload."""
        return [
            float(each.overload_of[field] if field in each.overload_of else getattr(each, field))
            for each in self.results
        ]
