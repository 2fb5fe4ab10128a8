"""The agents of a process that learn: one `Learner` for each, as the file of agents says."""

import asyncio
from collections.abc import Collection, Mapping

import structlog
from prometheus_client import CollectorRegistry

from bus.connection import Bus
from workers.agents.agents_file import LoadedAgent
from workers.agents.interrupting import Interrupter
from workers.agents.learner import Learner, LearnerMetrics, learns

log = structlog.get_logger("agents")

WAIT_SECONDS = 10.0
"""How long the process waits for what agents have learned; then it answers without."""


class Learning:
    """Runs the learners."""

    def __init__(self, bus: Bus, registry: CollectorRegistry, interrupter: Interrupter) -> None:
        self._bus = bus
        self._metrics = LearnerMetrics(registry)
        self._interrupter = interrupter
        self._learners: dict[str, Learner] = {}
        self._changed = asyncio.Event()
        self._waits_until: float | None = None

    def unready(self) -> str | None:
        """For which agents it is not known yet what they have learned; None if for all, or after `WAIT_SECONDS`."""
        waiting = sorted(name for name, learner in self._learners.items() if not learner.is_restored)
        now = asyncio.get_running_loop().time()
        if self._waits_until is None:
            self._waits_until = now + WAIT_SECONDS
        return f"AGENTS: not read yet for {', '.join(waiting)}" if waiting and now < self._waits_until else None

    def set(self, agents: Mapping[str, LoadedAgent], handed_over: Collection[str]) -> None:
        """These agents are served. Those in `handed_over` have the state of the agent before them."""
        learners = {}
        for name, loaded in agents.items():
            known = self._learners.get(name)
            if known is not None and known.loaded is loaded:
                learners[name] = known
            elif learns(loaded.agent):
                before = known if name in handed_over else None
                try:
                    learners[name] = Learner(self._bus, loaded, self._metrics, self._interrupter, before=before)
                except Exception:  # its needs cannot be read: the other agents learn
                    log.exception("agent_learning_failed", agent=name)
        for name in self._learners.keys() - learners.keys():
            self._metrics.remove(name)
        self._learners = learners
        self._changed.set()

    async def run(self) -> None:
        """Runs the learners until cancelled."""
        tasks: dict[Learner, asyncio.Task[None]] = {}
        try:
            while True:
                self._changed.clear()
                wanted = set(self._learners.values())
                for learner in tasks.keys() - wanted:
                    tasks.pop(learner).cancel()
                for learner in wanted - tasks.keys():
                    tasks[learner] = asyncio.create_task(learner.run(), name=f"learner {learner.loaded.config.name}")
                await self._changed.wait()
        finally:
            for task in tasks.values():
                task.cancel()
            if tasks:
                await asyncio.wait(tasks.values())
