"""The worker that writes desired labels to nodes, with its brake."""

from typing import TYPE_CHECKING

from bus.buckets import BREAKERS, NODES, PODS, POLICIES, REFUSALS, VERDICTS
from bus.rights.roles import Rights, lease
from workers.spec import WorkerSpec, with_cluster

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker


async def _build(context: "Context") -> "Worker":
    from tas.enforcing.brake import BrakeSettings
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


SPEC = WorkerSpec(
    name="labels",
    help="Write the desired labels of verdicts to the nodes. Also wake pods that wait for a node.",
    port=9008,
    build=_build,
    rights=Rights(
        reads=(NODES, POLICIES, PODS, VERDICTS, BREAKERS, REFUSALS),
        writes=(REFUSALS.subject("*"), BREAKERS.subject("*")),
    )
    | lease("labels"),
    account="get list watch patch: nodes; list: taspolicies.telemetry.intel.com; create: events in default",
    settings=(
        "stale_after",
        "overwrite_labels",
        "breaker",
        "breaker_all",
        "label_rate",
        "label_rate_all",
        "flap_budget",
        "new_bus_wait",
    ),
    needs_kubernetes=True,
    in_all=with_cluster,
)
