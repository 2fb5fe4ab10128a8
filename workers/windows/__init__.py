"""The worker that computes statistics over time."""

from typing import TYPE_CHECKING

from bus.buckets import NODES, POLICIES, SAMPLES, TABLES, WINDOWS
from bus.rights.roles import Rights, lease, source
from workers.spec import WorkerSpec, always

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker


async def _build(context: "Context") -> "Worker":
    from workers.windows.worker import Windows

    return Windows(
        await context.bus(),
        default_stale_after=context.settings.stale_after,
        registry=context.registry,
        metrics=context.source_metrics,
        always=context.settings.metrics or (),
        publish=context.settings.publish,
    )


SPEC = WorkerSpec(
    name="windows",
    help="Compute statistics over time, such as `cpu:p95:5m`, from samples, for policies and agents.",
    port=9021,
    build=_build,
    rights=Rights(reads=(SAMPLES, TABLES, NODES, POLICIES, WINDOWS), writes=(WINDOWS.subject(">"),))
    | source("windows")
    | lease("windows"),
    settings=("metrics", "stale_after", "publish"),
    in_all=always,
)
