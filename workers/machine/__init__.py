"""The worker that publishes the telemetry of its machine."""

from typing import TYPE_CHECKING

from bus.rights.roles import OTHERS
from workers.spec import WorkerSpec

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker


async def _build(context: "Context") -> "Worker":
    from workers.machine.worker import Machine

    return Machine(
        await context.bus(),
        node=context.settings.node,
        period=context.settings.period,
        registry=context.registry,
    )


SPEC = WorkerSpec(
    name="machine",
    help="Publish the telemetry of this machine as samples of a node.",
    port=9005,
    build=_build,
    rights=OTHERS["node"].rights,
    settings=("node", "period"),
    in_cluster=False,
)
