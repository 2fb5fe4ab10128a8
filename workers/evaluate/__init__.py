"""The worker that evaluates every policy for every node, and stores the verdicts."""

from typing import TYPE_CHECKING

from bus.buckets import (
    ANNOUNCED,
    BREAKERS,
    EVENTS,
    NODES,
    OUTSTANDING_KEY,
    POLICIES,
    SOURCES,
    VERDICT_LOG,
    VERDICTS,
)
from bus.rights.roles import Rights
from workers.spec import WorkerSpec, always

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker


async def _build(context: "Context") -> "Worker":
    from workers.evaluate.worker import Evaluate

    return Evaluate(await context.bus(), await context.view(), registry=context.registry)


SPEC = WorkerSpec(
    name="evaluate",
    help="Evaluate every policy for every node, and store the verdicts. They contain the desired labels.",
    port=9009,
    build=_build,
    rights=Rights(
        reads=(NODES, POLICIES, VERDICTS, BREAKERS, SOURCES),
        writes=(VERDICTS.subject("*"), BREAKERS.subject(OUTSTANDING_KEY)),
        gets=(VERDICT_LOG, EVENTS, ANNOUNCED),
        purges=(VERDICTS,),
    ),
    optional=(SOURCES, VERDICT_LOG, EVENTS, ANNOUNCED),
    settings=("stale_after",),
    in_all=always,
)
