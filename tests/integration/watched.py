"""Readers that compare all they read with the published values: views, a watch of the bucket, an extender."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp

from bus.buckets import NODES
from bus.connection import Bus, Epoch, RawEntry
from bus.watch import WatchStatus
from tas.samples.sample import NodeSamples, Scrape
from tas.values.quantity import NANO
from tas.view.view import View
from tests.integration.bus.followers import raw_watch
from tests.integration.published import SECOND, Order, Place, Published, microseconds_of
from workers.following.followed_view import FollowedView

STALE_SECONDS = 3600.0
"""Longer than any test: no sample becomes stale."""

WRONGS = 20
"""At most so many faults are reported; the others are similar."""


class Held:
    """The newest value of each place that a reader has read, and the faults of what it read.

    Attributes:
        values: The order and the value of each place.
        faults: Values that became older, vanished, or were never published.
    """

    def __init__(self, name: str, published: Published) -> None:
        self.name = name
        self.values: dict[Place, tuple[Order, int]] = {}
        self.faults: list[str] = []
        self._published = published

    def see(self, node: str, seen: Mapping[Place, tuple[Order, int]]) -> None:
        """Compares all current values of `node` with the earlier ones."""
        for place in self.values:
            if place[0] == node and place not in seen:
                self.report(f"{place} has vanished")
        for place, (order, value) in seen.items():
            self._see_value(place, order, value)

    def report(self, what: str) -> None:
        if len(self.faults) < WRONGS:
            self.faults.append(f"{self.name}: {what}")

    def _see_value(self, place: Place, order: Order, value: int) -> None:
        before = self.values.get(place)
        if before == (order, value):
            return
        if before is not None and order <= before[0]:
            self.report(f"{place} went from {before} to {(order, value)}")
        if value not in (known := self._published.values.get(place, {})):
            self.report(f"{place} is {value}, which nobody published")
        elif (measured := known[value]) is not None and order[0] > measured:
            self.report(f"{place} is {value} of {order[0]}, and it was measured at {measured}")
        self.values[place] = (order, value)


class HeldView(View):
    """The view of the product, checked after each change."""

    def __init__(self, held: Held) -> None:
        super().__init__(default_stale_after=STALE_SECONDS)
        self._held = held

    def add_samples(self, node: str, samples: Iterable[Scrape], now: float) -> None:
        super().add_samples(node, samples, now)
        self._held.see(node, places(node, self.samples(node)))

    def drop_samples(self, node: str) -> None:
        self._held.report(f"{node} was dropped")
        super().drop_samples(node)


def places(node: str, samples: NodeSamples) -> dict[Place, tuple[Order, int]]:
    """The values of a node in a view."""
    return {
        (node, metric, scrape.source): ((round(scrape.time * SECOND), scrape.sequence), value // NANO)
        for scrape in samples
        for metric, value in scrape.metrics.items()
    }


@asynccontextmanager
async def meanwhile(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs `work` while the body runs; raises an error that ends `work` earlier."""
    task = asyncio.create_task(work)
    try:
        yield
        assert not task.done(), "the work ended by itself"
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class ExtenderView:
    """The view of an extender, without its HTTP server."""

    def __init__(self, bus: Bus, name: str, published: Published) -> None:
        self.held = Held(name, published)
        self.followed = FollowedView(bus, default_stale_after=STALE_SECONDS)
        self.followed.view = HeldView(self.held)

    @property
    def status(self) -> WatchStatus:
        return self.followed.watches[NODES.name]


@asynccontextmanager
async def extender_view(url: str, name: str, published: Published) -> AsyncIterator[ExtenderView]:
    """A view that follows the bus, with its own connection."""
    unreadable: list[str] = []
    async with Bus.connect(url, name=name, on_invalid=lambda _, key, __: unreadable.append(key)) as bus:
        view = ExtenderView(bus, name, published)
        async with meanwhile(view.followed.run()):
            yield view
            assert not unreadable


