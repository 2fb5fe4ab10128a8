"""The worker that stores the policies of a directory."""

from typing import TYPE_CHECKING

from bus.buckets import NODES, POLICIES, SYNCED
from bus.rights.roles import Rights, expects
from workers.spec import WorkerSpec

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker


async def _build(context: "Context") -> "Worker":
    from workers.policies.worker import PolicyDirectory
    from workers.process.errors import StartError

    bus = await context.bus()
    if context.settings.policies is None:
        raise StartError("--policies must be given")
    return PolicyDirectory(bus, directory=context.settings.policies, registry=context.registry)


SPEC = WorkerSpec(
    name="policies",
    help="Store the TASPolicies of a directory on the bus.",
    port=9004,
    build=_build,
    rights=Rights(reads=(NODES, POLICIES), writes=(POLICIES.subject(">"), NODES.subject(SYNCED))) | expects(),
    settings=("policies",),
    in_all=lambda settings: settings.kubeconfig is None,
    in_cluster=False,
)
