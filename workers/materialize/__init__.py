"""The worker that stores the newest samples of each node."""

from typing import TYPE_CHECKING

from bus.buckets import NODES, SAMPLES, SAMPLES_CONSUMER, TABLES, TABLES_CONSUMER
from bus.rights.roles import Rights
from workers.spec import WorkerSpec, always

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker


async def _build(context: "Context") -> "Worker":
    from workers.materialize.worker import Materialize

    return Materialize(await context.bus(), registry=context.registry)


SPEC = WorkerSpec(
    name="materialize",
    help="Store the newest samples of each node on the bus.",
    port=9003,
    build=_build,
    rights=Rights(
        reads=(SAMPLES, TABLES, NODES),
        writes=(NODES.subject("*.metrics"), NODES.subject("_table.*.*")),
        durables=((SAMPLES, SAMPLES_CONSUMER), (TABLES, TABLES_CONSUMER)),
    ),
    in_all=always,
)
