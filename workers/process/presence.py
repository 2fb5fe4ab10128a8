"""The record of this process in WORKERS, which proves that it runs: one write in five seconds.

No work depends on it. Where the bus has no such bucket, or does not give this user the right, all goes on, and the log
says it once.
"""

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress

import structlog

from bus.buckets import TOMBSTONE_SECONDS, WORKERS
from bus.connection import Bus
from bus.errors import BusError, ConflictError, ForbiddenError
from bus.kinds import PROCESSES
from bus.subjects import ProcessKey
from tas.processes.process import TTL_SECONDS, WRITE_SECONDS, Process

log = structlog.get_logger("presence")

AGAIN_SECONDS = 60.0
"""How often it is tried whether a bus that had no bucket, or refused a write, has another opinion."""

MAX_NAME = 253


class Presence:
    """Writes the record until cancelled, and then deletes it.

    The id has a random part: processes with equal names, such as containers, do not share a key. `describe` gives what
    is to be stored.
    """

    def __init__(
        self, bus: Bus, role: str, describe: Callable[[], Process], *, write_seconds: float = WRITE_SECONDS
    ) -> None:
        self._bus = bus
        self._role = role
        self._describe = describe
        self._write_seconds = write_seconds
        self._key = self._new_key(describe().name)
        self._revision = 0
        self._said = False

    async def run(self) -> None:
        """Runs until cancelled. Raises nothing else."""
        try:
            while True:
                await self._bus.wait_connected()
                await asyncio.sleep(self._write_seconds if await self._write() else self._later())
        finally:
            with suppress(BusError):
                if self._revision:
                    await PROCESSES.delete(
                        self._bus,
                        self._key,
                        revision=self._revision,
                        read_at=time.monotonic(),
                        ttl_seconds=TOMBSTONE_SECONDS,
                    )

    def _later(self) -> float:
        return self._write_seconds * AGAIN_SECONDS / WRITE_SECONDS

    async def _write(self) -> bool:
        """Writes the record; returns False if that was refused, so that it is tried again much later."""
        refused = self._bus.refused(WORKERS)
        if refused is not None:
            self._say(refused)
            self._bus.check_streams()
            return False
        process = self._describe()
        try:
            self._revision = await PROCESSES.put(
                self._bus,
                self._key,
                process,
                revision=self._revision,
                read_at=time.monotonic(),
                ttl_seconds=TTL_SECONDS,
            )
        except ConflictError:
            # Its own answer was lost, the key has expired meanwhile, or a stranger writes it.
            self._key, self._revision = self._new_key(process.name), 0
        except ForbiddenError as error:
            self._say(str(error))
            return False
        except BusError as error:
            log.debug("process_not_stored", error=str(error))
        return True

    def _say(self, reason: str) -> None:
        if not self._said:
            self._said = True
            log.warning("process_not_shown", error=reason, lost="tas status and tas doctor do not see this process")

    def _new_key(self, name: str) -> ProcessKey:
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:MAX_NAME]
        return ProcessKey(self._role, f"{plain}-{secrets.token_hex(4)}")
