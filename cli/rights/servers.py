"""What `tas bus check` says about each server: whether it has read auth.conf, and reaches the other servers."""

import tempfile
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from bus.connection import Bus
from bus.errors import BusError
from bus.rights.access import Access
from bus.rights.jwt import claims_of, is_same_but_for_time
from bus.rights.operator import user_claims
from bus.servers import ASKS, BusServer, Connected, ask_connected, ask_servers
from cli.rights.connecting import asked, connected
from cli.rights.folder import AUTH, OperatorFolder, User
from tas.diagnosis.bus import BusFacts, oldest
from tas.diagnosis.finding import Missing, some
from tas.values.nouns import counted

LOOKER = "tas-check"
"""The user of the system account that asks the servers. Its credentials are deleted at once."""

PUBLISHER = "publisher"
"""The role by which it connects in the account of publishers; without a source it may publish nothing."""

LOOK_SECONDS = 60.0
"""How long these credentials count."""


class Seen(NamedTuple):
    """What the server of one address says.

    Attributes:
        servers: Itself, and each server that it reaches; empty if it does not answer.
        error: Why it does not answer.
        connected: Who is connected to these servers, if that was asked.
    """

    servers: Sequence[BusServer]
    error: str = ""
    connected: Connected | None = None


async def look(
    folder: OperatorFolder, addresses: Iterable[str], access: Access, *, reader: Path, who: bool = False
) -> dict[str, Seen]:
    """Asks the server of each address about itself, and about those that it reaches; `who`: also who is connected."""
    found: dict[str, Seen] = {}
    with tempfile.TemporaryDirectory() as private:
        file = Path(private) / f"{LOOKER}.creds"
        file.touch(0o600)
        for address in addresses:
            # A server has read an account only when a user of the account has connected.
            async with connected(address, replace(access, credentials=reader)) as bus:
                shown = bus.address
            now = time.time()
            file.write_text(folder.keys.credentials(PUBLISHER, LOOKER, now=now, expires=now + LOOK_SECONDS))
            async with connected(address, replace(access, credentials=file)):
                pass
            file.write_text(folder.keys.looker(LOOKER, now=now, expires=now + LOOK_SECONDS))
            try:
                found[shown] = await asked(
                    address,
                    replace(access, credentials=file),
                    partial(
                        _asked, account=folder.keys.account.public, publishers=folder.keys.publishers.public, who=who
                    ),
                )
            except BusError as error:
                found[shown] = Seen((), str(error))
    return found


async def _asked(bus: Bus, account: str, publishers: str, *, who: bool) -> Seen:
    """What the servers answer; asked again while one is missing or says too little: it may be slow. Raises BusError."""
    found: dict[str, BusServer] = {}
    for _ in range(ASKS):
        for each in await ask_servers(bus, account, publishers):
            has_both = each.account and each.publishers
            found[each.about.server_id] = each if has_both else found.get(each.about.server_id, each)
        size = max((each.about.jetstream.meta.cluster_size for each in found.values()), default=0)
        if 0 < size <= len(found) and all(each.account and each.publishers for each in found.values()):
            break
    if not found:
        return Seen((), "not to users of the system account of DIR")
    return Seen(list(found.values()), connected=await _connected_to(bus, account, found.keys()) if who else None)


async def _connected_to(bus: Bus, account: str, servers: Collection[str]) -> Connected:
    try:
        return await ask_connected(bus, account, servers)
    except BusError as error:  # what else the servers say counts
        return Connected(frozenset(), frozenset(), dict.fromkeys(servers, f"does not say who is connected: {error}"))


