"""The worker that stores the policies, nodes and pods of a cluster."""

from typing import TYPE_CHECKING

from bus.buckets import NODES, PODS, POLICIES, SYNCED
from bus.rights.roles import Rights, expects
from workers.spec import WorkerSpec, with_cluster

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker


async def _build(context: "Context") -> "Worker":
    from workers.watch.worker import WatchWorker

    bus = await context.bus()
    client = await context.connect_kubernetes("watch")
    return WatchWorker(bus, context.reflectors(client), registry=context.registry)


SPEC = WorkerSpec(
    name="watch",
    help="""Store the policies, nodes and pods of a cluster on the bus.

Of the pods, only those that name a policy are stored. One replica at a time also writes the status of TASPolicies.
""",
    port=9007,
    build=_build,
    rights=Rights(
        reads=(NODES, POLICIES, PODS),
        writes=(NODES.subject("*.facts"), NODES.subject(SYNCED), POLICIES.subject(">"), PODS.subject(">")),
        purges=(NODES, POLICIES, PODS),
    )
    | expects(),
    account="list watch: taspolicies.telemetry.intel.com; patch: taspolicies/status.telemetry.intel.com; "
    "get list watch: nodes; list watch: pods",
    needs_kubernetes=True,
    in_all=with_cluster,
)
