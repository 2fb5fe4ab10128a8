"""The bus around `collect`: policies that use metrics, published samples, states of sources."""

import base64
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry

from bus.buckets import POLICIES, SOURCES, SYNCED
from bus.connection import Bus
from bus.errors import MESSAGE_NOT_FOUND, BusError, RefusedError
from bus.records.codec import encode
from bus.records.policies import PolicyRecord, encode_policy
from bus.records.samples import decode_samples
from bus.records.sources import decode_source_state
from bus.records.synced import Synced
from bus.subjects import policy_key, samples_subject
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tas.samples.sample import Scrape
from tas.sources.state import SourceState
from tas.values.quantity import NANO
from tests.integration.servers import answered, eventually
from tests.integration.workers.running import entry_on, epoch_on, put, running
from workers.ingest.collect import Collect, SourceMetrics
from workers.ingest.sources.base import Listener, Source
from workers.ingest.sources.spec import SourceKind, SourceSpec


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
        """The last scrape of a node by a source, if there is one."""
        subject = samples_subject(node, source)
        try:
            found = await answered(lambda: self.bus.api("STREAM.MSG.GET.SAMPLES", {"last_by_subj": subject}))
        except RefusedError as error:
            if error.code == MESSAGE_NOT_FOUND:
                return None
            raise
        message = found["message"]
        data = base64.b64decode(message["data"])
        _, scrape, refused = decode_samples(subject, data, arrived=time.time(), sequence=message["seq"])
        assert not refused
        return scrape

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
        """The number of messages on SAMPLES."""
        answer = await answered(lambda: self.bus.api("STREAM.INFO.SAMPLES"))
        count: int = answer["state"]["messages"]
        return count

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
) -> AsyncIterator[CollectorRegistry]:
    """Runs `collect` with these sources while the body runs, and gives its metrics."""
    registry = CollectorRegistry()
    specs = {SourceSpec(name=source.name, kind=kind): source for source in sources}
    metrics = SourceMetrics(registry)
    collect = Collect(bus, specs, period=period, default_stale_after=stale_after, metrics=metrics, always=always)
    async with running(collect):
        yield registry
