"""The worker that publishes what happens as public events."""

from typing import TYPE_CHECKING

from bus.buckets import ANNOUNCED, BREAKERS, EVENTS, NODES, POLICIES, SOURCES, VERDICT_LOG, VERDICTS
from bus.rights.roles import Rights, lease
from workers.spec import WorkerSpec, always

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker


async def _build(context: "Context") -> "Worker":
    from tas.events.event import source_of
    from workers.events.worker import EventPublisher

    bus = await context.bus()
    return EventPublisher(bus, registry=context.registry, source=source_of(context.settings.cluster_name or ""))


SPEC = WorkerSpec(
    name="events",
    help="Publish what happens as public events: violations, stale metrics, labels, policies, sources.",
    port=9013,
    build=_build,
    rights=Rights(
        reads=(VERDICT_LOG, VERDICTS, NODES, POLICIES, BREAKERS, SOURCES, EVENTS, ANNOUNCED), writes=EVENTS.subjects
    )
    | lease("events"),
    settings=("cluster_name",),
    in_all=always,
)
