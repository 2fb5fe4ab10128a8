"""The series of all nodes: which statistics are wanted, and what they are now."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from tas.samples.sample import FUTURE_TOLERANCE, MAX_SAMPLE_AGE, Scrape
from tas.sources.result import Sample
from tas.values.window import Window, window_of
from tas.windows.admission import Names
from tas.windows.key import COVERED, Family, SeriesKey, StoredSeries, series_key
from tas.windows.series import Series

MAX_ROOM = 100_000
"""The room of all series together, in units of about 3 KB: six means of each node of a cluster with 15,000."""

ROOM = {Family.MOMENTS: 1, Family.AVERAGE: 1, Family.QUANTILES: 4}
"""The room of one series. Percentiles need 7 KB where values are few, and up to 31 KB."""

SHARE = 4
"""A namespace may have so many times the room that is left. So one alone gets four fifths of it all, and another one
finds room however much the first one wants."""


class MissingStatistics(NamedTuple):
    """Which statistics no node has.

    Attributes:
        why: The reason, by the name of the statistic.
        warming: The statistics of which there will be a value, once the values of a node cover enough of the window.
            None of which the last value came more than `MAX_SAMPLE_AGE` ago: its source seems to have ended.
    """

    why: dict[str, str]
    warming: set[str]


class _Coverage:
    """How far the nodes cover the window of one series. Each call takes the same time for any number of nodes.

    Attributes:
        span: How many seconds the values of a node cover at most; if the series of this node ends, those of some other
            node, until the next value of a node that covers more.
        newest: The time of the newest value of any node, also of one that has gone, in seconds since 1970.
    """

    __slots__ = ("_enough", "_longest", "_needed", "_nodes", "_seconds", "newest", "span")

    def __init__(self, key: SeriesKey) -> None:
        self._seconds = key.seconds
        self._needed = COVERED * key.seconds
        self._nodes: dict[str, Series] = {}
        self._enough: set[str] = set()
        self._longest = ""
        self.span = self.newest = 0.0

    @property
    def count(self) -> int:
        """The number of nodes that have the series."""
        return len(self._nodes)

    @property
    def is_enough(self) -> bool:
        """Whether the values of a node cover enough of the window."""
        return bool(self._enough)

    def lack(self, metric: str) -> str:
        """Why it is not enough."""
        return (
            f"the window of {self._seconds:.0f} s is not covered yet: the values of {metric} span "
            f"{self.span:.0f} s so far, {self._needed:.0f} s are needed"
        )

    def note(self, node: str, series: Series) -> None:
        """The series of a node has begun, or has one more value."""
        self._nodes[node] = series
        span = series.covered
        if span >= self._needed:
            self._enough.add(node)
        else:  # after a gap it covers less than before
            self._enough.discard(node)
        if span > self.span or node == self._longest or not self._longest:
            self._longest, self.span = node, span
        self.newest = max(self.newest, series.newest)

    def forget(self, node: str) -> None:
        """The series of a node has ended."""
        del self._nodes[node]
        self._enough.discard(node)
        if node == self._longest:
            self._longest, self.span = "", 0.0
            if self._nodes:
                # Not the first one: to find it, a dict passes the places of all before it that have gone.
                self.note(*self._nodes.popitem())


class WindowTable:
    """The series of each node that the wanted statistics need.

    Attributes:
        refused: How many series were not begun since there was no room, since the last call of `want`.
        full: The namespaces that were refused room since then; empty for the operator.
    """

    def __init__(self, *, max_room: int = MAX_ROOM) -> None:
        self._room = max_room
        self._payers: Mapping[SeriesKey, str] = {}
        self._used: Counter[str] = Counter()
        self._used_elsewhere: Counter[str] = Counter()
        self._coverage: dict[SeriesKey, _Coverage] = {}  # of each series that a node has
        self.full: set[str] = set()
        self._wanted: Mapping[str, Mapping[SeriesKey, tuple[tuple[str, Window], ...]]] = {}
        self._nodes: dict[str, dict[SeriesKey, Series]] = {}
        self._count = 0
        self._changed: dict[str, set[SeriesKey]] = {}
        self.refused = 0

    def beside(self, names: Names) -> "WindowTable":
        """A table of these statistics alone, in which namespaces have the room that they have not taken in this one."""
        other = WindowTable(max_room=self._room)
        other._used_elsewhere = self._used.copy()
        other.want(names)
        return other

    @property
    def room(self) -> int:
        """The room that is left."""
        return self._room

    @property
    def metrics(self) -> Collection[str]:
        """The metrics of which values are needed."""
        return self._wanted.keys()

    @property
    def count(self) -> int:
        """The number of series."""
        return self._count

    @property
    def keys(self) -> frozenset[SeriesKey]:
        """The wanted series, which each node may have."""
        return frozenset(key for keys in self._wanted.values() for key in keys)

    def has_series_of(self, name: str) -> bool:
        """Whether the wanted series include the one of this statistic."""
        window = window_of(name)
        return window is not None and series_key(window) in self._payers

    def want(self, names: Names) -> None:
        """Computes the statistics of these names from now on, and no others.

        A name that is no statistic of a window is left out. Series that no name needs are dropped. Those that several
        namespaces need take the room of the one that needs the least: nobody can exhaust it for the others.
        """
        before = self.keys
        wanted: dict[str, dict[SeriesKey, tuple[tuple[str, Window], ...]]] = {}
        for name in sorted(names):
            if (window := window_of(name)) is not None:
                keys = wanted.setdefault(window.metric, {})
                key = series_key(window)
                keys[key] = (*keys.get(key, ()), (name, window))
        self._wanted = wanted
        self._payers = _payers(wanted, names)
        self._used = Counter()
        for key, payer in self._payers.items():
            if (coverage := self._coverage.get(key)) is not None:
                self._used[payer] += ROOM[key.family] * coverage.count
        self.refused = 0
        self.full = set()
        kept = self.keys
        if before - kept:
            for node, of_node in list(self._nodes.items()):
                self._end(node, [key for key in of_node if key not in kept])

    def take(self, other: "WindowTable") -> None:
        """Takes over the wanted series of another table, as far as there is room; the other table must not be used.

        What has changed there has changed here; a stored series without a new value has not: it may be hours old.
        """
        for node, of_node in other._nodes.items():
            changed = other._changed.get(node, ())
            for key, series in of_node.items():
                if key in self._payers and self._has_room(key):
                    self._begin(node, key, series)
                    if key in changed:
                        self._changed.setdefault(node, set()).add(key)
        self.refused += other.refused
        self.full |= other.full

    def add(self, node: str, scrape: Scrape) -> int:
        """Adds the values of a scrape to the series of a node, and returns of how many series it has a value."""
        count = 0
        for metric in scrape.metrics.keys() & self._wanted.keys():
            for key in self._wanted[metric]:
                count += 1
                series = self._series(node, key)
                if series is not None and series.add(scrape.source, scrape.time, scrape.metrics[metric]):
                    self._changed.setdefault(node, set()).add(key)
                    self._coverage[key].note(node, series)
        return count

    def _series(self, node: str, key: SeriesKey) -> Series | None:
        series = self._nodes.get(node, {}).get(key)
        if series is None and self._has_room(key):
            series = Series(key)
            self._begin(node, key, series)
        return series

    def _has_room(self, key: SeriesKey) -> bool:
        """Whether one more series may begin; if not, this is noted."""
        payer, room = self._payers[key], ROOM[key.family]
        used = self._used[payer] + self._used_elsewhere[payer]
        if room <= self._room and (not payer or used + room <= SHARE * (self._room - room)):
            return True
        self.refused += 1
        self.full.add(payer)
        return False

    def changed(self) -> dict[str, set[SeriesKey]]:
        """The series with new values since the last call, by node."""
        changed, self._changed = self._changed, {}
        return changed

    def samples(self, node: str, keys: Collection[SeriesKey]) -> Iterator[Sample]:
        """The statistics of a node that these series give, each of the time of the newest value in it."""
        of_node = self._nodes.get(node, {})
        for key in keys & of_node.keys():
            series = of_node[key]
            wanted = self._wanted.get(key.metric, {}).get(key, ())
            values = series.values([window for _, window in wanted])
            for (name, _), value in zip(wanted, values, strict=True):
                if value is not None:
                    yield Sample(node=node, metric=name, value=value, measured=series.newest)

    def missing(self, now: float) -> MissingStatistics:
        """Why no node has a statistic; `now` is in seconds since 1970. Takes no longer for more nodes."""
        found, warming = dict[str, str](), set[str]()
        for metric, keys in self._wanted.items():
            for key, windows in keys.items():
                coverage = self._coverage.get(key)
                has_ended = coverage is not None and coverage.newest < now - MAX_SAMPLE_AGE
                if coverage is None:
                    why = f"no value of {metric} yet"
                    if self._payers[key] in self.full:
                        why = "no room for more series: too many statistics or durations are wanted"
                elif not coverage.is_enough:
                    why = coverage.lack(metric)
                    if not has_ended:
                        warming.update(name for name, _ in windows)
                elif has_ended:  # the newest statistic is as old as its last value: no policy can use it
                    why = f"no fresh value of {metric}"
                else:
                    continue
                if has_ended:
                    why += f"; the last value came more than {MAX_SAMPLE_AGE:.0f} s ago"
                found |= dict.fromkeys((name for name, _ in windows), why)
        return MissingStatistics(found, warming)

    @property
    def nodes(self) -> Collection[str]:
        """The nodes with series."""
        return self._nodes.keys()

    def drop_node(self, node: str) -> None:
        """Drops the series of a node."""
        self._end(node, list(self._nodes.get(node, ())))

    def drop_ended(self, nodes: Iterable[str], now: float) -> None:
        """Drops the series of these nodes that have had no value for longer than their window."""
        for node in nodes:
            of_node = self._nodes.get(node, {})
            self._end(node, [key for key, series in of_node.items() if _has_ended(series, now)])

    def _begin(self, node: str, key: SeriesKey, series: Series) -> None:
        """Adds or replaces a series of a node."""
        of_node = self._nodes.setdefault(node, {})
        if key not in of_node:
            self._tally(key, 1)
        of_node[key] = series
        if key not in self._coverage:
            self._coverage[key] = _Coverage(key)
        self._coverage[key].note(node, series)

    def _end(self, node: str, keys: Collection[SeriesKey]) -> None:
        """Drops series of a node."""
        if not keys:
            return
        of_node, changed = self._nodes[node], self._changed.get(node, set())
        for key in keys:
            del of_node[key]
            changed.discard(key)
            self._tally(key, -1)
            self._coverage[key].forget(node)
            if not self._coverage[key].count:
                del self._coverage[key]
        if not of_node:
            del self._nodes[node]
            self._changed.pop(node, None)

    def _tally(self, key: SeriesKey, one: int) -> None:
        """Counts a series that begins (1) or ends (-1)."""
        self._count += one
        room = one * ROOM[key.family]
        self._room -= room
        if key in self._payers:
            self._used[self._payers[key]] += room

    def stored(self, node: str, node_uid: str) -> Iterator[tuple[SeriesKey, StoredSeries]]:
        """The series of a node, to be stored."""
        for key, series in self._nodes.get(node, {}).items():
            yield key, series.stored(node_uid)

    def restore(self, node: str, key: SeriesKey, stored: StoredSeries, *, now: float) -> bool:
        """Takes in a stored series, unless it is not wanted, or there are too many; whether it was taken in.

        One with values from after `now` is refused: until then no other value would count. One without a value in its
        window is refused: it has ended, and with one new value it would count as covered. Raises ValueError if it
        cannot be a series.
        """
        if key not in self._payers:
            return False
        series = Series.restored(key, stored)
        if series.is_ahead_of(now + FUTURE_TOLERANCE) or _has_ended(series, now) or not self._has_room(key):
            return False
        self._begin(node, key, series)
        return True


def _has_ended(series: Series, now: float) -> bool:
    """Whether it has had no value for longer than its window; `now` is in seconds since 1970."""
    return series.newest < now - series.key.seconds


def _payers(
    wanted: Mapping[str, Mapping[SeriesKey, tuple[tuple[str, Window], ...]]], names: Names
) -> dict[SeriesKey, str]:
    """The namespace whose room each series takes: of those that need it, the one whose series need the least room."""
    users: dict[SeriesKey, frozenset[str]] = {}
    for keys in wanted.values():
        for key, windows in keys.items():
            of_names = [names[name] for name, _ in windows]
            # What the operator needs takes nobody's room.
            users[key] = frozenset() if not all(of_names) else frozenset().union(*of_names)
    needs: Counter[str] = Counter()
    for key, each in users.items():
        needs.update(dict.fromkeys(each, ROOM[key.family]))
    return {
        key: min(each, key=lambda namespace: (needs[namespace], namespace), default="") for key, each in users.items()
    }
