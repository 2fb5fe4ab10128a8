"""The worker that writes the status of TASPolicies. It has no command: `tas run watch` runs it, with its account."""

from typing import TYPE_CHECKING

from bus.buckets import BREAKERS, NODES, POLICIES, REFUSALS, VERDICTS, WORKERS
from bus.rights.roles import Rights, lease
from workers.spec import WorkerSpec, with_cluster

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker


async def _build(context: "Context") -> "Worker":
    from workers.status.worker import PolicyStatus

    bus = await context.bus()
    client = await context.connect_kubernetes("status")
    roster = await context.roster()
    return PolicyStatus(
        bus,
        client,
        context.reflectors(client),
        registry=context.registry,
        default_stale_after=context.settings.stale_after,
        lost=lambda: roster.lost,
    )


SPEC = WorkerSpec(
    name="status",
    help="Write the status of TASPolicies.",
    port=None,
    build=_build,
    rights=Rights(reads=(NODES, POLICIES, VERDICTS, REFUSALS, BREAKERS, WORKERS)) | lease("status"),
    settings=("stale_after",),
    needs_kubernetes=True,
    in_all=with_cluster,
)