class Bucket:
    """NODES as another program reads it: as JSON, each epoch separately.

    Attributes:
        epochs: The last values of each epoch.
        faults: Values that became older, vanished, or were never published, within one epoch.
    """

    def __init__(self, bus: Bus, published: Published) -> None:
        self.epochs: list[Held] = []
        self.watch = raw_watch(bus, NODES, on_entry=self._take, on_epoch=self._begin)
        self._published = published

    @property
    def status(self) -> WatchStatus:
        return self.watch.status

    @property
    def faults(self) -> list[str]:
        return [fault for held in self.epochs for fault in held.faults]

    def _begin(self, epoch: Epoch) -> None:
        self.epochs.append(Held(f"epoch {epoch.created} of NODES", self._published))

    def _take(self, entry: RawEntry) -> None:
        token, _, kind = entry.key.partition(".")
        if kind != "metrics":
            return
        held = self.epochs[-1]
        if entry.value is None:
            held.report(f"{entry.key} was deleted")
            return
        node = token.replace("_", ".")
        seen: dict[Place, tuple[Order, int]] = {}
        for scrape in json.loads(entry.value)["scrapes"]:
            counts = min(microseconds_of(scrape["measured"]), microseconds_of(scrape["arrived"]))
            for metric, text in scrape["metrics"].items():
                place = (node, metric, scrape["source"])
                if place in seen:
                    held.report(f"{place} occurs twice in {entry.key}")
                seen[place] = ((counts, scrape["sequence"]), int(text))
        held.see(node, seen)


@asynccontextmanager
async def bucket(url: str, published: Published) -> AsyncIterator[Bucket]:
    """A bucket that is read over its own connection."""
    async with Bus.connect(url, name="reader") as bus:
        bucket = Bucket(bus, published)
        async with meanwhile(bucket.watch.run()):
            yield bucket


def has_read(status: WatchStatus, epoch: Epoch) -> bool:
    """Whether the watch has delivered all that the bucket had at `epoch`."""
    return (
        status.epoch is not None
        and status.epoch.created == epoch.created
        and status.caught_up
        and status.applied >= epoch.last_sequence
    )


class Extender:
    """A real extender, with requests over HTTP as of kube-scheduler.

    Attributes:
        asked: The number of answers.
        faults: Errors, and nodes that no longer violated a policy.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, nodes: Sequence[str]) -> None:
        self.asked = 0
        self.faults: list[str] = []
        self._session = session
        self._url = url
        self._nodes = nodes

    async def rejects(self, policy: str) -> set[str] | None:
        """The nodes that filter rejects for a pod of `policy`; None after an error."""
        pod = {"metadata": {"name": "p", "namespace": "default", "labels": {"telemetry-policy": policy}}}
        body = {"Pod": pod, "Nodes": None, "NodeNames": self._nodes}
        began = time.monotonic()
        try:
            async with self._session.post(f"{self._url}/filter", json=body) as response:
                text = await response.text()
                status = response.status
        except (aiohttp.ClientError, TimeoutError) as error:
            self._report(f"{policy}: no answer after {time.monotonic() - began:.1f} s: {error!r}")
            return None
        self.asked += 1
        answer = json.loads(text)
        if status != 200 or answer["Error"]:
            self._report(f"{policy}: {status} {text[:200]}")
            return None
        rejected = set(answer["FailedAndUnresolvableNodes"])
        if rejected | set(answer["NodeNames"]) != set(self._nodes) or rejected & set(answer["NodeNames"]):
            self._report(f"{policy}: some nodes are in neither list, or in both: {text[:200]}")
        return rejected

    async def ask_on(self, thresholds: Sequence[str], chance: random.Random) -> None:
        """Sends requests until cancelled. The metric only grows, so a node that violates a threshold never meets it."""
        violating: dict[str, set[str]] = {}
        while True:
            policy = chance.choice(thresholds)
            rejected = await self.rejects(policy)
            if rejected is not None:
                if gone := violating.get(policy, set()) - rejected:
                    self._report(f"{policy}: {gone} had a newer value before")
                violating[policy] = rejected
            await asyncio.sleep(0.01)

    def _report(self, what: str) -> None:
        if len(self.faults) < WRONGS:
            self.faults.append(f"extender: {what}")


@asynccontextmanager
async def asked(url: str, nodes: Sequence[str]) -> AsyncIterator[Extender]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield Extender(session, url, nodes)
