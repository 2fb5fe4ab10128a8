"""Builds the worker that serves the other processes."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.context import Context
    from workers.runtime import Worker


async def keeper(context: "Context") -> "Worker":
    """Creates the streams and buckets of a closed bus."""
    from workers.keeper.worker import Keeper

    return Keeper(await context.bus())
