"""The worker that adds the resource `telemetry/scheduling` to nodes."""

from typing import TYPE_CHECKING

from bus.buckets import ANNOUNCED, EVENTS
from bus.rights.roles import Rights, lease
from bus.subjects import EVENTS as EVENTS_SUBJECT
from workers.spec import WorkerSpec

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker


async def _build(context: "Context") -> "Worker":
    from tas.events.event import source_of
    from workers.resources.worker import Resources

    bus = await context.bus()
    client = await context.connect_kubernetes("resources")
    return Resources(
        bus,
        client,
        context.reflectors(client),
        registry=context.registry,
        count=context.settings.node_resource,
        event_source=source_of(context.settings.cluster_name or ""),
    )


SPEC = WorkerSpec(
    name="resources",
    help="Add the resource `telemetry/scheduling` to each node.",
    port=9010,
    build=_build,
    rights=Rights(reads=(EVENTS, ANNOUNCED), writes=(f"{EVENTS_SUBJECT}.resource.>",)) | lease("resources"),
    account="get list watch: nodes; patch: nodes/status",
    settings=("node_resource", "cluster_name"),
    defaults={"node_resource": "1000"},
    needs_kubernetes=True,
    in_all=lambda settings: settings.kubeconfig is not None and settings.node_resource > 0,
)
