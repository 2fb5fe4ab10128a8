"""The worker that stores the GPU cards of nodes, and what agents need to know of pods and nodes."""

from functools import partial
from typing import TYPE_CHECKING

from bus.buckets import HOLDS, NODES, OUTCOMES, POLICIES
from bus.rights.roles import Rights, lease, source
from tas.gpu.hold import RESERVED_SECONDS
from workers.spec import WorkerSpec

if TYPE_CHECKING:
    from workers.context import Context
    from workers.inventory.worker import MakePart
    from workers.runtime import Worker


async def _build(context: "Context") -> "Worker":
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


SPEC = WorkerSpec(
    name="inventory",
    help="Store the GPU cards of nodes on the bus, and who has them.",
    port=9018,
    build=_build,
    rights=Rights(
        reads=(NODES, POLICIES, HOLDS, OUTCOMES),
        writes=(NODES.subject("*.inventory"), NODES.subject("*.allocation"), HOLDS.subject("*"), *OUTCOMES.subjects),
        purges=(NODES, HOLDS),
    )
    | source("annotations")
    | lease("inventory"),
    account="list watch patch: nodes; get list watch: pods",
    settings=(
        "new_bus_wait",
        "card_metrics",
        "cards",
        "allocations",
        "outcomes",
        "annotations",
        "write_annotations",
        "annotation_names",
        "annotation_prefix",
        "annotation_lifetime",
        "publish",
    ),
    defaults={"new_bus_wait": f"{RESERVED_SECONDS:g}s"},
    needs_kubernetes=True,
)
