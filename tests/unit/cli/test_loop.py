"""The event loop of all commands."""

import asyncio
import os
import socket
import ssl
import struct
from contextlib import closing

import pytest

from cli.loop import run_to_end


def connected_and_reset() -> socket.socket:
    """A connection that the other side has reset."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        given = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()
    return given


def test_a_connection_that_was_reset_closes_the_descriptor_of_its_socket_once() -> None:
    """As aiohttp connects: else the socket closes a descriptor later that belongs to another connection by then."""

    async def body() -> int:
        given = connected_and_reset()
        number = given.fileno()
        loop = asyncio.get_running_loop()
        with pytest.raises(OSError, match="reset"):
            await loop.create_connection(
                asyncio.Protocol, sock=given, ssl=ssl.create_default_context(), server_hostname="x"
            )
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)  # the loop has closed it
        assert given.fileno() == -1
        return 7

    assert run_to_end(body()) == 7
