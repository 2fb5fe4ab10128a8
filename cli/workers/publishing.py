"""Builds the workers that publish events, and take them to where people look."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cli.context import Context
    from workers.process.runtime import Worker


async def events(context: "Context") -> "Worker":
    """Publishes what happens as public events."""
    from tas.events.event import source_of
    from workers.publishing.events import EventPublisher

    bus = await context.bus()
    return EventPublisher(bus, registry=context.registry, source=source_of(context.settings.cluster_name or ""))


async def notify(context: "Context") -> "Worker":
    """Takes events to sinks."""
    from cli.sinks import sinks_file
    from workers.publishing.notify import Notify
    from workers.publishing.sinks.base import SinkMetrics

    bus = await context.bus()
    metrics = SinkMetrics(context.registry)
    file = sinks_file(context.settings, bus, lambda: context.connect_kubernetes("notify"), metrics)
    return Notify(bus, await file.load(), metrics=metrics, changed=file.changed)
