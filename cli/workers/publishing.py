"""Builds the workers that publish events, and take them to where people look."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker


async def events(context: "Context") -> "Worker":
    """Publishes what happens as public events."""
    from tas.events.event import source_of
    from workers.events.worker import EventPublisher

    bus = await context.bus()
    return EventPublisher(bus, registry=context.registry, source=source_of(context.settings.cluster_name or ""))


async def notify(context: "Context") -> "Worker":
    """Takes events to sinks."""
    from workers.notify.configured import sinks_file
    from workers.notify.sinks.base import SinkMetrics
    from workers.notify.worker import Notify

    bus = await context.bus()
    metrics = SinkMetrics(context.registry)
    file = sinks_file(context.settings, bus, lambda: context.connect_kubernetes("notify"), metrics)
    return Notify(bus, await file.load(), metrics=metrics, changed=file.changed)