def earlier_connections(folder: OperatorFolder, seen: Mapping[str, Seen]) -> tuple[list[str], list[str]]:
    """The names of users who are connected by credentials of an earlier version, and why others may be, too."""
    answers = [each.connected for each in seen.values() if each.connected is not None]
    complete = {server for each in answers for server in each.complete}
    reasons = {server: reason for each in answers for server, reason in each.unknown.items()}
    names = {each.about.server_id: each.about.server_name for each in servers_of(seen)}
    unknown = [f"{names.get(server, server)} {reasons[server]}" for server in sorted(reasons.keys() - complete)]
    if absent_of(seen):
        unknown.append("not each server answers")
    roles, users, unreadable = folder.roles_by_key, list[User](), 0
    for jwt in {jwt for each in answers for jwt in each.jwts}:
        try:
            claims = user_claims(jwt)
        except ValueError:
            unreadable += 1
        else:
            users.append(User(file=folder.user_file(claims.name), claims=claims, role=roles.get(claims.issuer, "")))
    if unreadable:
        unknown.append(f"the credentials of {counted(unreadable, 'connection')} cannot be read")
    return sorted({each.claims.name for each in users if folder.is_earlier(each)}), unknown


def servers_of(seen: Mapping[str, Seen]) -> list[BusServer]:
    """Each server once, by name."""
    by_id = {each.about.server_id: each for one in seen.values() for each in one.servers}
    return sorted(by_id.values(), key=lambda each: each.about.server_name)


def problem_of(server: BusServer, account: str, publishers: str, issued: Mapping[str, Sequence[str]]) -> str:
    """What is wrong with a server; empty if nothing is.

    `account` and `publishers` are the JWTs of the accounts in auth.conf; `issued` has the public keys of all
    credentials by the name of their user.
    """
    if not server.account:
        return "not checked: no user was connected to it since its start: give its address in --bus, too"
    if not account:
        return f"not compared: the folder has no {AUTH} of its account: tas bus init makes it"
    if is_same(server.account, account):
        if is_same(server.publishers, publishers):
            return ""
        if not server.publishers:
            return (
                "not checked: no user of the account of publishers was connected to it: give its address in --bus, too"
            )
    still = _revoked(account) - _revoked(server.account)
    names = [name for name, keys in issued.items() if still & set(keys)]
    count = f", and revoked credentials of {some(names)} still count there" if names else ""
    return f"has another {AUTH} than the folder{count}: give it this file, then nats-server --signal reload"


def is_same(first: str, second: str) -> bool:
    """Whether two JWTs, or two empty texts, say the same."""
    return first == second or bool(first and second and is_same_but_for_time(first, second))


def _revoked(account: str) -> set[str]:
    nats = claims_of(account).get("nats")
    revoked = nats.get("revocations") if isinstance(nats, dict) else None
    return set(revoked) if isinstance(revoked, dict) else set()


def absent_of(seen: Mapping[str, Seen]) -> list[str]:
    """Which servers do not answer, or do not reach each other."""
    texts = [f"{address} does not answer: {one.error}" for address, one in seen.items() if not one.servers]
    groups: list[dict[str, str]] = []  # of servers that reach each other, with their names by id
    for one in seen.values():
        group = {each.about.server_id: each.about.server_name for each in one.servers}
        for other in [each for each in groups if each.keys() & group.keys()]:
            groups.remove(other)
            group |= other
        groups += [group] if group else []
    if len(groups) > 1:
        parts = "; ".join(sorted(some(each.values()) for each in groups))
        texts.append(
            f"these servers do not reach each other: {parts}: do they have the same cluster.password? The log of a "
            "server names a wrong one as `authentication error`"
        )
    servers = servers_of(seen)
    size = max((each.about.jetstream.meta.cluster_size for each in servers), default=0)
    if len(servers) < size:
        all_of = f"of {size} servers of the cluster"
        texts.append(f"{counted(len(servers), f'{all_of} answers', f'{all_of} answer')}: {some(_names(servers))}")
    return texts


def with_servers(facts: BusFacts, seen: Mapping[str, Seen]) -> BusFacts:
    """The facts with what is known only of all servers: their oldest version, and whether each syncs each write."""
    servers = servers_of(seen)
    versions = [facts.version, *(each.about.version for each in servers)]
    sync: bool | Missing = bool(servers) and all(each.about.syncs for each in servers)
    if not servers or (sync and absent_of(seen)):
        sync = Missing("not each server answers")
    return msgspec.structs.replace(facts, version=oldest(versions), sync=sync)


def _names(servers: Iterable[BusServer]) -> list[str]:
    return [each.about.server_name for each in servers]
