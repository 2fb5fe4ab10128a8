"""The worker that creates the streams and buckets of a closed bus."""

from typing import TYPE_CHECKING

from bus.rights.roles import Rights
from workers.spec import WorkerSpec

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker


async def _build(context: "Context") -> "Worker":
    from workers.keeper.worker import Keeper

    return Keeper(await context.bus())


SPEC = WorkerSpec(
    name="keeper",
    help="Create the streams and buckets of a closed bus, on which no other process may create one.",
    port=9016,
    build=_build,
    rights=Rights(creates=True),
    # With credentials a connection creates only the streams of its workers, the keeper those of nobody.
    in_all=lambda settings: settings.bus_credentials is not None,
)
