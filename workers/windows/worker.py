"""Windows: computes statistics of windows from samples, such as `cpu:p95:5m`, and publishes them as samples.

One replica at a time reads SAMPLES and TABLES, and the others are on standby. The replica stores each series again
and again in WINDOWS. Another one goes on with what is stored there, and reads what was published since. What is lost
costs accuracy, and shows: no statistic is known before its values span half of its window.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import aclosing, suppress
from functools import partial

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from bus.buckets import NODES, SAMPLES, TABLES, Stream
from bus.connection import Bus
from bus.errors import BusError, ConflictError
from bus.kinds import NODE_FACTS, WINDOW_SERIES
from bus.lease import Lease
from bus.pull import Message
from bus.record_kind import Entry
from bus.records.nodes import NodeFacts
from bus.records.synced import Synced
from bus.scrapes import received
from bus.stream_reader import Start, StreamReader
from bus.subjects import WindowKey, window_keys
from bus.tables import is_table, received_table
from tas.errors import InvalidInputError
from tas.samples.sample import Scrape
from tas.samples.table import with_metrics
from tas.samples.unknown_node import is_unknown_node
from tas.sources.result import ResultBuilder, SourceResult
from tas.sources.tables import Publish
from tas.values.window import window_of
from tas.windows.admission import MAX_NAMES, Admission, Names
from tas.windows.key import SeriesKey, StoredSeries, series_key
from tas.windows.past import has_read_as_far, pause_after
from tas.windows.table import WindowTable
from workers.following.synced import SyncedWatch
from workers.process.logs import ThrottledLog
from workers.process.tasks import together
from workers.samples.metrics import SourceMetrics
from workers.samples.source import ReceivingSource
from workers.samples.wanted_metrics import WINDOWS, WantedMetrics

log = structlog.get_logger("windows")

GATHER_SECONDS = 0.2
"""How long values are gathered before their statistics are published: the samples of a cluster arrive together."""

STORE_SECONDS = 240.0
"""Within this time each series is stored again: twice in what SAMPLES keeps, so that nothing is missing in between."""

CHECK_SECONDS = 10.0
"""How often it is checked which statistics are missing, and which series have ended."""

IDLE_SECONDS = 3600.0
"""The pause while no policy uses a statistic; a change of a policy ends it."""

ADMIT_SECONDS = 60.0
"""How often statistics are tried again that were not admitted."""

NO_PLACE = f"no place for more statistics: {MAX_NAMES} are computed, and namespaces share them"
"""Why a statistic is not computed."""

MAX_MISSING = 1000
"""So many statistics that are not computed are named with the reason."""

READ = (SAMPLES, TABLES)
"""What has the values."""

NOT_READ = f"its values of the last {SAMPLES.max_age_seconds / 60:.0f} minutes are not read yet"
"""Why a new statistic is missing."""

MAX_NAMED = 10
"""So many namespaces are named in a line of the log."""

RETRY_SECONDS = 1.0
"""The wait after a failure of the bus."""

AT_ONCE = 64
"""After so many nodes and statistics, or messages and their series, the event loop runs."""

KEPT_SECONDS = 600
"""A stored series expires so long after the last value in its window."""


class Windows:
    """The worker. A message of a node that Kubernetes does not have counts for nothing.

    Nor does a value that was measured before the node was created: another machine had the name.
    """

    name = WINDOWS

    def __init__(
        self,
        bus: Bus,
        *,
        default_stale_after: float,
        registry: CollectorRegistry,
        metrics: SourceMetrics,
        always: Collection[str] = (),
        publish: Publish = Publish.TABLES,
        store_seconds: float = STORE_SECONDS,
    ) -> None:
        """`default_stale_after` is in seconds. Statistics in `always` are computed although no policy uses them.

        They are published in the form `publish`. Within `store_seconds` each series is stored again.
        """
        self._store_seconds = store_seconds
        self._bus = bus
        self._wanted = WantedMetrics(bus, default_stale_after=default_stale_after, always=always)
        self._lease = Lease(bus, WINDOWS)
        self._admission = Admission()
        self._admitted: tuple[int, Names] = -1, {}
        self._table = WindowTable()
        self._filling: WindowTable | None = None
        self._new: Names = {}
        self._uids: dict[str, str] = {}
        self._created: dict[str, float] = {}
        self._revisions: dict[WindowKey, int] = {}
        self._missing: dict[str, str] = {}
        self._warming: Set[str] = frozenset()
        self._active = False
        self._behind = set(READ)
        self._changed = asyncio.Event()
        self._throttled = ThrottledLog(log)
        self._nodes = SyncedWatch(
            bus, NODE_FACTS.to(self._apply_facts), on_epoch=lambda _: self._clear_facts(), on_complete=self._complete
        )
        self._of_sources = metrics
        self._form = publish
        self._metrics = _Metrics(registry)
        self._metrics.series.set_function(lambda: float(self._table.count))

    def unready(self) -> str | None:
        """Why it is not known what is to be computed, or of which nodes."""
        if (reason := self._wanted.unready()) is not None:
            return reason
        return None if self._nodes.status.caught_up else f"{NODES.name}: not caught up with the bus"

    async def run(self) -> None:
        """Runs until cancelled."""
        await together(self._wanted.run(), self._nodes.run(), self._run_source())

    async def _run_source(self) -> None:
        """Before any statistic is wanted, there is no source to be shown."""
        await self._wanted.wait_until_known()
        while True:
            version = self._wanted.version
            if self._wanted_names():
                break
            await self._wanted.wait_for_change(after=version, seconds=IDLE_SECONDS)
        await ReceivingSource(self._bus, self, self, self._of_sources, kind=WINDOWS, publish=self._form).run()

    # What the source needs

    def of(self, _source: str) -> Mapping[str, float]:
        """The statistics that are wanted from here; none on standby."""
        wanted = self._wanted.of(WINDOWS) if self._active else {}
        return {metric: stale_after for metric, stale_after in wanted.items() if window_of(metric) is not None}

    async def wait_until_known(self) -> None:
        """Waits for the first complete list of policies."""
        await self._wanted.wait_until_known()

    async def listen(
        self, _metrics: Callable[[], frozenset[str]], publish: Callable[[SourceResult], Awaitable[None]]
    ) -> None:
        """Publishes statistics while this replica has the lease; without any wanted it asks for no lease."""
        while True:
            version = self._wanted.version
            if not self._wanted_names() or self.unready() is not None:
                pause = RETRY_SECONDS if self.unready() else IDLE_SECONDS
                await self._wanted.wait_for_change(after=version, seconds=pause)
                continue
            try:
                async with self._lease.hold():
                    await self._compute(publish)
            except BusError as error:
                log.info("source_lease_lost", source=WINDOWS, error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            finally:
                self._active, self._behind = False, set(READ)
                self._table = WindowTable()
                self._revisions = {}
                # From now on this replica computes none: the places of its last samples end in an hour.
                self._admission.admit({}, time.time())
                self._admitted = -1, {}

    def _wanted_names(self) -> Names:
        """The statistics that are wanted, with the namespaces whose policies use each; none if the operator does."""
        namespaces = self._wanted.namespaces(WINDOWS)
        return {
            name: namespaces.get(name, frozenset()) for name in self._wanted.of(WINDOWS) if window_of(name) is not None
        }

    def _names(self) -> Names:
        """Those of the wanted statistics that are computed."""
        version, names = self._admitted
        if version != self._wanted.version:
            names = self._admit()
        return names

    def _admit(self) -> Names:
        """The same, decided anew."""
        names = self._admission.admit(self._wanted_names(), time.time())
        self._admitted = self._wanted.version, names
        return names

    async def _compute(self, publish: Callable[[SourceResult], Awaitable[None]]) -> None:
        """Computes and publishes until no statistic is wanted any more. Raises BusError."""
        self._active = True
        is_known = await self._restore()
        seconds = 2 * self._store_seconds if is_known else SAMPLES.max_age_seconds
        readers = {stream: StreamReader(self._bus, stream, Start(time=time.time() - seconds)) for stream in READ}
        async with asyncio.TaskGroup() as tasks:
            works = [self._read(stream, reader, is_complete=is_known) for stream, reader in readers.items()]
            works += (self._publish(publish), self._store(), self._check())
            others = [tasks.create_task(work) for work in works]
            await self._follow_names(readers)
            for task in others:
                task.cancel()

    async def _restore(self) -> bool:
        """Takes in what is stored; whether each wanted series was stored lately of some node. Raises BusError."""
        entries = await WINDOW_SERIES.entries(self._bus)
        stored_series = {entry.key.series for entry in entries}
        # What the replica before has computed stays admitted.
        wanted = {name: (each, window_of(name)) for name, each in self._wanted_names().items()}
        known = {name: each for name, (each, of) in wanted.items() if of and series_key(of) in stored_series}
        self._admission.admit(known, time.time())
        self._table.want(self._admit())
        found = await self._take_stored(entries, self._table)
        log.info("windows_restored", series=self._table.count, stored=len(self._revisions))
        return found == self._table.keys

    async def _take_stored(
        self, entries: Sequence[Entry[WindowKey, StoredSeries]], table: WindowTable
    ) -> set[SeriesKey]:
        """Takes in stored series; returns those of nodes that exist, if they were stored lately."""
        found: set[SeriesKey] = set()
        lately = time.time() - self._store_seconds  # a pass takes as long: so none is older than two of them
        for count, entry in enumerate(entries, 1):
            if count % AT_ONCE == 0:
                await asyncio.sleep(0)
            self._revisions[entry.key] = entry.revision
            node, key = entry.key
            stored = entry.readable()
            if stored is None or not self._is_same(node, stored.node_uid):
                continue
            if table.restore(node, key, stored, now=time.time()) and entry.created >= lately:
                found.add(key)
        return found

    async def _restore_wanted_again(self, table: WindowTable) -> None:
        """Takes in what is stored of the series of this table: a policy may be deleted only to be created again."""
        try:
            entries = await WINDOW_SERIES.entries(self._bus, [window_keys(key) for key in table.keys])
        except BusError as error:  # the streams still have the values of the last minutes
            self._throttled.warning("window_series_not_read", error=str(error))
        else:
            await self._take_stored(entries, table)

    @property
    def _caught_up(self) -> bool:
        """Whether all that was stored is read."""
        return all(map(self._is_refused, self._behind))

    def _is_refused(self, stream: Stream) -> bool:
        """Whether the bus does not have or give the stream: a full store need not have room for TABLES."""
        return stream in self._unread()

    def _unread(self) -> Mapping[Stream, str]:
        """The streams that are not read, with the reason."""
        return {stream: why for stream in READ if (why := self._bus.readers.refused(stream)) is not None}

    async def _read(self, stream: Stream, reader: StreamReader, *, is_complete: bool) -> None:
        """Reads until cancelled; `is_complete`: nothing since the start of the reader should be gone."""
        async with aclosing(reader.batches()) as batches:
            async for batch in batches:
                if batch.lost is not None and (is_complete or stream not in self._behind):
                    self._metrics.lost.inc(batch.lost.last - batch.lost.first + 1)
                    self._throttled.warning("window_messages_lost", first=batch.lost.first, last=batch.lost.last)
                await self._take(batch.messages, self._table)
                if not batch.behind and stream in self._behind:
                    self._behind.discard(stream)
                    if self._caught_up:
                        self._find_missing()
                self._changed.set()

    async def _follow_names(self, readers: Mapping[Stream, StreamReader]) -> None:
        """Lets the table compute what is wanted, until nothing is wanted.

        The values of new series are read from the past at most a quarter of the time: an author of policies who has a
        new statistic every second costs the others nothing.
        """
        clock = asyncio.get_running_loop().time
        while self._wanted_names():
            names = self._admit()
            version, began = self._wanted.version, clock()
            self._new = {name: each for name, each in names.items() if not self._table.has_series_of(name)}
            self._table.want({name: each for name, each in names.items() if name not in self._new})
            if self._new:
                self._find_missing()
                await self._fill(readers)
                await asyncio.sleep(pause_after(clock() - began))
            else:
                seconds = ADMIT_SECONDS if self._admission.refused else IDLE_SECONDS
                await self._wanted.wait_for_change(after=version, seconds=seconds)
                await asyncio.sleep(began + pause_after(0.0) - clock())

    async def _fill(self, readers: Mapping[Stream, StreamReader]) -> None:
        """Takes in the series of new names with the values that are stored, or still on the streams.

        Others go on meanwhile. Second readers read the streams until they have read as far as the `readers` of the
        table, which then takes the series over.
        """
        self._filling = filling = self._table.beside(self._new)
        start = Start(time=time.time() - SAMPLES.max_age_seconds)
        past = {stream: StreamReader(self._bus, stream, start) for stream in READ}
        taken: dict[Stream, int | None] = {}  # up to where, of each stream that has been read
        behind: dict[Stream, int] = {}
        is_filled = asyncio.Event()

        def has_read(stream: Stream) -> bool:
            if stream not in taken:
                return self._is_refused(stream)
            return has_read_as_far(taken[stream], readers[stream].applied, behind=behind[stream])

        async def read(stream: Stream) -> None:
            async with aclosing(past[stream].batches()) as batches:
                async for batch in batches:
                    await self._take(batch.messages, filling)
                    # Not that of the reader, which is ahead while its next messages wait to be taken.
                    taken[stream], behind[stream] = past[stream].applied, batch.behind
                    if self._caught_up and all(map(has_read, READ)):
                        # Before a reader is closed, which takes a while: no value may come in between.
                        self._take_over(filling)
                        is_filled.set()
                        return

        try:
            await self._restore_wanted_again(filling)
            async with asyncio.TaskGroup() as tasks:
                works = [tasks.create_task(read(stream)) for stream in READ]
                await is_filled.wait()
                for work in works:
                    work.cancel()
        finally:
            self._filling, self._new = None, {}

    def _take_over(self, filled: WindowTable) -> None:
        """Lets the table have the new series, as far as they are still wanted."""
        names = self._names()
        known = [name for name in names if self._table.has_series_of(name) or name in self._new]
        self._table.want({name: names[name] for name in known})
        self._table.take(filled)
        self._filling, self._new = None, {}
        self._find_missing()
        self._changed.set()

    async def _take(self, messages: Sequence[Message], table: WindowTable) -> None:
        done = 0
        for message in messages:
            for node, scrape in self._scrapes(message, table.metrics):
                if not self._is_unknown(node) and scrape.time >= self._created.get(node, 0.0):
                    done += table.add(node, scrape)
                done += 1
                if done >= AT_ONCE:
                    done = 0
                    await asyncio.sleep(0)
            done += 1

    def _scrapes(self, message: Message, metrics: Collection[str]) -> Iterator[tuple[str, Scrape]]:
        """The scrapes of a message, one or those of each row of a table, with these metrics alone."""
        try:
            if is_table(message):
                key, table, _ = received_table(message)
                if table is not None and key.source != WINDOWS:
                    table = with_metrics(table, metrics)
                    yield from ((node, scrape) for node in table.nodes for scrape in table.scrapes(node))
            elif not message.subject.endswith(f".{WINDOWS}"):
                node, scrape, _ = received(message, metrics)
                if scrape is not None:
                    yield node, scrape
        except InvalidInputError:
            return  # `materialize` reads every message, and reports what it refuses

    async def _publish(self, publish: Callable[[SourceResult], Awaitable[None]]) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._changed.clear()
            if not self._caught_up:
                continue
            changed = self._table.changed()
            builder = ResultBuilder()
            done = 0
            for node, keys in changed.items():
                for sample in self._table.samples(node, keys):
                    builder.add_sample(sample)
                    self._missing.pop(sample.metric, None)
                    done += 1
                done += 1
                if done >= AT_ONCE:
                    done = 0
                    await asyncio.sleep(0)
            for name, why in self._missing.items():
                builder.add_missing(name, why, warming=name in self._warming)
            try:
                await publish(builder.result())
            except BusError:  # logged; the next values bring the statistics again
                continue

    async def _check(self) -> None:
        """Again and again: which statistics are missing, and which series have ended."""
        while True:
            if self._caught_up:
                self._find_missing()
            await self._drop_ended()
            self._forget_revisions()
            for stream, why in self._unread().items():  # the others go on, but its values are in no statistic
                self._throttled.warning("window_stream_not_read", stream=stream.name, reason=why)
            if self._table.refused:
                self._metrics.refused.inc(self._table.refused)
                self._throttled.warning(
                    "window_series_refused",
                    count=self._table.refused,
                    series=self._table.count,
                    namespaces=sorted(self._table.full)[:MAX_NAMED],
                )
                self._table.refused = 0
            await asyncio.sleep(CHECK_SECONDS)

    async def _drop_ended(self) -> None:
        nodes = list(self._table.nodes)
        for start in range(0, len(nodes), AT_ONCE):
            self._table.drop_ended(nodes[start : start + AT_ONCE], time.time())
            await asyncio.sleep(0)

    def _forget_revisions(self) -> None:
        """Drops those of series that nobody has or wants any more; a series that comes again is read first."""
        tables = self._tables()
        if len(self._revisions) > sum(table.count for table in tables):
            nodes = {node for table in tables for node in table.nodes}
            series = {key for table in tables for key in table.keys}
            self._revisions = {
                key: revision for key, revision in self._revisions.items() if key.node in nodes and key.series in series
            }

    def _find_missing(self) -> None:
        missing, warming = self._table.missing(time.time())
        unread = self._unread().values()
        missing = {name: "; ".join((why, *unread)) for name, why in missing.items()}
        missing |= dict.fromkeys(self._new, NOT_READ)
        refused = sorted(self._admission.refused)[:MAX_MISSING]
        missing |= dict.fromkeys(refused, NO_PLACE)
        if missing or self._missing:
            self._missing = missing
            self._warming = (warming | self._new.keys()) - set(refused)
            self._changed.set()

    async def _store(self) -> None:
        """Stores every series again and again, evenly spread; without a pause where that takes too long."""
        clock = asyncio.get_running_loop().time
        while True:
            nodes, began = list(self._table.nodes), clock()
            for number, node in enumerate(nodes, 1):
                await asyncio.sleep(began + self._store_seconds * number / len(nodes) - clock())
                await self._store_node(node)
            self._metrics.store_seconds.set(clock() - began)
            if not nodes:
                await asyncio.sleep(min(self._store_seconds, CHECK_SECONDS))

    async def _store_node(self, node: str) -> None:
        read_at = time.monotonic()
        for series, stored in list(self._table.stored(node, self._uids.get(node, ""))):
            key = WindowKey(node, series)
            try:
                self._revisions[key] = await WINDOW_SERIES.put(
                    self._bus,
                    key,
                    stored,
                    revision=self._revisions.get(key, 0),
                    read_at=read_at,
                    ttl_seconds=int(series.seconds) + KEPT_SECONDS,
                )
            except ConflictError:  # it has expired, or the bus is new: the next time
                with suppress(BusError):
                    self._revisions[key] = (await WINDOW_SERIES.get(self._bus, key)).revision
            except BusError as error:
                self._throttled.warning("window_not_stored", node=node, metric=series.metric, error=str(error))

    # Nodes

    @property
    def _cluster(self) -> bool | None:
        return None if self._nodes.synced is None else self._nodes.synced.cluster

    def _is_unknown(self, node: str) -> bool:
        return is_unknown_node(listed=node in self._uids, cluster=self._cluster)

    def _is_same(self, node: str, uid: str) -> bool:
        """Whether a series of a node with this uid may be of the node that has the name now."""
        return not self._is_unknown(node) and (not uid or self._uids.get(node, uid) == uid)

    def _apply_facts(self, entry: Entry[str, NodeFacts]) -> None:
        node, facts = entry.key, entry.readable()
        if not entry.present:
            self._uids.pop(node, None)
            self._created.pop(node, None)
            self._drop_node(node)
        elif facts is not None:
            if self._uids.get(node, facts.uid) != facts.uid:  # another machine of the same name
                self._drop_node(node)
            self._uids[node] = facts.uid
            self._created[node] = facts.created_at or 0.0

    def _clear_facts(self) -> None:
        self._uids.clear()
        self._created.clear()

    def _complete(self, synced: Synced) -> None:
        if synced.cluster:
            for table in self._tables():
                for node in [node for node in table.nodes if self._is_unknown(node)]:
                    table.drop_node(node)

    def _drop_node(self, node: str) -> None:
        for table in self._tables():
            table.drop_node(node)

    def _tables(self) -> Sequence[WindowTable]:
        return (self._table,) if self._filling is None else (self._table, self._filling)


class _Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.series = Gauge("tas_windows_series", "Series from which statistics are computed.", registry=registry)
        self.store_seconds = Gauge(
            "tas_windows_store_seconds", "Seconds that the last pass took which stored each series.", registry=registry
        )
        counter = partial(Counter, registry=registry)
        self.refused = counter(
            "tas_windows_values_refused", "Values without a series, since there are too many series."
        )
        self.lost = counter(
            "tas_windows_messages_lost", "Messages on SAMPLES and TABLES that were gone before they could be read."
        )
