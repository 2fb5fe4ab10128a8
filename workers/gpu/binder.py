"""Binds pods that request GPU cards: reserves cards in the hold of the node, sends one Binding, and confirms.

Any number of binders work at once, and none holds a lock while it waits. A conditional write to the hold of the node
decides who gets which card; a lost race is computed again. A binder never creates a hold: without one nobody knows who
has the cards of the node (`inventory` writes it). What is not known is not guessed: if nobody can tell whether a
Binding has taken effect, the reservation stays, and `inventory` looks at the pod when the reservation ends.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import NamedTuple, TypeVar

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram

from bus.buckets import SYNCED
from bus.connection import Bus
from bus.errors import BusError, ConflictError, UnavailableError
from bus.kinds import NODE_HOLDS, NODE_INVENTORY, synced_of
from bus.records.devices import NodeHold
from bus.records.synced import Synced
from bus.trying import STALE, Tries
from tas.enforcing.pod import PodKey
from tas.errors import line_of
from tas.extender.decision import Binding
from tas.extender.gpu import CardsDecider
from tas.gpu.claim import Claim, Options
from tas.gpu.hold import Held, Hold, HoldError, Phase
from tas.gpu.names import CONTAINER_CARDS, CONTAINER_TILES
from tas.gpu.pod_annotations import annotations
from tas.gpu.refusal import PREFIX, TEXTS, Refusal, Why
from tas.gpu.reserving import bound, released, reserve
from tas.values.backoff import Backoff
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import ConflictError as ApiConflictError
from workers.kubernetes.errors import KubernetesError, NotFoundError, ThrottledError
from workers.kubernetes.errors import UnavailableError as ApiUnavailableError
from workers.kubernetes.resources import GPU_PODS, GpuPod
from workers.process.logs import ThrottledLog

log = structlog.get_logger("gpu")

TRIES = Tries((*STALE, UnavailableError), times=5, wait=Backoff(first=0.005, longest=0.08))
"""Of a conditional write. After an UnavailableError it may have been done: the next try finds it so."""

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Of the seconds of a bind without its requests to the API server; 20 ms is the goal."""

PENDING = "Pending"

T = TypeVar("T")


class Result(StrEnum):
    """How a bind ended: a label of metrics."""

    BOUND = "bound"
    REFUSED = "refused"
    """The node has no cards for the pod."""
    RETRY = "retry"
    """Nothing was sent: the hold is not known, or changed with every try, or the bus does not answer."""
    FAILED = "failed"
    """The API server has not bound the pod."""
    UNKNOWN = "unknown"
    """Nobody can tell whether the pod is bound: the API server did not answer."""


class NotBoundError(Exception):
    """The pod is not bound, as far as is known."""

    def __init__(self, result: Result, reason: str) -> None:
        super().__init__(line_of(reason))
        self.result = result


class _Stored(NamedTuple):
    """The hold of a node (with this uid) at a revision, read or written at the monotonic time `at`."""

    uid: str
    hold: Hold
    revision: int
    at: float


class _Reservation(NamedTuple):
    """What the hold has of the pod; `is_new`: this bind made it. `read_at` is the monotonic time of its reads."""

    held: Held
    is_new: bool
    read_at: float
    stored: _Stored


