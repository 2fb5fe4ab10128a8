"""The embedded server as a worker: where it ends by itself, everything around it is pointless."""

from bus.server import EmbeddedServer
from workers.runtime import WorkerError


class EmbeddedBus:
    """Watches over a running server, which starts before the workers and ends after them: so it does not end it."""

    name = "bus"

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server

    def unready(self) -> str | None:
        """Why nobody can connect."""
        return None if self._server.running else "nats-server has ended"

    async def run(self) -> None:
        """Raises WorkerError when the server ends."""
        status = await self._server.wait()
        raise WorkerError(f"nats-server ended by itself (exit status {status})")
