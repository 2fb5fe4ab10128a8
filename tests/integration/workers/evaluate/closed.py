"""A closed bus on which `evaluate` has the rights of an earlier version."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from bus.buckets import ALL, Bucket, Stream
from bus.connection import Bus
from bus.rights.access import Access
from tests.integration.bus.operated import EVERYTHING, Operator, operated
from workers.registry import needed_by
from workers.roles import ROLES


@asynccontextmanager
async def with_rights_of_before(folder: Path, *lacking: str) -> AsyncIterator[tuple[Bus, Bus]]:
    """A connection that may do everything, and that of `evaluate` without the subjects that contain one of `lacking`.

    Each of `lacking` must be in one of its subjects.
    """
    now = ROLES["evaluate"].earlier.permissions
    assert all(any(each in subject for subject in now.publish) for each in lacking)
    before = tuple(subject for subject in now.publish if not any(each in subject for each in lacking))
    operator = Operator()
    users = {"all": EVERYTHING, "evaluate": replace(now, publish=before, subscribe=("_INBOX.evaluate.>",))}
    for name, permissions in users.items():
        (folder / name).write_text(operator.credentials(name, permissions))
    async with operated(folder, operator.configuration()) as server, AsyncExitStack() as stack:

        async def connected(name: str, streams: Sequence[Stream | Bucket]) -> Bus:
            access = Access(credentials=folder / name)
            bus = await stack.enter_async_context(Bus.connect(server.url, name=name, streams=streams, access=access))
            await bus.wait_connected()
            return bus

        yield await connected("all", ALL), await connected("evaluate", needed_by(["evaluate"]))
