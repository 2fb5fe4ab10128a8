"""A lean HTTP client: one kept-alive connection, the bytes as kube-scheduler's client sends them."""

import socket
import time
from collections.abc import Sequence

# Go's client writes the headers with the beginning of the body, then the rest in pieces of its copy buffer.
FIRST_WRITE_BYTES = 4 << 10
WRITE_BYTES = 32 << 10

TIMEOUT_SECONDS = 30.0

Request = Sequence[memoryview]
"""A request in the pieces in which it is written."""


def post(path: str, body: bytes) -> Request:
    """A request that is ready to be sent, so that its construction is not measured."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: Go-http-client/1.1\r\n"
        f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n"
    )
    whole = memoryview(head.encode() + body)
    pieces = [whole[:FIRST_WRITE_BYTES]]
    pieces += [whole[begin : begin + WRITE_BYTES] for begin in range(FIRST_WRITE_BYTES, len(whole), WRITE_BYTES)]
    return pieces


class Client:
    """One connection to a server on loopback. It blocks, and holds one answer at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(1 << 16)
        self._body = (0, 0)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, request: Request) -> bytes:
        """The body of the answer. Raises RuntimeError on any status but 200."""
        self._exchange(request)
        return self.body

    @property
    def body(self) -> bytes:
        """The body of the last answer."""
        begin, end = self._body
        return bytes(self._buffer[begin:end])

    def seconds(self, request: Request) -> float:
        """The seconds of one request, until the last byte of the answer."""
        began = time.perf_counter()
        self._exchange(request)
        return time.perf_counter() - began

    def _exchange(self, request: Request) -> None:
        for piece in request:
            self._socket.sendall(piece)
        buffer = self._buffer
        size = 0
        while (begin := buffer.find(b"\r\n\r\n", 0, size) + 4) < 4:
            size = self._receive(size)
        head = bytes(buffer[:begin])
        end = begin + _content_length(head)
        if end > len(buffer):
            buffer.extend(bytes(end - len(buffer)))
        while size < end:
            size = self._receive(size)
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(bytes(buffer[: min(end, 1000)]).decode(errors="replace"))
        self._body = (begin, end)

    def _receive(self, size: int) -> int:
        with memoryview(self._buffer) as view:
            count = self._socket.recv_into(view[size:])
        if count == 0:
            raise RuntimeError("the server closed the connection")
        return size + count


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    raise RuntimeError(f"an answer without Content-Length: {head.decode(errors='replace')}")
