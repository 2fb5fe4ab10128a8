"""Builds the workers that evaluate policies, and write what follows to the cluster."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker


async def evaluate(context: "Context") -> "Worker":
    """Evaluates every policy for every node."""
    from workers.evaluate.worker import Evaluate

    return Evaluate(await context.bus(), await context.view(), registry=context.registry)


async def labels(context: "Context") -> "Worker":
    """Writes the desired labels to the nodes."""
    from workers.labels.brake import BrakeSettings
    from workers.labels.worker import Labels

    settings = context.settings
    bus = await context.bus()
    client = await context.connect_kubernetes("labels")
    return Labels(
        bus,
        client,
        context.reflectors(client),
        registry=context.registry,
        default_stale_after=settings.stale_after,
        overwrite=settings.overwrite_labels or (),
        brake=BrakeSettings(
            settings.breaker,
            settings.breaker_all,
            settings.flap_budget,
            settings.label_rate,
            settings.label_rate_all,
            new_bus_wait=settings.new_bus_wait,
        ),
    )


async def marks(context: "Context") -> "Worker":
    """Writes taints and node conditions."""
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


async def resources(context: "Context") -> "Worker":
    """Adds the resource `telemetry/scheduling` to each node."""
    from tas.events.event import source_of
    from workers.resources.worker import Resources

    bus = await context.bus()
    client = await context.connect_kubernetes("resources")
    return Resources(
        bus,
        client,
        context.reflectors(client),
        registry=context.registry,
        count=context.settings.node_resource,
        event_source=source_of(context.settings.cluster_name or ""),
    )


async def evictions(context: "Context") -> "Worker":
    """Labels the pods that are to leave a GPU card."""
    from workers.evictions.worker import Evictions

    bus = await context.bus()
    return Evictions(bus, await context.connect_kubernetes("evictions"), registry=context.registry)
