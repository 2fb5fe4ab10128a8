"""The process that serves agents: each below its own path, and below the paths of the original framework.

`/<name>/filter` and `/<name>/prioritize` are also answered at `/scheduler/predicates/<name>` and
`/scheduler/priorities/<name>`. A fault of an agent affects its path alone.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge

from bus.connection import Bus
from tas.agents.file import AgentVerb
from tas.agents.hooks import NO_OPINION
from tas.errors import shortened
from tas.extender.hooks import hook_verbs
from tas.extender.node_view import NodeView
from tas.extender.verbs import Answer, Record
from tas.extension import Hooks
from tas.processes.process import LastAnswer
from workers.agents.agents_file import Agents, AgentsSource, LoadedAgent
from workers.agents.interrupting import Interrupter
from workers.agents.learner import Learner, LearnerMetrics, hand_over, learns
from workers.following.followed_allocations import FollowedAllocations
from workers.following.followed_view import FollowedView
from workers.process.logs import ThrottledLog
from workers.process.version import product_version
from workers.runtime import json_response
from workers.scheduler.extensions import Extension
from workers.scheduler.http import Route
from workers.scheduler.mounted import MountedExtension
from workers.scheduler.server import SchedulerServer

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


log = structlog.get_logger("agents")

PREFIX = "/scheduler"
"""The path prefix of the original framework."""

PATHS = {AgentVerb.FILTER: f"{PREFIX}/predicates", AgentVerb.PRIORITIZE: f"{PREFIX}/priorities"}
"""The paths of the original framework, before the name of the agent."""

BIND_REFUSAL = "agents bind no pods: leave bindVerb of the extender empty, then kube-scheduler binds them itself"

_BIND = hook_verbs(Hooks(bind=lambda *_: BIND_REFUSAL))["bind"]

HooksOf = Callable[[LoadedAgent, NodeView], Hooks]
"""Makes the hooks of an agent, which read nodes from the view."""


class AgentsWorker:
    """Serves filter and prioritize of the agents that the source names."""

    name = "agents"

    def __init__(
        self,
        bus: Bus,
        followed: FollowedView,
        source: AgentsSource,
        agents: Agents,
        server: SchedulerServer,
        *,
        hooks_of: HooksOf,
        registry: CollectorRegistry,
    ) -> None:
        """`agents` are those that `source` has loaded."""
        self._source = source
        self._hooks_of = hooks_of
        self._server = server
        self._throttled = ThrottledLog(log)
        self._without_opinion: dict[tuple[str, str], str] = {}  # by agent and verb whose last answer had none
        self._followed = followed
        self._nodes = NodeView(self._followed.view)
        self._nodes.allocations()  # a later file may have the first agent that reads them
        assert self._nodes.followed_allocations is not None
        self._allocations = FollowedAllocations(bus, self._nodes.followed_allocations)
        self._was_ready = False
        self._interrupter = Interrupter()
        self._learning = Learning(bus, registry, self._interrupter)
        self._mounted: dict[str, tuple[LoadedAgent, MountedExtension]] = {}
        self._routes: dict[str, Route] = {}
        self._mount(agents)
        Gauge("tas_agents", "Agents that are served.", registry=registry).set_function(lambda: len(self._mounted))

    def unready(self) -> str | None:
        """Why requests are refused with 503; once None, it stays None."""
        if self._followed.completed.is_set() and self._was_ready:
            return None
        reason = self._followed.unready() or self._allocations.unready() or self._learning.unready()
        self._was_ready = reason is None
        return reason

    def concerns(self) -> Iterator[str]:
        """Agents that knew too little of every node when they were asked last."""
        for (name, verb), example in sorted(self._without_opinion.items()):
            if name in self._mounted:
                yield f"{name} knew too little of every node when it was asked last ({verb}), as of {example}"

    async def run(self) -> None:
        """Serves until cancelled, then finishes current requests."""
        async with asyncio.TaskGroup() as tasks:
            with self._interrupter.watching():
                for part in (self._followed.run(), self._allocations.run(), self._learning.run(), self._follow_file()):
                    tasks.create_task(part)
                async with self._server.serving(
                    {PREFIX: {"bind": refuse_bind}},
                    unready=self.unready,
                    routes=[web.get("/version", _version)],
                    on_answer=self._answered,
                    changing=self._routes,
                ):
                    await asyncio.Event().wait()

    def health_routes(self) -> Iterable[web.RouteDef]:
        """Routes for the last answers and the agents."""
        return [self._server.answers_route(), web.get("/agents", self._list_agents)]

    async def _follow_file(self) -> None:
        while True:
            self._mount(await self._source.changed())

    def _mount(self, agents: Agents) -> None:
        """Serves these agents instead of those before.

        An agent that stays keeps the calls that have not ended, and one with new options what it has learned.
        """
        handed_over = [
            name
            for name, loaded in agents.items()
            if (known := self._mounted.get(name)) is not None
            and known[0] is not loaded
            and hand_over(known[0], loaded, self._interrupter)
        ]
        self._mounted = {
            name: known
            if (known := self._mounted.get(name)) is not None and known[0] is loaded
            else (loaded, self._mount_one(loaded))
            for name, loaded in agents.items()
        }
        self._learning.set(agents, handed_over)
        routes = {}
        for name, (loaded, mounted) in self._mounted.items():
            served = {str(verb): mounted.verbs[verb] for verb in AgentVerb if verb in loaded.config.verbs}
            self._server.metrics.mount(f"/{name}", served)
            for verb, handler in served.items():
                route = Route(f"/{name}", verb, handler)
                routes[f"/{name}/{verb}"] = routes[f"{PATHS[AgentVerb(verb)]}/{name}"] = route
        self._routes.clear()
        self._routes.update(routes)
        log.info("agents_served", agents=sorted(self._mounted))

    def _mount_one(self, loaded: LoadedAgent) -> MountedExtension:
        config, target = loaded.config, loaded.target
        try:
            hooks = self._hooks_of(loaded, self._nodes)
        except Exception as error:  # any error: the other agents are served
            log.exception("agent_not_served", agent=config.name, target=target)
            problem = f"it cannot be served: {type(error).__name__}: {shortened(str(error))}"
            broken = Extension(name=config.name, package=loaded.package, target=target, problem=problem)
            return MountedExtension(broken, self._nodes, limit=config.timeout)
        bounded = partial(self._interrupter.bounded, seconds=config.timeout)
        hooks = Hooks(
            filter=None if hooks.filter is None else bounded(hooks.filter),
            score=None if hooks.score is None else bounded(hooks.score),
        )
        extension = Extension(name=config.name, package=loaded.package, target=target, hooks=hooks)
        return MountedExtension(extension, self._nodes, limit=config.timeout)

    def _answered(self, answer: Answer) -> None:
        name = answer.path.strip("/")
        if answer.candidates:
            self._without_opinion.pop((name, answer.verb), None)
        if 0 < answer.candidates == answer.unknown + answer.unknown_rejected:
            missing = next((each for each in answer.values if each.rule == NO_OPINION and each.value), None)
            if missing is not None:  # else it has not learned anything of such a pod, or its formula does not apply
                example = f"node {missing.node}: {missing.value}"
                self._without_opinion[name, answer.verb] = example
                self._throttled.warning(
                    "agent_without_opinion",
                    answer.path,
                    agent=name,
                    verb=answer.verb,
                    nodes=answer.candidates,
                    example=example,
                )

    def last_answers(self) -> Mapping[str, LastAnswer]:
        """The last answer by verb."""
        return self._server.answers.last

    async def _list_agents(self, _request: web.Request) -> web.Response:
        return json_response([_described(loaded) for loaded, _ in self._mounted.values()])


def refuse_bind(body: bytes, now: float) -> tuple[bytes, Record]:
    """Answers the verb bind, as the original framework does: it always refuses."""
    return _BIND.respond(_BIND.decode(body), BIND_REFUSAL, now)


async def _version(_request: web.Request) -> web.Response:
    """Plain text, as the original framework answers its probes."""
    return web.Response(text=product_version())


def _described(loaded: LoadedAgent) -> Mapping[str, object]:
    config = loaded.config
    return {
        "name": config.name,
        "agent": config.kind,
        "verbs": sorted(config.verbs),
        "target": loaded.target,
        "package": loaded.package,
        "weight": config.weight,
        "ignorable": config.ignorable,
        "timeout": config.timeout,
    }