class _Waits:
    """How long one bind has waited for the API server."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def on(self, call: Awaitable[T]) -> T:
        began = time.perf_counter()
        try:
            return await call
        finally:
            self.seconds += time.perf_counter() - began


class CardBinder:
    """Binds pods.

    Args:
        bus: Has inventories and holds.
        client: May create Bindings and read pods.
        decider: Remembers the claims of pods from their filter requests.
        options: Settings of the operator.
        synced: `_synced` of the current epoch of HOLDS as far as this process knows it, or None.
        one_start: Whether a node gets its next pod with cards only when the last one has started.
    """

    def __init__(
        self,
        bus: Bus,
        client: KubernetesClient,
        decider: CardsDecider,
        *,
        options: Options,
        synced: Callable[[], Synced | None],
        registry: CollectorRegistry,
        one_start: bool = False,
    ) -> None:
        self._bus = bus
        self._client = client
        self._decider = decider
        self._options = options
        self._synced = synced
        self._one_start = one_start
        self._started: dict[str, set[str]] = {}
        self._throttled = ThrottledLog(log)
        self._results = Counter("tas_gpu_binds", "Binds by result.", ["result"], registry=registry)
        for result in Result:
            self._results.labels(result)
        self._conflicts = Counter(
            "tas_gpu_bind_conflicts", "Writes of holds that another writer had overtaken.", registry=registry
        )
        self._seconds = Histogram(
            "tas_gpu_bind_seconds",
            "Seconds of a bind without its requests to the API server.",
            buckets=BUCKETS,
            registry=registry,
        )

    async def bind(self, binding: Binding, _now: float) -> str | None:
        """Binds the pod; returns None once it is bound, else why it is not."""
        began, waits = time.perf_counter(), _Waits()
        try:
            await self._bind(binding, waits)
        except NotBoundError as error:
            self._results.labels(error.result).inc()
            if error.result not in (Result.REFUSED, Result.RETRY):
                self._throttled.warning(
                    "gpu_bind_failed", error.result, result=error.result, node=binding.node, error=str(error)
                )
            return str(error)
        finally:
            self._seconds.observe(time.perf_counter() - began - waits.seconds)
        self._results.labels(Result.BOUND).inc()
        return None

    async def _bind(self, binding: Binding, waits: _Waits) -> None:
        """Raises NotBoundError."""
        claim = await self._claim(binding, waits)
        if claim is None:
            await self._send(binding, {}, None, waits)
            return
        reservation = await self._reserve(binding, claim, waits)
        held = reservation.held
        if held.phase is Phase.BOUND:
            return
        try:
            await self._send(binding, annotations(held.assignment, held.nanoseconds), reservation.read_at, waits)
        except NotBoundError as error:
            if error.result is Result.FAILED and reservation.is_new:
                await self._write(binding.node, lambda hold: released(hold, binding.uid, held), reservation.stored)
            raise
        await self._write(binding.node, lambda hold: bound(hold, binding.uid), reservation.stored)

    async def _claim(self, binding: Binding, waits: _Waits) -> Claim | None:
        """The claim of the pod, from its filter request or from the API server; None without GPU requests."""
        key = PodKey(binding.namespace, binding.name)
        known = self._decider.known(binding.uid)
        if known is None or known.pod != key:
            try:
                pod = await waits.on(self._client.get(GPU_PODS, binding.name, namespace=binding.namespace))
            except KubernetesError as error:
                raise NotBoundError(Result.FAILED, str(error)) from error
            if pod.metadata.uid != binding.uid:
                reason = f"pod {key} has the uid {pod.metadata.uid}, and {binding.uid} was to be bound"
                raise NotBoundError(Result.FAILED, reason)
            known = self._decider.remember(pod.as_device_pod())
        if isinstance(known.claim, Refusal):
            raise NotBoundError(Result.REFUSED, f"{PREFIX}{known.claim}")
        return known.claim

    async def _reserve(self, binding: Binding, claim: Claim, waits: _Waits) -> _Reservation:
        """Cards of the node for the claim, written to its hold. Raises NotBoundError; then nothing is reserved."""
        try:
            return await TRIES.of(lambda: self._try_to_reserve(binding, claim, waits))
        except (*STALE, UnavailableError) as error:
            reason = f"the hold of node {binding.node} could not be written in {TRIES.times} tries: {error}"
            raise NotBoundError(Result.RETRY, reason) from error
        except BusError as error:
            raise NotBoundError(Result.RETRY, str(error)) from error

    async def _try_to_reserve(self, binding: Binding, claim: Claim, waits: _Waits) -> _Reservation:
        """One try. Raises BusError, NotBoundError."""
        node = binding.node
        before, described = await asyncio.gather(self._read(node), NODE_INVENTORY.get(self._bus, node))
        await self._check_epoch()  # after the hold was read: it is of this epoch, or the write fails
        cards = described.readable()
        if before is None or cards is None or before.uid != cards.uid:
            raise NotBoundError(Result.RETRY, TEXTS[Why.UNKNOWN_NODE])
        if self._one_start:
            await self._check_started(before.hold, claim.uid, node, waits)
        nanoseconds = time.time_ns()
        try:
            step = reserve(
                before.hold,
                cards.inventory,
                cards.facts,
                claim,
                self._options,
                pod=PodKey(binding.namespace, binding.name),
                now=nanoseconds / 1e9,
                nanoseconds=nanoseconds,
            )
        except HoldError as error:
            raise NotBoundError(Result.RETRY, f"{PREFIX}{error}") from error
        if isinstance(step, Refusal):
            raise NotBoundError(Result.REFUSED, f"{PREFIX}{step}")
        if isinstance(step, Held):
            return _Reservation(step, is_new=False, read_at=before.at, stored=before)
        return _Reservation(step.held, step.is_new, before.at, await self._put(node, step.hold, before))

    async def _check_epoch(self) -> None:
        """Raises NotBoundError unless all holds of the current epoch are stored. Raises BusError."""
        synced = (await synced_of(NODE_HOLDS.bucket).get(self._bus, SYNCED)).readable()
        known = self._synced()
        if synced is None or known is None or synced.epoch != known.epoch:
            raise NotBoundError(Result.RETRY, "not ready: after a wipe of the bus the holds are not complete yet")

    async def _check_started(self, hold: Hold, uid: str, node: str, waits: _Waits) -> None:
        """Raises NotBoundError if another pod of the node has not started: the device plugin could mix them up."""
        started = self._started.pop(node, set()) & hold.pods.keys()
        if hold.pods:  # else nothing is kept of the node, which may be gone soon
            self._started[node] = started
        for other, held in hold.pods.items():
            if other == uid or other in started:
                continue
            if held.phase is Phase.BOUND and await self._has_started(other, held.pod, waits):
                started.add(other)
                continue
            raise NotBoundError(Result.RETRY, f"pod {held.pod} with GPU cards has not started on node {node} yet")

    async def _has_started(self, uid: str, key: PodKey, waits: _Waits) -> bool:
        try:
            pod = await waits.on(self._client.get(GPU_PODS, key.name, namespace=key.namespace))
        except NotFoundError as error:
            return error.confirms_missing(group="", plural="pods", name=key.name)
        except KubernetesError as error:
            raise NotBoundError(Result.RETRY, str(error)) from error
        return pod.metadata.uid != uid or pod.status.phase != PENDING

    async def _send(self, binding: Binding, wanted: dict[str, str], read_at: float | None, waits: _Waits) -> None:
        """Sends the Binding once. Raises NotBoundError: FAILED if the pod is not bound, UNKNOWN if nobody knows."""
        try:
            await waits.on(
                self._client.bind(
                    binding.name,
                    namespace=binding.namespace,
                    uid=binding.uid,
                    node=binding.node,
                    annotations=wanted,
                    read_at=read_at,
                )
            )
        except ApiConflictError as error:
            if not await self._is_bound(binding, wanted, waits):
                raise NotBoundError(Result.FAILED, str(error)) from error
        except ThrottledError as error:  # the API server has not begun with the request
            raise NotBoundError(Result.FAILED, str(error)) from error
        except ApiUnavailableError as error:
            raise NotBoundError(Result.UNKNOWN, str(error)) from error
        except KubernetesError as error:
            raise NotBoundError(Result.FAILED, str(error)) from error

    async def _is_bound(self, binding: Binding, wanted: dict[str, str], waits: _Waits) -> bool:
        """Whether the pod is on the node with these cards: another bind of the same pod was first."""
        try:
            pod: GpuPod = await waits.on(self._client.get(GPU_PODS, binding.name, namespace=binding.namespace))
        except KubernetesError as error:
            if isinstance(error, NotFoundError) and error.confirms_missing(group="", plural="pods", name=binding.name):
                return False
            raise NotBoundError(Result.UNKNOWN, str(error)) from error
        if pod.metadata.uid != binding.uid or pod.spec.node_name != binding.node:
            return False
        found = pod.metadata.annotations
        return all(found.get(name, "") == wanted.get(name, "") for name in (CONTAINER_CARDS, CONTAINER_TILES))

    async def _write(self, node: str, step: Callable[[Hold], Hold | None], stored: _Stored) -> None:
        """Writes what `step` makes of the hold of a node, if anything. If that fails, `inventory` will find out.

        The hold is read again only if another writer has changed it since it was `stored`.
        """
        known = [stored]

        async def once() -> None:
            before = known.pop() if known else await self._read(node)
            if before is not None and (hold := step(before.hold)) is not None:
                await self._put(node, hold, before)

        try:
            await TRIES.of(once)
        except BusError as error:
            self._throttled.warning("gpu_hold_not_written", node, node=node, error=str(error))

    async def _read(self, node: str) -> _Stored | None:
        """The stored hold of a node; None without one that can be read. Raises BusError."""
        at = time.monotonic()
        stored = await NODE_HOLDS.get(self._bus, node)
        held = stored.readable()
        return None if held is None else _Stored(held.uid, held.hold, stored.revision, at)

    async def _put(self, node: str, hold: Hold, before: _Stored) -> _Stored:
        """Writes a hold if nobody has changed it since `before`. Raises BusError."""
        record = NodeHold(uid=before.uid, pods=hold.pods)
        with self._conflicts.count_exceptions(ConflictError):
            revision = await NODE_HOLDS.put(self._bus, node, record, revision=before.revision, read_at=before.at)
        return _Stored(before.uid, hold, revision, time.monotonic())
