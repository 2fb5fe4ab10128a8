"""A server that is kept for the next test, whose streams are those of a new one.

A server that starts, creates all streams and ends costs 0.1 s of processor time, and a thousand tests need one.
"""

import asyncio
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
import psutil
from nats.aio.client import Client

from bus.buckets import ALL, configuration
from tests.integration.servers import Server, elsewhere

ANSWER_SECONDS = 30.0
"""How long a busy server may take for one request."""

LEAVE_SECONDS = 1.0
"""How long the server may take until it knows that the connections of the last test have ended."""


class KeptServer(Server):
    """A server for many tests, one after the other. One that a test stops, pauses or restarts is not kept."""

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        self._new: dict[str, Any] = {}
        self._sockets = 0

    async def create_streams(self) -> None:
        """Creates all streams, as the first connection of the product does, and remembers their configurations."""
        self._sockets = self._open_sockets()
        client = await nats.connect(self.url, allow_reconnect=False)
        for of in ALL:
            wanted = configuration(of, first_sequence=time.time_ns() // 1000, replicas=1)
            await _answer(client, f"STREAM.CREATE.{of.stream}", wanted)
        for each in (await _answer(client, "STREAM.LIST", {}))["streams"]:
            self._new[each["config"]["name"]] = _without_epoch(each["config"])
        await client.close()

    async def renew(self) -> bool:
        """Deletes the streams that differ from new ones. False: somebody is still connected, and may write."""
        until = time.monotonic() + LEAVE_SECONDS
        while self._has_clients():
            if time.monotonic() > until:
                return False
            await asyncio.sleep(0.01)
        client = await nats.connect(self.url, allow_reconnect=False)
        streams = (await _answer(client, "STREAM.LIST", {}))["streams"] or ()
        old = {each["config"]["name"] for each in streams if not self._is_new(each)}
        copies = {each["config"]["name"]: _sources(each) for each in streams if _sources(each)}
        for _ in copies:  # the server looks only now and then for the new stream of an old copy
            old |= {copy for copy, sources in copies.items() if sources & old}
        for part in (old & copies.keys(), old - copies.keys()):
            await asyncio.gather(*(_answer(client, f"STREAM.DELETE.{name}", {}) for name in part))
        await client.close()
        return True

    def _has_clients(self) -> bool:
        return self._open_sockets() > self._sockets

    def _open_sockets(self) -> int:
        descriptors = Path(f"/proc/{self.pid}/fd")
        if not descriptors.exists():  # only Linux has them
            return len(psutil.Process(self.pid).net_connections("tcp4"))
        return sum(map(_is_socket, descriptors.iterdir()))

    def _is_new(self, stream: dict[str, Any]) -> bool:
        """Whether nobody has written to it, consumes it or has changed it."""
        config, state = stream["config"], stream["state"]
        return (
            _without_epoch(config) == self._new.get(config["name"])
            and state["last_seq"] < config["first_seq"]
            and not state["consumer_count"]
        )


class Keeper:
    """Has the server that is kept. Its folders are below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._kept: KeptServer | None = None

    async def take(self) -> KeptServer:
        """A server whose streams are as new, or missing."""
        server, self._kept = self._kept, None
        if server is not None and not await self._renewed(server):
            await self._end(server)
            server = None
        if server is None:
            self._count += 1
            server = KeptServer(self._folder / str(self._count))
            await server.start()
            await elsewhere(server.create_streams())
        return server

    async def give_back(self, server: KeptServer) -> None:
        """Keeps the server for the next test, or ends it."""
        if server.is_disturbed:
            await self._end(server)
        else:
            self._kept = server

    async def end(self) -> None:
        if self._kept is not None:
            await self._end(self._kept)

    async def _renewed(self, server: KeptServer) -> bool:
        try:
            return await elsewhere(server.renew())
        except (OSError, TimeoutError, psutil.Error, nats.errors.Error):
            return False

    async def _end(self, server: KeptServer) -> None:
        await server.stop()
        shutil.rmtree(server.store, ignore_errors=True)


@contextmanager
def keeper(folder: Path) -> Iterator[Keeper]:
    """A keeper, whose server ends with it."""
    keeper = Keeper(folder)
    yield keeper
    asyncio.run(keeper.end())


async def _answer(client: Client, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    message = await client.request(f"$JS.API.{verb}", json.dumps(body).encode(), timeout=ANSWER_SECONDS)
    answer: dict[str, Any] = json.loads(message.data)
    assert "error" not in answer, (verb, answer["error"])
    return answer


def _is_socket(descriptor: Path) -> bool:
    try:
        return str(descriptor.readlink()).startswith("socket:")
    except OSError:  # it has just been closed
        return False


def _without_epoch(config: dict[str, Any]) -> dict[str, Any]:
    return config | {"first_seq": 0}


def _sources(stream: dict[str, Any]) -> set[str]:
    return {each["name"] for each in stream["config"].get("sources") or ()}
