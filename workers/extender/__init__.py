"""The worker that answers kube-scheduler by telemetry, and by installed extensions."""

from typing import TYPE_CHECKING

from bus.buckets import HOLDS, NODES, PODS, POLICIES
from bus.rights.roles import Rights
from workers.spec import WorkerSpec, always

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker


async def _build(context: "Context") -> "Worker":
    from workers.extender.worker import ExtenderWorker
    from workers.scheduler.extensions import installed
    from workers.settings import FailedNodes, UnknownPolicy

    settings = context.settings
    return ExtenderWorker(
        await context.bus(),
        await context.view(),
        context.server("extender"),
        registry=context.registry,
        unknown_policy_fails=settings.unknown_policy is UnknownPolicy.ERROR,
        unresolvable=settings.failed_nodes is FailedNodes.UNRESOLVABLE,
        debug_explain=settings.debug_explain,
        prometheus_query=settings.prometheus_query,
        extensions=installed(),
        only=settings.only,
        extension_seconds=settings.extension_timeout,
    )


SPEC = WorkerSpec(
    name="extender",
    help="Answer kube-scheduler's filter, prioritize and preempt.",
    port=9002,
    build=_build,
    rights=Rights(reads=(NODES, POLICIES, PODS, HOLDS)),
    settings=(
        "stale_after",
        "unknown_policy",
        "failed_nodes",
        "debug_explain",
        "prometheus_query",
        "only",
        "extension_timeout",
    ),
    alone=("only",),
    listens="extender",
    in_all=always,
)
