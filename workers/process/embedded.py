"""The embedded nats-server as a worker: when the server ends by itself, the process ends."""

from bus.server import EmbeddedServer
from workers.process.errors import WorkerError


class EmbeddedBus:
    """Watches a running server. The server starts before the workers and ends after them, so `run` never stops it."""

    name = "bus"

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server

    def unready(self) -> str | None:
        """Why clients cannot connect."""
        return None if self._server.running else "nats-server has ended"

    async def run(self) -> None:
        """Raises WorkerError when the server ends."""
        status = await self._server.wait()
        raise WorkerError(f"nats-server ended by itself (exit status {status})")
