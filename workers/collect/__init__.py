"""The worker that polls sources, or receives from them, and publishes their samples."""

from typing import TYPE_CHECKING

from bus.buckets import NODES, POLICIES
from bus.rights.roles import SOURCE, Rights, lease, source
from workers.spec import WorkerSpec

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker
    from workers.settings import Settings


async def _build(context: "Context") -> "Worker":
    from workers.collect.configured import Sources
    from workers.collect.known_nodes import KnownNodes
    from workers.collect.worker import Collect

    bus = await context.bus()
    nodes = KnownNodes(bus)
    sources = Sources(
        context.settings,
        context.stack,
        lambda: context.connect_kubernetes("collect"),
        context.registry,
        context.tls,
        nodes=nodes.current,
    )
    return Collect(
        bus,
        await sources.build(),
        period=context.settings.period,
        default_stale_after=context.settings.stale_after,
        metrics=context.source_metrics,
        always=context.settings.metrics or (),
        publish=context.settings.publish,
        tolerances=sources.tolerances,
        nodes=nodes,
    )


def _has_sources(settings: "Settings") -> bool:
    from workers.collect.configured import sources_of

    return bool(sources_of(settings))


SPEC = WorkerSpec(
    name="collect",
    help="Poll sources, and publish samples. Only metrics that policies use are polled.",
    port=9011,
    build=_build,
    rights=Rights(reads=(NODES, POLICIES)) | source(SOURCE) | lease(f"collect.{SOURCE}"),
    account="list: nodes.metrics.k8s.io",
    settings=(
        "source",
        "source_config",
        "metrics",
        "remote_write_cert",
        "remote_write_key",
        "remote_write_token",
        "period",
        "publish",
        "stale_after",
    ),
    needs_kubernetes=True,
    in_all=_has_sources,
)
