"""The bus around `collect`: policies that use metrics, published samples, states of sources."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial

from prometheus_client import CollectorRegistry

from bus.buckets import POLICIES, SAMPLES, SOURCES, SYNCED, TABLES
from bus.connection import Bus
from bus.errors import BusError
from bus.records.codec import encode
from bus.records.policies import PolicyRecord, encode_policy
from bus.records.sources import decode_source_state
from bus.records.synced import Synced
from bus.scrapes import received
from bus.stream_reader import Start, StreamReader
from bus.subjects import policy_key, samples_subject
from bus.tables import received_table
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tas.samples.sample import NodeSamples, Scrape
from tas.sources.state import SourceState
from tas.sources.tables import Publish
from tas.values.quantity import NANO
from tests.integration.servers import answered, eventually
from tests.integration.workers.running import entry_on, epoch_on, put, running
from workers.collect.sources.base import Source
from workers.collect.worker import Collect
from workers.samples.metrics import SourceMetrics
from workers.samples.source import Listener
from workers.samples.source_spec import SourceKind, SourceSpec


async def polled(holds: Callable[[], Awaitable[bool]]) -> None:
    """Waits until `holds()` is true, also while the bus does not answer."""

    async def holds_now() -> bool:
        with suppress(BusError):
            return await holds()
        return False

    await eventually(holds_now, every=0.05)


class World:
    """The records and messages of a bus."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self._rows: dict[tuple[str, str], NodeSamples] = {}
        self._rows_until = 0

    async def use(
        self, *metrics: str, policy: str = "p", source: str | None = None, namespace: str = "default"
    ) -> None:
        """Writes a policy that uses exactly these metrics; without metrics, deletes the policy."""
        named = {} if source is None else {"source": source}
        rules = [{"metricname": metric, "operator": "GreaterThan", "target": 1} | named for metric in metrics]
        key = PolicyKey(namespace, policy)
        place = policy_key(key)
        if not rules:
            await put(self.bus, POLICIES, place, None)
            return
        parsed, problems = parse_policy(key, {"strategies": {"dontschedule": {"rules": rules}}})
        assert not problems
        await put(self.bus, POLICIES, place, encode_policy(PolicyRecord(policy=parsed, uid="u", generation=1)))

    async def listed(self) -> None:
        """Writes `_synced`: the list of policies is complete."""
        epoch = await epoch_on(self.bus, POLICIES)
        await put(
            self.bus,
            POLICIES,
            SYNCED,
            encode(Synced(epoch=epoch.created, count=0, time=datetime.now(UTC), writer="test", cluster=False)),
        )

    async def scrape(self, node: str, source: str) -> Scrape | None:
        """The last scrape of a node by a source, from a message of its own or from a table, if there is one."""
        found: list[Scrape] = []
        for message in await answered(lambda: self.bus.last_messages(SAMPLES, samples_subject(node, source))):
            _, scrape, refused = received(message)
            assert not refused
            found += () if scrape is None else (scrape,)
        if self.bus.refused(TABLES) is None:
            await answered(self._read_tables)
        found += self._rows.get((node, source), ())
        return max(found, key=lambda scrape: (scrape.arrived, scrape.measured), default=None)

    async def _read_tables(self) -> None:
        """Reads what is new on TABLES: a poll may be several messages of one subject, each with other nodes."""
        reader = StreamReader(self.bus, TABLES, Start(after=self._rows_until))
        async with aclosing(reader.stored()) as batches:
            async for batch in batches:
                for message in batch.messages:
                    key, table, refused = received_table(message)
                    assert not refused.counts
                    if table is not None:
                        self._rows |= {(node, key.source): table.scrapes(node) for node in table.nodes}
                    self._rows_until = message.sequence

    async def values(self, node: str, source: str) -> dict[str, float]:
        """The values of the last scrape."""
        scrape = await self.scrape(node, source)
        return {} if scrape is None else {metric: value / NANO for metric, value in scrape.metrics.items()}

    async def has(self, node: str, source: str, values: Mapping[str, float]) -> None:
        """Waits until the last scrape has exactly these values."""

        async def has_values() -> bool:
            return await self.values(node, source) == values

        await polled(has_values)

    async def comes(self, node: str, source: str) -> None:
        """Waits for a scrape that was measured after the call."""
        began = time.time()

        async def is_published() -> bool:
            scrape = await self.scrape(node, source)
            return scrape is not None and scrape.measured > began

        await polled(is_published)

    async def published(self) -> int:
        """The number of messages on SAMPLES and TABLES."""
        answers = [await answered(partial(self.bus.api, f"STREAM.INFO.{of}")) for of in ("SAMPLES", "TABLES")]
        return sum(answer["state"]["messages"] for answer in answers)

    async def state(self, source: str) -> SourceState | None:
        """The stored state of a source."""
        entry = await entry_on(self.bus, SOURCES, source)
        return None if entry is None or entry.value is None else decode_source_state(entry.value)

    async def problem(self, source: str, words: str) -> SourceState:
        """Waits until the state of a source has a problem with this text; "" waits until it has none."""
        found: list[SourceState] = []

        async def has_problem() -> bool:
            state = await self.state(source)
            if state is None or not (words in state.problem if words else not state.problem and state.last_success):
                return False
            found[:] = [state]
            return True

        await polled(has_problem)
        return found[0]

    async def misses(self, source: str, metric: str, words: str) -> None:
        """Waits until the state of a source has this text as the reason of a missing metric; "": it has values."""

        async def is_missing() -> bool:
            state = await self.state(source)
            if state is None or metric not in state.metrics:
                return False
            missing = state.metrics[metric].missing
            return words in missing if words else state.metrics[metric].nodes > 0

        await polled(is_missing)

    async def refuses(self, source: str, why: str, words: str) -> None:
        """Waits until the state of a source has a refusal of this reason with this text in its example."""

        async def is_refused() -> bool:
            state = await self.state(source)
            return state is not None and any(
                reason.value == why and words in refusal.example for reason, refusal in state.refused.items()
            )

        await polled(is_refused)


@asynccontextmanager
async def collecting(
    bus: Bus,
    *sources: Source | Listener,
    kind: SourceKind = SourceKind.CUSTOM_METRICS,
    period: float = 0.1,
    stale_after: float = 120.0,
    always: Collection[str] = (),
    publish: Publish = Publish.TABLES,
) -> AsyncIterator[CollectorRegistry]:
    """Runs `collect` with these sources while the body runs, and gives its metrics."""
    registry = CollectorRegistry()
    specs = {SourceSpec(name=source.name, kind=kind): source for source in sources}
    metrics = SourceMetrics(registry)
    collect = Collect(
        bus, specs, period=period, default_stale_after=stale_after, metrics=metrics, always=always, publish=publish
    )
    async with running(collect):
        yield registry
