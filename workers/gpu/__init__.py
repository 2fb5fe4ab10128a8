"""The worker that gives GPU cards to pods."""

from typing import TYPE_CHECKING

from bus.buckets import HOLDS, NODES
from bus.rights.roles import Rights
from workers.spec import WorkerSpec

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker


async def _build(context: "Context") -> "Worker":
    from workers.gpu.worker import GpuExtender

    settings = context.settings
    return GpuExtender(
        await context.bus(),
        await context.connect_kubernetes("gpu"),
        context.server("gpu", purpose="GPU extender"),
        registry=context.registry,
        options=settings.card_options,
        by=settings.card_score,
        one_start=settings.one_start,
    )


SPEC = WorkerSpec(
    name="gpu",
    help="Give GPU cards to pods: answer kube-scheduler's filter, prioritize and bind.",
    port=9017,
    build=_build,
    rights=Rights(reads=(NODES, HOLDS), writes=(HOLDS.subject("*"),)),
    account="get: pods; create: pods/binding",
    settings=("card_score", "balanced_resource", "allowlist", "denylist", "one_start"),
    defaults={"listen": "127.0.0.1:9020"},
    needs_kubernetes=True,
    listens="GPU extender",
)
