"""The worker that labels the pods that are to leave a GPU card."""

from typing import TYPE_CHECKING

from bus.buckets import HOLDS, NODES
from bus.rights.roles import Rights, lease
from workers.spec import WorkerSpec

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker


async def _build(context: "Context") -> "Worker":
    from workers.evictions.worker import Evictions

    bus = await context.bus()
    return Evictions(bus, await context.connect_kubernetes("evictions"), registry=context.registry)


SPEC = WorkerSpec(
    name="evictions",
    help="Label the pods that are to leave a GPU card, so that a descheduler evicts them.",
    port=9019,
    build=_build,
    rights=Rights(reads=(NODES, HOLDS)) | lease("evictions"),
    account="get: nodes; get list watch patch: pods",
    needs_kubernetes=True,
)
