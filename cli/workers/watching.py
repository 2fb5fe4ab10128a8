"""Builds the workers that read policies, nodes, pods and GPU cards, and store them on the bus."""

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.context import Context
    from workers.inventory.worker import MakePart
    from workers.runtime import Worker


async def policies(context: "Context") -> "Worker":
    """Stores the policies of a directory."""
    from workers.policies.worker import PolicyDirectory
    from workers.process.errors import StartError

    bus = await context.bus()
    if context.settings.policies is None:
        raise StartError("--policies must be given")
    return PolicyDirectory(bus, directory=context.settings.policies, registry=context.registry)


async def watch(context: "Context") -> "Worker":
    """Stores the policies, nodes and pods of a cluster."""
    from workers.watch.worker import WatchWorker

    bus = await context.bus()
    client = await context.connect_kubernetes("watch")
    return WatchWorker(bus, context.reflectors(client), registry=context.registry)


async def status(context: "Context") -> "Worker":
    """Writes the status of TASPolicies."""
    from workers.status.worker import PolicyStatus

    bus = await context.bus()
    client = await context.connect_kubernetes("status")
    roster = await context.roster()
    return PolicyStatus(
        bus,
        client,
        context.reflectors(client),
        registry=context.registry,
        default_stale_after=context.settings.stale_after,
        lost=lambda: roster.lost,
    )


async def inventory(context: "Context") -> "Worker":
    """Stores the GPU cards of nodes, and what agents need to know of pods and nodes."""
    from tas.allocation.node_annotations import WRITTEN
    from workers.inventory.annotation_samples import Annotations
    from workers.inventory.annotation_writer import AnnotationWriter
    from workers.inventory.worker import Inventory
    from workers.kubernetes.resources import GPU_NODES, annotated_nodes

    bus = await context.bus()
    client = await context.connect_kubernetes("inventory")
    settings, registry = context.settings, context.registry
    prefix = settings.annotation_prefix
    names = WRITTEN if settings.write_annotations else settings.annotation_names
    keys = {prefix + name: name for name in names}
    more: list[MakePart] = []
    if settings.annotations:
        more.append(
            lambda is_active, _: Annotations(
                bus,
                registry,
                is_active,
                keys=keys,
                lifetime=settings.annotation_lifetime,
                publish=settings.publish,
            )
        )
    if settings.write_annotations:
        more.append(partial(AnnotationWriter, bus, client, registry, prefix=prefix))
    return Inventory(
        bus,
        client,
        registry=registry,
        new_bus_wait=settings.new_bus_wait,
        card_metrics=settings.card_metrics,
        cards=settings.cards,
        allocations=settings.allocations,
        outcomes=settings.outcomes,
        nodes=annotated_nodes(keys) if more else GPU_NODES,
        more=more,
    )
