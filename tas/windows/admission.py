"""Which statistics are computed, where policies want more than there is a place for."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from tas.samples.sample import MAX_SAMPLE_AGE

MAX_NAMES = 250
"""So many statistics are computed: a quarter of the metrics that a node may have from one source. The rest is left for
those that were computed until a while ago, since their last samples keep their place for an hour."""

PLACES = 4
"""So many times the number of statistics a node has places for."""

Names = Mapping[str, Collection[str]]
"""Statistics by name, and the namespaces whose policies use each. One without a namespace is the operator's."""


class Admission:
    """Gives each namespace a fair share of `MAX_NAMES`, and remembers which statistics were admitted.

    A namespace that wants no more than the others can have gets all. Statistics of the operator are always admitted,
    and leave the rest to the namespaces. One of several namespaces counts for the one that wants the fewest.

    Attributes:
        refused: The statistics that were not admitted by the last call.
    """

    def __init__(self, *, most: int = MAX_NAMES) -> None:
        self._most = most
        self._admitted: dict[str, str] = {}  # and the namespace for which each counts
        self._gone: dict[str, tuple[str, float]] = {}  # the same, and until when its samples have a place
        self.refused: frozenset[str] = frozenset()

    def admit(self, names: Names, now: float) -> Names:
        """The statistics that are computed; `now` is in seconds since 1970.

        Those that were admitted before stay admitted, as long as the share of their namespace has room for them. One
        that nobody wants any more counts for another hour: otherwise whoever changes statistics all the time would
        fill the nodes with their samples.
        """
        payers = _payers(names)
        until = now + MAX_SAMPLE_AGE
        held = {name: (payer, until) for name, payer in self._admitted.items() if payer} | self._gone
        held = {name: each for name, each in held.items() if each[1] > now}
        admitted: dict[str, str] = {name: payer for name, payer in payers.items() if not payer}
        demands = Counter(payer for payer in payers.values() if payer)
        demands.update(payer for name, (payer, _) in held.items() if name not in names)
        shares = dict(_shares(demands, max(0, self._most - len(admitted))))

        def admit(candidates: Iterable[str]) -> None:
            for name in sorted(candidates):
                payer = payers[name]
                if payer and shares[payer] > 0:
                    admitted[name] = payer
                    shares[payer] -= 1

        admit(names.keys() & self._admitted.keys())
        admit(names.keys() & (held.keys() - self._admitted.keys()))
        self._gone = {name: each for name, each in held.items() if name not in admitted}
        for payer, _ in self._gone.values():
            if payer in shares:
                shares[payer] -= 1
        if len(admitted) + len(self._gone) < PLACES * self._most:
            admit(names.keys() - held.keys())
        self._admitted = admitted
        self.refused = frozenset(names.keys() - admitted.keys())
        return {name: names[name] for name in admitted}


def _payers(names: Names) -> dict[str, str]:
    """The namespace for which each statistic counts; empty: the operator."""
    wants = Counter(namespace for each in names.values() for namespace in each)
    return {
        name: min(each, key=lambda namespace: (wants[namespace], namespace), default="") for name, each in names.items()
    }


def _shares(demands: Mapping[str, int], room: int) -> Iterator[tuple[str, int]]:
    """How many of its statistics each namespace gets: what it wants, or as many as all others that want more."""
    left = len(demands)
    for namespace, demand in sorted(demands.items(), key=lambda item: (item[1], item[0])):
        share = min(demand, room // left)
        room -= share
        left -= 1
        yield namespace, share
