"""A proxy that delays answers or cuts connections, only for the clients that use it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class Proxy:
    """Forwards bytes between clients and one server.

    Attributes:
        delay: Seconds by which answers that arrive from now on are delayed; their order stays the same.
        open: Whether new connections are accepted.
        flowing: While it is not set, no answer goes on.
        halt_before: Of a client that sends this, nothing goes on from there.
        halted: Whether that has happened.
    """

    def __init__(self, target: str) -> None:
        self.delay = 0.0
        self.open = True
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.halt_before: bytes | None = None
        self.halted = asyncio.Event()
        parts = urlsplit(target)
        self._host, self._port = parts.hostname, parts.port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @classmethod
    @asynccontextmanager
    async def before(cls, target: str) -> AsyncIterator["Proxy"]:
        """A proxy before the server at this URL."""
        proxy = cls(target)
        proxy._server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
        try:
            yield proxy
        finally:
            proxy._server.close()
            proxy.cut()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Ends every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if not self.open:
                return
            server_reader, server_writer = await asyncio.open_connection(self._host, self._port)
            self._writers.add(server_writer)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._forward(reader, server_writer))
                    tasks.create_task(self._forward(server_reader, writer, delayed=True))
            finally:
                self._writers.discard(server_writer)
                server_writer.transport.abort()
        except* OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, delayed: bool = False
    ) -> None:
        """Forwards until one end closes, and then closes the other."""
        loop = asyncio.get_running_loop()
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def write() -> None:
            while True:
                due, chunk = await chunks.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                if delayed:
                    await self.flowing.wait()
                writer.write(chunk)
                await writer.drain()

        writing = asyncio.create_task(write())
        try:
            while chunk := await reader.read(1 << 16):
                if not delayed and self.halt_before is not None and self.halt_before in chunk:
                    self.halted.set()
                    await asyncio.Event().wait()
                chunks.put_nowait((loop.time() + (self.delay if delayed else 0.0), chunk))
        finally:
            writing.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await writing
            writer.transport.abort()
