"""An agent that learns: it observes the log of outcomes in order, and what it has learned is kept on the bus.

Each replica learns for itself (`tas.agents.learning`). A fault of an agent affects its learning alone.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import NoReturn, TypeVar

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from bus.buckets import OUTCOMES
from bus.connection import Bus
from bus.errors import BusError, ConflictError
from bus.kinds import LEARNED_STATES
from bus.outcomes import LoggedOutcome, OutcomeReader
from bus.record_kind import Entry, Packed
from bus.records.agents import LearnedState
from tas.agents.agent import Agent
from tas.agents.learning import Position, Step, StoredState, next_step
from tas.errors import InvalidInputError, line_of
from tas.outcomes.outcome import Placed
from workers.agents.agents_file import LoadedAgent
from workers.agents.interrupting import InterruptedCallError, Interrupter
from workers.process.logs import ThrottledLog
from workers.process.tasks import together

log = structlog.get_logger("agents")

T = TypeVar("T")

SAVE_SECONDS = 30.0
"""How often a replica looks whether it stores its state."""

KEEP_SECONDS = 30 * 86400
"""After so long without a write, what an agent has learned expires."""

MAX_STATE_BYTES = 1 << 20
"""The most bytes of a stored state, also if the server takes larger messages."""

RESTORE_SECONDS = 10.0
"""How long an agent may take to read a stored state."""

RETRY_SECONDS = 1.0
"""The wait after a failure of the bus."""

MAX_STALLS = 3
"""After so many events in a row that take too long, an agent observes no more: each blocks the process meanwhile."""


class LearnerMetrics:
    """The metrics of all agents that learn, by the name of the agent."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.events = Counter(
            "tas_agent_events", "Events that an agent has observed.", ["agent"], registry=registry
        )  # fmt: skip
        self.failed = Counter(
            "tas_agent_events_failed",
            "Events that an agent could not learn from, because it raised an error or they cannot be read.",
            ["agent"],
            registry=registry,
        )
        self.learning = Gauge(
            "tas_agent_learning", "1 while the agent observes; 0 after it has stopped.", ["agent"], registry=registry
        )
        self.behind = Gauge(
            "tas_agent_events_behind", "Events that an agent has not observed yet.", ["agent"], registry=registry
        )
        self.since = Gauge(
            "tas_agent_learned_since_seconds",
            "When the first event was stored that an agent has learned from, in seconds since 1970; 0: none.",
            ["agent"],
            registry=registry,
        )
        self.bytes = Gauge(
            "tas_agent_state_bytes", "The size of the state that an agent has last had.", ["agent"], registry=registry
        )
        self.writes = Counter(
            "tas_agent_state_writes", "Writes of the state of an agent to the bus.", ["agent"], registry=registry
        )

    def remove(self, agent: str) -> None:
        """The agent is not served any more."""
        for metric in (self.events, self.failed, self.learning, self.behind, self.since, self.bytes, self.writes):
            with suppress(KeyError):
                metric.remove(agent)


class _OlderStateError(Exception):
    """Another replica has stored a state that has learned for longer."""


class _FailedError(Exception):
    """The agent has raised an error."""


class _StalledError(Exception):
    """The agent took too long."""


