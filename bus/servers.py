"""What each nats-server says of itself: at its monitoring port, or to a user of the system account."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from bus.connection import Bus
from bus.errors import UnavailableError

ASK_SECONDS = 5.0
QUIET_SECONDS = 1.0
"""After so long without another answer each server that can be reached has answered."""

CONNECTIONS = 200
"""So many connections fit one answer with the JWT of each user, of at most 4 KiB."""

PAGES = 25
"""So many answers of a server are read."""

ASKS = 2
"""So often servers are asked that do not answer."""

T = TypeVar("T")


class Config(msgspec.Struct):
    """The configuration of JetStream. The server leaves out what is false."""

    sync_always: bool = False


class Meta(msgspec.Struct):
    """The group of all servers with JetStream in the cluster."""

    cluster_size: int = 1


class JetStream(msgspec.Struct):
    """JetStream on a server."""

    config: Config | None = None
    meta: Meta = msgspec.field(default_factory=Meta)


class Cluster(msgspec.Struct):
    """The cluster of a server; without a name: a single server."""

    name: str = ""


class Varz(msgspec.Struct):
    """A server."""

    server_id: str
    server_name: str = ""
    version: str = ""
    cluster: Cluster = msgspec.field(default_factory=Cluster)
    jetstream: JetStream = msgspec.field(default_factory=JetStream)

    @property
    def syncs(self) -> bool:
        """Whether the server syncs each write."""
        return self.jetstream.config is not None and self.jetstream.config.sync_always


class BusServer(msgspec.Struct, frozen=True):
    """A server of a closed bus.

    Attributes:
        account: The JWT of the account as the server has read it; empty: it does not say, for example since no user of
            the account was connected to it since its start.
        publishers: The same of the account of publishers.
    """

    about: Varz
    account: str
    publishers: str = ""


class _Who(msgspec.Struct):
    id: str


class _Detail(msgspec.Struct):
    jwt: str = ""


class _Account(msgspec.Struct):
    account_detail: _Detail | None = None


class _Connection(msgspec.Struct):
    jwt: str = ""


class _Connections(msgspec.Struct):
    total: int = 0
    connections: list[_Connection] = []


class _Failure(msgspec.Struct):
    description: str = ""


class ConnectionsAnswer(msgspec.Struct):
    """A part of the connections of a server, or why it does not say them."""

    server: _Who
    data: _Connections | None = None
    error: _Failure | None = None


class Connected(NamedTuple):
    """Who is connected, as far as servers have said it.

    Attributes:
        jwts: Those of all users who are connected.
        complete: The ids of the servers that have named all.
        unknown: By id of each other one, why not.
    """

    jwts: frozenset[str]
    complete: frozenset[str]
    unknown: dict[str, str]


class _VarzAnswer(msgspec.Struct):
    data: Varz


class _AccountAnswer(msgspec.Struct):
    server: _Who
    data: _Account | None = None


async def ask_servers(bus: Bus, account: str, publishers: str) -> list[BusServer]:
    """Each server that the connected one reaches, and itself; `account` and `publishers` are public keys.

    The user must be of the system account, with the rights of `bus.rights.operator.LOOKS`. Raises BusError.
    """
    varz, known, of_publishers = await asyncio.gather(
        _ask(bus, "VARZ", {}, _VarzAnswer), _jwts(bus, account), _jwts(bus, publishers)
    )
    return [
        BusServer(each.data, known.get(each.data.server_id, ""), of_publishers.get(each.data.server_id, ""))
        for each in varz
    ]


async def ask_connected(bus: Bus, account: str, servers: Collection[str]) -> Connected:
    """The users of an account who are connected to each server now. `servers` are the ids of those that are to answer.

    The user as of `ask_servers`. Raises BusError.
    """

    async def ask(offset: int) -> Sequence[ConnectionsAnswer]:
        request = {"acc": account, "auth": True, "limit": CONNECTIONS, "offset": offset}
        return await _ask(bus, "CONNZ", request, ConnectionsAnswer)

    return await all_connected(ask, servers)


async def all_connected(
    ask: Callable[[int], Awaitable[Sequence[ConnectionsAnswer]]], servers: Collection[str]
) -> Connected:
    """As `ask_connected`; `ask` returns what servers answer, from an offset in their connections."""
    jwts, complete, unknown = set[str](), set[str](), dict[str, str]()
    waiting = set(servers)
    for offset in range(0, PAGES * CONNECTIONS, CONNECTIONS):
        answers: dict[str, ConnectionsAnswer] = {}
        for _ in range(ASKS):
            answers |= {each.server.id: each for each in await ask(offset)}
            if waiting <= answers.keys():
                break
        if offset == 0:
            waiting |= answers.keys()
        for server in sorted(waiting):
            answer = answers.get(server)
            if answer is None or answer.data is None:
                why = "" if answer is None or answer.error is None else answer.error.description
                unknown[server] = f"does not say who is connected: {why or 'no answer'}"
                continue
            found = {each.jwt for each in answer.data.connections}
            jwts |= found - {""}
            if "" in found:
                unknown[server] = "does not say by which credentials"
            elif answer.data.total <= offset + CONNECTIONS:
                complete.add(server)
        waiting -= complete | unknown.keys()
        if not waiting:
            break
    unknown |= dict.fromkeys(waiting, f"has more than {PAGES * CONNECTIONS} connections")
    return Connected(frozenset(jwts), frozenset(complete), unknown)


async def _jwts(bus: Bus, account: str) -> dict[str, str]:
    """The JWT of an account by the id of the server. Raises BusError."""
    return {
        each.server.id: each.data.account_detail.jwt
        for each in await _ask(bus, "ACCOUNTZ", {"account": account}, _AccountAnswer)
        if each.data is not None and each.data.account_detail is not None
    }


async def _ask(bus: Bus, what: str, request: object, kind: type[T]) -> list[T]:
    subject = f"$SYS.REQ.SERVER.PING.{what}"
    answers = await bus.link.ask_all(subject, msgspec.json.encode(request), seconds=ASK_SECONDS, quiet=QUIET_SECONDS)
    try:
        return [msgspec.json.decode(each, type=kind) for each in answers]
    except msgspec.MsgspecError as error:
        raise UnavailableError(f"{subject}: invalid answer: {error}") from error
