"""The source `annotations`: the numbers that other programs write to annotations of nodes become samples.

It is a part of `inventory`, which follows the nodes anyway: the API server answers no further list and no further
watch. While the replica has the lease, it publishes a change at once, and all values again and again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from math import inf

import msgspec
from prometheus_client import CollectorRegistry

from bus.connection import Bus
from bus.errors import BusError
from tas.samples.freshness import DEFAULT_STALE_AFTER
from tas.sources.annotations import SOURCE, Annotation, annotation_samples
from tas.sources.result import ResultBuilder, SourceResult
from tas.sources.tables import Publish
from workers.kubernetes.client import Change, ChangeType
from workers.kubernetes.followers import Gathered
from workers.kubernetes.resources import AnnotatedMetadata, GpuNode
from workers.samples.metrics import SourceMetrics
from workers.samples.publisher import REPEAT_SECONDS
from workers.samples.source import ReceivingSource

GATHER_SECONDS = 0.1
"""How long changes are gathered: an annotator writes all nodes one after another."""

MAX_REFUSED_NODES = 20
"""Of at most so many nodes the state of the source says which annotations are refused."""

RETRY_SECONDS = 1.0
"""The wait after a failure of the bus."""


class Annotations:
    """Publishes samples of annotations while `is_active()`.

    Attributes:
        nodes: Takes the nodes of `inventory` in.
    """

    name = SOURCE

    def __init__(
        self,
        bus: Bus,
        registry: CollectorRegistry,
        is_active: Callable[[], bool],
        *,
        keys: Mapping[str, str],
        lifetime: float,
        publish: Publish = Publish.TABLES,
    ) -> None:
        """`keys` are the metrics by annotation. `lifetime` is as in `annotation_samples`."""
        self.nodes: Gathered[GpuNode, Mapping[str, Annotation]] = Gathered(
            self._named, on_list=self._list_nodes, on_change=self._change_node
        )
        self._keys = keys
        self._lifetime = lifetime
        self._is_active = is_active
        self._nodes: dict[str, Mapping[str, Annotation]] = {}
        self._refused: dict[str, Mapping[str, str]] = {}
        self._changed: set[str] = set()
        self._wake = asyncio.Event()
        self._all_at = -inf
        self._source = ReceivingSource(bus, self, self, SourceMetrics(registry), kind=SOURCE, publish=publish)

    async def run(self) -> None:
        """Publishes, and writes the state of the source, until cancelled."""
        await self._source.run()

    def begin(self) -> None:
        """Publishes every node: this replica is active from now on."""
        self._all_at = -inf
        self._wake.set()

    # What `inventory` follows

    def _list_nodes(self, nodes: dict[str, Mapping[str, Annotation]]) -> None:
        self._nodes = nodes
        self.begin()

    def _change_node(self, change: Change[GpuNode]) -> None:
        """Takes in a change of a node. Most changes are of its status."""
        name = change.object.metadata.name
        annotations = {} if change.type is ChangeType.DELETED else self._read(change.object)
        if annotations == self._nodes.get(name, {}):
            return
        if annotations:
            self._nodes[name] = annotations
        else:
            del self._nodes[name]
        self._changed.add(name)
        self._wake.set()

    def _named(self, found: GpuNode) -> tuple[str, Mapping[str, Annotation]] | None:
        return (found.metadata.name, annotations) if (annotations := self._read(found)) else None

    def _read(self, found: GpuNode) -> Mapping[str, Annotation]:
        metadata, now = found.metadata, time.time()
        assert isinstance(metadata, AnnotatedMetadata)
        known = self._nodes.get(metadata.name, {})
        annotations: dict[str, Annotation] = {}
        for key, text in metadata.annotations.items():
            metric = self._keys[key]
            written = metadata.written.get(key)
            if written is None:  # somebody has deleted the field managers: the change that is seen counts
                before = known.get(metric)
                written = before.written if before is not None and before.text == text else now
            annotations[metric] = Annotation(text, written)
        return annotations

    # What the source needs

    def of(self, _source: str) -> Mapping[str, float]:
        """The metrics of annotations that a node has; none on standby."""
        nodes = self._nodes.values() if self._is_active() else ()
        return dict.fromkeys({metric for node in nodes for metric in node}, DEFAULT_STALE_AFTER)

    async def wait_until_known(self) -> None:
        """They are known at any time: none before the first list."""

    async def listen(
        self, _metrics: Callable[[], frozenset[str]], publish: Callable[[SourceResult], Awaitable[None]]
    ) -> None:
        """Publishes changes, and all values every few seconds: the bus may be new, and steady values do not age yet."""
        while True:
            due = self._all_at + REPEAT_SECONDS - time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(due, 0.0)):
                    await self._wake.wait()
                    await asyncio.sleep(GATHER_SECONDS)
            self._wake.clear()
            if not self._is_active():
                self._changed.clear()  # `begin` publishes every node
                await self._wake.wait()
                continue
            changed, self._changed = self._changed, set()
            is_full = time.monotonic() >= self._all_at + REPEAT_SECONDS
            names: Iterable[str] = self._nodes if is_full else changed
            some = {name: self._nodes[name] for name in names if name in self._nodes}
            # In a thread: a large cluster has a hundred thousand values.
            result, refused = await asyncio.to_thread(self._result, some, time.time(), is_full=is_full)
            kept = {name: why for name, why in self._refused.items() if name in self._nodes and name not in some}
            self._refused = kept | refused
            shown = {name: self._refused[name] for name in sorted(self._refused)[:MAX_REFUSED_NODES]}
            try:
                await publish(msgspec.structs.replace(result, refused_now=shown))
            except BusError:  # logged
                self._changed |= changed
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()
            else:
                if is_full:
                    self._all_at = time.monotonic()

    def _result(
        self, nodes: Mapping[str, Mapping[str, Annotation]], now: float, *, is_full: bool
    ) -> tuple[SourceResult, dict[str, Mapping[str, str]]]:
        """The samples of these nodes, and why annotations are refused, by node and metric."""
        builder = ResultBuilder()
        refused: dict[str, Mapping[str, str]] = {}
        for name, annotations in nodes.items():
            if found := annotation_samples(name, annotations, builder, now=now, lifetime=self._lifetime):
                refused[name] = found
        if is_full:
            given = {sample.metric for sample in builder.result().samples}
            for metric in {metric for node in nodes.values() for metric in node} - given:
                builder.add_missing(metric, "no annotation with a number was written lately")
        return builder.result(), refused