class Learner:
    """Lets one agent observe, and keeps what it has learned.

    Attributes:
        loaded: The agent.
        position: From where to where of the log it has learned.
        is_restored: Whether it is known what the bus has of it.
    """

    def __init__(
        self,
        bus: Bus,
        loaded: LoadedAgent,
        metrics: LearnerMetrics,
        interrupter: Interrupter,
        *,
        before: "Learner | None" = None,
    ) -> None:
        """`before` is the learner of another agent under this name, whose state this agent has got."""
        self.loaded = loaded
        self.position: Position = Position() if before is None else before.position
        self.is_restored: bool = before is not None and before.is_restored
        self._revision: int = 0 if before is None else before._revision
        self._refused = -1  # the revision of a state that the agent does not accept
        self._bus = bus
        self._name = loaded.config.name
        self._agent = loaded.agent
        self._metrics = metrics
        self._throttled = ThrottledLog(log, agent=self._name)
        self._observe = interrupter.bounded(loaded.agent.observe, loaded.config.timeout)
        self._restore = interrupter.bounded(loaded.agent.restore, RESTORE_SECONDS)
        self._snapshot = interrupter.bounded(loaded.agent.snapshot, RESTORE_SECONDS)
        self._wants_runs = loaded.agent.needs.outcomes
        self._stalls = 0  # in a row
        metrics.learning.labels(self._name).set(1)
        self._note()

    async def run(self) -> None:
        """Observes until cancelled, or until the agent stalls again and again."""
        try:
            while True:
                if not self.is_restored:
                    await self._load()
                await self._learn()
        except _StalledError as error:
            log.error("agent_learning_stopped", agent=self._name, error=str(error))  # noqa: TRY400 - the agent's fault
        except Exception:  # a bug here: the other agents learn on
            log.exception("agent_learning_failed", agent=self._name)
        self._metrics.learning.labels(self._name).set(0)

    async def _learn(self) -> None:
        """Observes and saves until another replica has stored an older state. Raises _StalledError."""
        try:
            await together(self._follow(), self._keep_saving())
        except* _OlderStateError:
            self.is_restored = False
        except* _StalledError as errors:
            raise _StalledError(str(errors.exceptions[0])) from None

    # Observing

    async def _follow(self) -> NoReturn:
        async with aclosing(OutcomeReader(self._bus, after=self.position.sequence).batches()) as batches:
            async for batch in batches:
                if batch.lost is not None and self.position.sequence:
                    first, last = batch.lost.first, batch.lost.last
                    self._throttled.warning("outcomes_lost", first=first, last=last)
                for message in batch.messages:
                    self._take(message)
                self._metrics.behind.labels(self._name).set(batch.behind)
                self._note()
                await asyncio.sleep(0)
        raise AssertionError  # the batches have no end

    def _take(self, message: LoggedOutcome) -> None:
        event = message.event
        self.position = Position(sequence=message.sequence, since=min(self.position.since, message.arrived))
        try:
            if isinstance(event, InvalidInputError):
                raise _FailedError(str(event))  # noqa: TRY301 - counted as a failure of the agent is
            if isinstance(event, Placed) or self._wants_runs:
                # An observer whose clock is ahead must not make older experience expire.
                event = replace(event, at=min(event.at, message.arrived))
                self._ask("observe", partial(self._observe, event))
                self._stalls = 0
                self._metrics.events.labels(self._name).inc()
        except _FailedError as error:
            self._stalls = 0
            self._note_failure(error, message)
        except _StalledError as error:
            self._stalls += 1
            self._note_failure(error, message)
            if self._stalls >= MAX_STALLS:
                raise _StalledError(f"{error}, {MAX_STALLS} times in a row") from None

    def _note_failure(self, error: Exception, message: LoggedOutcome) -> None:
        self._metrics.failed.labels(self._name).inc()
        self._throttled.error("agent_event_failed", error=str(error), sequence=message.sequence)

    def _ask(self, what: str, call: Callable[[], T]) -> T:
        """What the agent answers. Raises _FailedError for any error of it, _StalledError if it takes too long."""
        try:
            return call()
        except InterruptedCallError as error:
            raise _StalledError(f"{what}: {error}") from None
        except (Exception, SystemExit) as error:
            raise _FailedError(_text_of(error)) from error

    def _note(self) -> None:
        since = self.position.since
        self._metrics.since.labels(self._name).set(since if isfinite(since) else 0.0)

    # Keeping

    async def _load(self) -> None:
        """Gives the agent what is stored; without it, or if the agent refuses it, the agent stays as it is."""
        while True:
            await self._bus.wait_connected()
            try:
                entry = await LEARNED_STATES.get(self._bus, self._name)
                record = await self._record_of(entry)
                break
            except BusError as error:
                self._throttled.warning("agent_state_not_read", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
        if record is not None and self._restores(record):
            self.position = Position(sequence=record.sequence, since=record.since)
        elif entry.present:
            self._refused = entry.revision
        self._revision = entry.revision
        self.is_restored = True
        self._note()
        since = self.position.since if isfinite(self.position.since) else None
        log.info("agent_learns", agent=self._name, after=self.position.sequence, since=since)

    async def _record_of(self, entry: Entry[str, LearnedState]) -> LearnedState | None:
        """The stored state, if it is of this kind of agent, and of what the log has had. Raises BusError."""
        record = entry.readable()
        if record is None:
            return None
        problem: InvalidInputError | None = None
        if record.agent != self.loaded.config.kind:
            problem = InvalidInputError("state of an agent", "agent", record.agent, "is another agent")
        elif record.sequence > self.position.sequence and record.sequence > (
            last := (await self._bus.epoch(OUTCOMES)).last_sequence
        ):  # the agent would not observe any event before that sequence
            reason = f"must be at most {last}, the last of OUTCOMES"
            problem = InvalidInputError("state of an agent", "sequence", record.sequence, reason)
        if problem is None:
            return record
        self._throttled.warning("agent_state_refused", error=str(problem))
        return None

    def _restores(self, record: LearnedState) -> bool:
        try:
            self._ask("restore", partial(self._restore, record.state))
        except _FailedError as error:
            self._throttled.warning("agent_state_refused", error=str(error))
            return False
        return True

    async def _keep_saving(self) -> NoReturn:
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            try:
                await self._save()
            except ConflictError:
                pass  # another replica was first
            except BusError as error:
                self._throttled.warning("agent_state_not_written", error=str(error))

    async def _save(self) -> None:
        """Looks once at what is stored, and writes if it is this replica's turn. Raises BusError, _OlderStateError."""
        read_at = time.monotonic()
        entry = await LEARNED_STATES.get(self._bus, self._name)
        record = None if entry.revision == self._refused else await self._record_of(entry)
        position = None if record is None else Position(sequence=record.sequence, since=record.since)
        stored = StoredState(revision=entry.revision, position=position)
        step = next_step(self.position, stored, known_revision=self._revision)
        self._revision = entry.revision
        if step is Step.RESTORE:
            raise _OlderStateError
        if step is Step.WRITE:
            await self._write(entry.revision, read_at)

    async def _write(self, revision: int, read_at: float) -> None:
        """Writes the state if the key is still at `revision`. Raises BusError."""
        position = self.position
        try:
            packed = self._ask("snapshot", partial(self._packed, position))
        except _FailedError as error:
            self._throttled.error("agent_state_not_written", error=str(error))
            return
        if packed is None:
            return
        size, most = len(packed.value), min(MAX_STATE_BYTES, self._bus.max_value_bytes)
        self._metrics.bytes.labels(self._name).set(size)
        if size > most:
            self._throttled.error("agent_state_too_large", bytes=size, most=most)
            return
        self._revision = await LEARNED_STATES.put(
            self._bus, self._name, packed, revision=revision, read_at=read_at, ttl_seconds=KEEP_SECONDS
        )
        self._metrics.writes.labels(self._name).inc()

    def _packed(self, position: Position) -> Packed[str, LearnedState] | None:
        """The state for the bus; None if the agent has none."""
        state = self._snapshot()
        if state is None:
            return None
        record = LearnedState(
            agent=self.loaded.config.kind, sequence=position.sequence, since=position.since, state=state
        )
        return LEARNED_STATES.packed(self._name, record)


def learns(agent: Agent) -> bool:
    """Whether an agent observes anything."""
    return type(agent).observe is not Agent.observe


def hand_over(before: LoadedAgent, after: LoadedAgent, interrupter: Interrupter) -> bool:
    """Gives an agent with new options what the one before has learned; False if there is nothing, or it refuses."""
    if type(before.agent) is not type(after.agent):
        return False
    try:
        state = interrupter.bounded(before.agent.snapshot, RESTORE_SECONDS)()
        if state is None:
            return False
        interrupter.bounded(after.agent.restore, RESTORE_SECONDS)(state)
    except (Exception, SystemExit, InterruptedCallError) as error:  # noqa: BLE001 - the agent starts again
        log.warning("agent_state_refused", agent=after.config.name, error=_text_of(error))
        return False
    return True


def _text_of(error: BaseException) -> str:
    """An error of an agent as a line of text."""
    return line_of(str(error) if isinstance(error, InvalidInputError) else f"{type(error).__name__}: {error}")
