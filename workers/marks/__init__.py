"""The worker that writes taints and node conditions."""

from typing import TYPE_CHECKING

from bus.buckets import BREAKERS, NODES, POLICIES, REFUSALS, VERDICTS
from bus.rights.roles import Rights, lease
from workers.spec import WorkerSpec, with_cluster

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker


async def _build(context: "Context") -> "Worker":
    from workers.marks.worker import Marks

    bus = await context.bus()
    client = await context.connect_kubernetes("marks")
    return Marks(
        bus,
        client,
        context.reflectors(client),
        registry=context.registry,
        default_stale_after=context.settings.stale_after,
    )


SPEC = WorkerSpec(
    name="marks",
    help="Write the taints and node conditions that policies want beside their label.",
    port=9015,
    build=_build,
    rights=Rights(reads=(NODES, POLICIES, VERDICTS, BREAKERS, REFUSALS), writes=(REFUSALS.subject("*.marks"),))
    | lease("marks"),
    account="get list watch patch: nodes; patch: nodes/status; list: taspolicies.telemetry.intel.com",
    settings=("stale_after",),
    needs_kubernetes=True,
    in_all=with_cluster,
)
