"""`tas bus check`: whether the servers have the users, rights and streams that this version needs."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
import msgspec

from bus.connection import Bus
from bus.errors import BusError, MisconfiguredError
from bus.link import CALL_SECONDS
from bus.rights.access import Access, is_refused
from bus.rights.operator import jwt_in
from bus.rights.roles import PUBLISHERS, Permissions, permissions_of, tags_of
from bus.subjects import OWN_RIGHTS
from bus.subjects import name as node_name
from cli.configure.files import FilesError
from cli.doctor.bus_facts import inspected
from cli.doctor.output import print_findings
from cli.loop import run_to_end
from cli.options import settings_command
from cli.output import echo
from cli.rights.connecting import asked, connected
from cli.rights.folder import AUTH, OperatorFolder, User
from cli.rights.servers import absent_of, earlier_connections, look, problem_of, servers_of, with_servers
from tas.diagnosis.bus import check_bus
from tas.diagnosis.finding import Missing, exit_code, some
from tas.errors import InvalidInputError
from tas.values.nouns import counted
from workers.discovery import bus_access, bus_url
from workers.process.errors import StartError
from workers.process.log_form import LogFormat, LogLevel
from workers.process.logs import configure_logging
from workers.roles import ROLES
from workers.settings import Settings

AT_ONCE = 4
"""So many users are tried at the same time."""

_EARLIER = {
    True: "has credentials of an earlier version, by which its holder can fill any bucket",
    False: "has credentials of an earlier version, by which its holder can take all consumers of a stream",
}
"""By whether the user publishes samples only."""

READER = "tas-reader"
"""The user that looks at the streams."""


class _Allowed(msgspec.Struct):
    allow: list[str] = []
    deny: list[str] = []


class _Permitted(msgspec.Struct):
    publish: _Allowed = msgspec.field(default_factory=_Allowed)
    subscribe: _Allowed = msgspec.field(default_factory=_Allowed)


class _Info(msgspec.Struct):
    permissions: _Permitted | None = None


class _Answer(msgspec.Struct):
    data: _Info


@settings_command(
    "check",
    settings_as="bus check",
    params=[
        click.Argument(["directory"], metavar="DIR", type=click.Path(path_type=Path, file_okay=False)),
    ],
)
def check(settings: Settings, *, directory: Path) -> int:
    """Compare a running bus with the users in DIR, and with the streams that this version needs.

    Connects as each user of DIR/users, and asks the server what this user may do; a node or a publisher may not ask,
    and is only connected. Compares DIR/auth.conf with the rights and limits of this version. Asks each server whether
    it has read DIR/auth.conf, with a user of the system account whose credentials nothing keeps. Then looks at the
    streams as tas-reader does. Nothing is changed. With several servers, give the address of each in --bus.

    Exit codes: 0 all is as it should be, 1 something is not.
    """
    configure_logging(LogFormat.CONSOLE, LogLevel.ERROR)
    try:
        return run_to_end(_checked(settings, OperatorFolder.open(directory)))
    except (FilesError, InvalidInputError, MisconfiguredError, StartError) as error:
        raise click.ClickException(str(error)) from error


async def _checked(settings: Settings, folder: OperatorFolder) -> int:
    users = folder.users()
    if not users:
        raise FilesError(f"{folder.path}: has no users: tas bus init {folder.path} makes them")
    address = bus_url(settings)
    access = replace(bus_access(settings, address), find_token=None, token=None)
    async with connected(address, replace(access, credentials=users[0].file)) as bus:
        if not bus.connected and not is_refused(bus.last_error):
            echo(f"no server answers at {bus.address}: {bus.last_error}", err=True)
            return 1
    code = 0
    few = asyncio.Semaphore(AT_ONCE)
    earlier = folder.earlier_users()
    problems = await asyncio.gather(*(_problem_of(user, address, access, few, folder) for user in users))
    for user, problem in zip(users, problems, strict=True):
        echo(f"{user.claims.name}: {problem or 'ok'}")
        code |= bool(problem)
    lists_connected = folder.takes_earlier and not earlier
    seen = await look(folder, address.split(","), access, reader=folder.user_file(READER), who=lists_connected)
    if any(step.changes for step in folder.steps(now=time.time()) if step.path.name == AUTH):
        echo(f"{AUTH}: does not have the rights and limits of this version: tas bus init {folder.path}")
        code = 1
    if lists_connected:
        names, unknown = earlier_connections(folder, seen)
        still = f"still connected by such: {some(names)}: give them their new files. " if names else ""
        if unknown:
            still += f"who {'else ' if names else ''}is connected by such is not known: {'; '.join(unknown)}. "
        echo(
            f"{AUTH}: servers take credentials of an earlier version, too, and no user in {folder.path} has such: "
            f"{still}When each program has its new ones: tas bus init {folder.path} --refuse-earlier"
        )
        code = 1
    account, publishers = (jwt_in(folder.auth, each) for each in (folder.keys.account, folder.keys.publishers))
    for server in servers_of(seen):
        problem = problem_of(server, account, publishers, folder.issued)
        echo(f"server {server.about.server_name}: {problem or 'ok'}")
        code |= bool(problem)
    for text in absent_of(seen):
        echo(text)
        code = 1
    async with connected(address, replace(access, credentials=folder.user_file(READER))) as bus:
        if not bus.connected:
            echo(f"{READER} cannot look at the streams: {bus.last_error}", err=True)
            return 1
        facts = await inspected(bus)
    findings = list(check_bus(facts if isinstance(facts, Missing) else with_servers(facts[0], seen)))
    print_findings(findings, with_ok=False, about="server and streams: ")
    return code | exit_code(findings)


async def _problem_of(user: User, address: str, access: Access, few: asyncio.Semaphore, folder: OperatorFolder) -> str:
    """What is wrong with a user on the server; empty if nothing is."""
    if not user.role:
        return "its credentials are not signed by a key of DIR: another operator has made them"

    async def rights(bus: Bus) -> _Permitted | None:
        if user.role not in PUBLISHERS:
            return await _own_rights(bus)
        return None if bus.link.is_open else _Permitted()  # it may not ask

    async with few:
        try:
            found = await asked(address, replace(access, credentials=user.file), rights)
        except (BusError, msgspec.MsgspecError) as error:
            return str(error)
    if folder.is_earlier(user):
        return f"{_EARLIER[user.role in PUBLISHERS]}: {renewal(user)}"
    role = ROLES[user.role]
    if user.role in PUBLISHERS and found is not None:
        return ""  # its rights are those of auth.conf, which is compared
    if missing := set(tags_of(role, user.claims.name)) - set(user.claims.tags):
        return f"has {counted(len(missing), 'consumer')} less than in this version: {renewal(user)}"
    needed = permissions_of(role, user.claims.name, user.claims.tags, earlier=folder.takes_earlier)
    return difference(found, needed)


def renewal(user: User) -> str:
    """The command that makes new credentials of a user."""
    name = node_name(user.claims.name) if user.role == "node" else user.claims.name
    flags = "".join(f" --source {each}" for each in user.claims.values("source"))
    return f"tas bus user DIR {user.role} {name}{flags} --renew"


async def _own_rights(bus: Bus) -> _Permitted | None:
    answer = await bus.link.request(OWN_RIGHTS, b"", seconds=CALL_SECONDS)
    return msgspec.json.decode(answer, type=_Answer).data.permissions


def difference(found: _Permitted | None, needed: Permissions) -> str:
    """How the rights on a server differ from those of this version; empty if they do not."""
    if found is None:
        return "the server does not limit this user: auth.conf is of another operator"
    texts: list[str] = []
    for what, here, there in (
        ("publish", found.publish.allow, needed.publish),
        ("publish, denied", found.publish.deny, needed.denied),
        ("subscribe", found.subscribe.allow, needed.subscribe),
    ):
        texts += _some(f"lacks {what}", [each for each in there if each not in here])
        texts += _some(f"has also {what}", [each for each in here if each not in there])
    return "; ".join(texts) + (": give the servers the new auth.conf" if texts else "")


def _some(what: str, subjects: Sequence[str]) -> list[str]:
    more = f" and {len(subjects) - 2} more" if len(subjects) > 2 else ""
    return [f"{what} {', '.join(subjects[:2])}{more}"] if subjects else []
