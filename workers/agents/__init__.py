"""The worker that answers kube-scheduler by agents, and lets them learn."""

from typing import TYPE_CHECKING

from bus.buckets import AGENTS, HOLDS, NODES, OUTCOMES, PODS, POLICIES
from bus.rights.roles import Rights
from workers.spec import WorkerSpec

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker


async def _build(context: "Context") -> "Worker":
    from workers.agents.configured import agents_file, hooks_of
    from workers.agents.worker import AgentsWorker

    source = agents_file(context.settings, context.registry)
    return AgentsWorker(
        await context.bus(),
        await context.view(),
        source,
        await source.load(),
        context.server("agents", setting="--listen, TAS_LISTEN, HTTP_PORT"),
        hooks_of=hooks_of,
        registry=context.registry,
    )


SPEC = WorkerSpec(
    name="agents",
    help="Answer kube-scheduler's filter and prioritize by agents, which use load, requests and history.",
    port=9031,
    build=_build,
    rights=Rights(
        reads=(NODES, POLICIES, PODS, HOLDS, OUTCOMES, AGENTS),
        writes=(AGENTS.subject("*"),),
        many=(OUTCOMES,),  # each agent that learns reads it for itself, in each replica
    ),
    settings=("agents", "stale_after"),
    defaults={"listen": "127.0.0.1:9030"},
    listens="agents",
)
