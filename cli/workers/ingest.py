"""Builds the workers that bring samples to the bus and store them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker
    from workers.settings import Settings


async def materialize(context: "Context") -> "Worker":
    """Stores the newest samples of each node."""
    from workers.materialize.worker import Materialize

    return Materialize(await context.bus(), registry=context.registry)


async def windows(context: "Context") -> "Worker":
    """Computes statistics over time, with numpy."""
    from workers.windows.worker import Windows

    return Windows(
        await context.bus(),
        default_stale_after=context.settings.stale_after,
        registry=context.registry,
        metrics=context.source_metrics,
        always=context.settings.metrics or (),
        publish=context.settings.publish,
    )


def has_sources(settings: "Settings") -> bool:
    """Whether the settings have a source."""
    from workers.collect.configured import sources_of

    return bool(sources_of(settings))


async def collect(context: "Context") -> "Worker":
    """Polls sources, each with its own connections."""
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


async def machine(context: "Context") -> "Worker":
    """Publishes the telemetry of this machine."""
    from workers.machine.worker import Machine

    return Machine(
        await context.bus(),
        node=context.settings.node,
        period=context.settings.period,
        registry=context.registry,
    )
