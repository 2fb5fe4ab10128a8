"""`tas bus`: an operator, its users, and what a server says of them."""

import itertools
import json
import stat
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from bus.buckets import EVENTS, LEASES, NODES, PODS, SAMPLES, TABLES, Bucket
from bus.connection import Bus
from bus.errors import CrowdedError, ForbiddenError, FullError
from bus.mending import consumers_of
from bus.rights.access import Access
from bus.rights.credentials import credentials_text
from bus.rights.jwt import user_jwt
from bus.rights.nkeys import Nkey, NkeyKind
from bus.rights.roles import MOST_USERS, PLACES, Limits
from cli.configure.files import write_all
from cli.rights.folder import NewUser, OperatorFolder
from tests.e2e.processes import free_ports
from tests.integration.bus.closed import earlier_configuration, earlier_credentials
from tests.integration.bus.operated import OperatedServer, operated
from tests.integration.cli.tas import HEALTH, Tas
from tests.integration.servers import answered, eventually
from workers.registry import needed_by
from workers.roles import ROLES

PEOPLE = ("reader", "operator", "keeper")
"""The users of a new folder of whom an earlier version made the same credentials."""


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def auth(folder: Path) -> str:
    return (folder / "auth.conf").read_text()


async def init(tas: Tas, folder: Path, *arguments: str) -> None:
    done = await tas("bus", "init", str(folder), *arguments)
    assert done.code == 0, done.err


async def test_init_makes_users_once_and_only_their_owner_can_read_them(tas: Tas, tmp_path: Path) -> None:
    folder = tmp_path / "operator"
    await init(tas, folder)
    made = contents(folder)
    assert {f"users/tas-{role}.creds" for role, each in ROLES.items() if each.workers} < made.keys()
    assert {
        "keys/operator.seed",
        "keys/account.seed",
        "keys/role-node.seed",
        "auth.conf",
        "cluster.password",
    } < made.keys()
    for path in (folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    await init(tas, folder)
    assert contents(folder) == made
    # A version with a new role: only what is new is made.
    keys = OperatorFolder.open(folder).keys
    before = replace(keys, roles={role: key for role, key in keys.roles.items() if role != "windows"})
    (folder / "auth.conf").write_text(before.server_configuration(ROLES, revoked={}, now=time.time()))
    for gone in ("keys/role-windows.seed", "users/tas-windows.creds"):
        (folder / gone).unlink()
    await init(tas, folder)
    changed = {name for name, content in contents(folder).items() if made[name] != content}
    assert changed == {"keys/role-windows.seed", "users/tas-windows.creds", "auth.conf", "issued.json"}


async def test_a_lost_key_of_publishers_is_not_replaced_while_servers_or_users_need_it(
    tas: Tas, tmp_path: Path
) -> None:
    """With another one servers would refuse all nodes after the next reload."""
    folder = tmp_path / "operator"
    await init(tas, folder)
    assert (await tas("bus", "user", str(folder), "node", "a.b", "--source", "machine")).code == 0
    (folder / "keys" / "publishers.seed").unlink()
    known = contents(folder)
    for needs in ("auth.conf", "users/a_b.creds"):
        for arguments in (("init", str(folder)), ("user", str(folder), "reader", "me"), ("secrets", str(folder))):
            refused = await tas("bus", *arguments)
            assert (refused.code, "keys/publishers.seed: missing: without it" in refused.err) == (1, True), needs
        assert contents(folder) == known
        (folder / needs).unlink()
        del known[needs]
    await init(tas, folder)
    assert "keys/publishers.seed" in contents(folder)


async def test_a_lost_key_of_a_role_is_not_replaced_unless_asked_and_then_its_users_get_new_credentials(
    tas: Tas, tmp_path: Path
) -> None:
    """With another one servers would refuse these users after the next reload, without a word before."""
    folder = tmp_path / "operator"
    await init(tas, folder)
    for name in ("ann", "bob"):
        assert (await tas("bus", "user", str(folder), "reader", name)).code == 0
    assert (await tas("bus", "user", str(folder), "node", "a.b", "--source", "machine")).code == 0
    for lost, users in (("reader", {"ann", "bob", "tas-reader"}), ("node", {"a_b"})):
        (folder / "keys" / f"role-{lost}.seed").unlink()
        known = contents(folder)
        for arguments in (("init", str(folder)), ("user", str(folder), "reader", "me"), ("revoke", str(folder), "ann")):
            refused = await tas("bus", *arguments)
            assert (refused.code, f"keys/role-{lost}.seed: missing" in refused.err) == (1, True), arguments
            assert "--replace-lost" in refused.err
        assert contents(folder) == known
        done = await tas("bus", "init", str(folder), "--replace-lost")
        assert done.code == 0
        assert f"The keys of {lost} were lost and are other ones now" in done.out
        now = contents(folder)
        changed = {name for name in now if name.startswith("users/") and now[name] != known[name]}
        assert changed == {f"users/{user}.creds" for user in users}
        opened = OperatorFolder.open(folder)
        assert {user.claims.name for user in opened.users() if user.role == lost} >= {"ann"} & users
        (renewed,) = [user for user in opened.users() if user.file.stem == min(users)]
        assert (renewed.role, renewed.claims.issuer) == (lost, opened.keys.roles[lost].public)
        await init(tas, folder)
        assert contents(folder) == now
    (node,) = [user for user in OperatorFolder.open(folder).users() if user.role == "node"]
    assert node.claims.values("source") == ("machine",)


async def test_credentials_that_no_server_would_take_are_not_written(tas: Tas, tmp_path: Path) -> None:
    """The line by which a client connects has at most 4 KiB."""
    folder = tmp_path / "operator"
    await init(tas, folder)
    known = contents(folder)

    def sources(number: int) -> list[str]:
        return [word for each in range(number) for word in ("--source", f"{each:0>60}")]

    refused = await tas("bus", "user", str(folder), "publisher", "many", *sources(40))
    assert (refused.code, "users/many.creds: would have a JWT of" in refused.err) == (1, True)
    assert contents(folder) == known
    most = 40
    while (await tas("bus", "user", str(folder), "publisher", "many", *sources(most))).code:
        most -= 1
    assert most > 20
    async with operated(tmp_path, auth(folder)) as server:
        access = Access(credentials=folder / "users" / "many.creds")
        async with Bus.connect(server.url, name="x" * 100, streams=(), access=access) as bus:
            await bus.wait_connected()
    # Credentials of an earlier version had fewer tags: then nothing is renewed.
    opened = OperatorFolder.open(folder)
    file = folder / "users" / "tas-collect.creds"
    file.write_text(earlier_credentials(opened.keys, "collect", "tas-collect", *(f"{each:0>60}" for each in range(25))))
    known = contents(folder)
    refused = await tas("bus", "init", str(folder), "--renew-earlier")
    assert (refused.code, "users/tas-collect.creds: would have a JWT of" in refused.err) == (1, True)
    assert contents(folder) == known


async def test_mistakes_name_the_file_or_the_value_and_change_nothing(tas: Tas, tmp_path: Path) -> None:
    folder = tmp_path / "operator"
    await init(tas, folder)
    before = contents(folder)
    (tmp_path / "none").mkdir(mode=0o700)
    mistakes: dict[tuple[str, ...], str] = {
        ("user", str(folder), "node", "Node_1", "--source", "x"): "user: NAME = 'Node_1': must be a DNS name",
        ("user", str(folder), "node", "node-1"): "--source = '': must be given for the role node",
        ("user", str(folder), "node", "node-1", "--source", "X"): "--source = 'X': must be of a-z",
        ("user", str(folder), "reader", "me", "--source", "x"): "--source = 'x': the role reader names no source",
        ("user", str(folder), "reader", "me.you"): "NAME = 'me.you': only the name of a node may have dots",
        ("user", str(folder), "reader", "tas-reader"): "tas-reader.creds: exists: --renew replaces it",
        ("user", str(tmp_path / "none"), "reader", "me"): "none: has no keys: tas bus init",
        ("revoke", str(folder), "nobody"): "NAME = 'nobody': is no user of",
        ("secrets", str(folder), "--namespace", "A"): "--namespace = 'A': must be a DNS label",
        ("secrets", str(folder), "--user", "nobody"): "--user = 'nobody': has no file in",
    }
    for arguments, text in mistakes.items():
        done = await tas("bus", *arguments)
        assert (done.code, text in done.err) == (1, True), (arguments, done.err)
    folder.chmod(0o755)
    done = await tas("bus", "init", str(folder))
    assert f"{folder}: mode is 755, must be 700" in done.err
    folder.chmod(0o700)
    (folder / "keys" / "operator.seed").write_text("SOAX\n")
    done = await tas("bus", "init", str(folder))
    assert "operator.seed: must end with its checksum" in done.err
    assert "SOAX" not in done.err
    (folder / "keys" / "operator.seed").write_bytes(before["keys/operator.seed"])
    for unsafe in ("short", "UPPER" * 8, "a" * 30 + "@", "a" * 23, "a" * 129):
        (folder / "cluster.password").write_text(unsafe)
        done = await tas("bus", "init", str(folder))
        assert "cluster.password: must be 24 to 128 characters a-z and 0-9" in done.err
        assert unsafe not in done.err
    (folder / "cluster.password").write_bytes(before["cluster.password"])
    assert contents(folder) == before


async def test_so_many_users_that_their_consumers_could_take_all_places_are_made_only_on_purpose(
    tas: Tas, tmp_path: Path
) -> None:
    most = dict(MOST_USERS)
    people, subscribers = most.values()
    assert people * (PLACES + 1) + subscribers <= 750
    folder = tmp_path / "operator"
    await init(tas, folder)  # makes one of each of the first two roles
    known = OperatorFolder.open(folder)
    more = [NewUser("reader", f"r{number}") for number in range(people - 2)]
    write_all(known.user_steps(dict.fromkeys(more), now=time.time()))
    for role in ("reader", "operator"):
        refused = await tas("bus", "user", str(folder), role, "one-more")
        assert (refused.code, "50 users of the roles reader, operator could take" in refused.err) == (1, True)
    for role, more_flags in (("subscriber", ()), ("node", ("--source", "x")), ("reader", ("--many",))):
        assert (await tas("bus", "user", str(folder), role, f"a-{role}", *more_flags)).code == 0
    assert (await tas("bus", "user", str(folder), "reader", "r1", "--renew")).code == 0
    assert len([each for each in OperatorFolder.open(folder).users() if each.claims.name == "r1"]) == 1


async def test_secrets_have_the_users_and_no_key_of_the_operator(tas: Tas, tmp_path: Path) -> None:
    folder = tmp_path / "operator"
    await init(tas, folder)
    assert (await tas("bus", "user", str(folder), "node", "a.b", "--source", "machine")).code == 0
    done = await tas("bus", "secrets", str(folder), "--namespace", "tas")
    secrets = {each["metadata"]["name"]: each for each in yaml.safe_load_all(done.out)}
    assert {"tas-bus-watch", "tas-bus-keeper", "tas-bus-agents", "tas-nats"} <= secrets.keys()
    # Whoever reads Secrets there gets no user with the rights of all, and none of a person.
    assert not {"tas-bus-all", "tas-bus-operator", "tas-bus-reader", "tas-bus-a.b"} & secrets.keys()
    assert {each["metadata"]["namespace"] for each in secrets.values()} == {"tas"}
    assert secrets["tas-nats"]["data"].keys() == {"auth.conf", "cluster.password"}
    password = b64decode(secrets["tas-nats"]["data"]["cluster.password"]).decode()
    assert f"{password}\n" == (folder / "cluster.password").read_text()
    keys = [path.read_text().strip() for path in (folder / "keys").iterdir()]
    assert not any(key in done.out for key in keys)
    # Without the file each Secret would have another password, and the servers would not find each other.
    assert len(password) >= 40
    (folder / "cluster.password").unlink()
    refused = await tas("bus", "secrets", str(folder))
    assert (refused.code, refused.out) == (1, "")
    assert f"cluster.password: is missing: tas bus init {folder} makes it" in refused.err
    await init(tas, folder)
    assert f"{password}\n" != (folder / "cluster.password").read_text()
    # Without the other file the servers would trust nobody.
    (folder / "auth.conf").unlink()
    refused = await tas("bus", "secrets", str(folder))
    assert (refused.code, refused.out) == (1, "")
    assert f"auth.conf: is missing: tas bus init {folder} makes it" in refused.err
    await init(tas, folder)
    some = await tas("bus", "secrets", str(folder), "--user", "a_b", "--user", "tas-all")
    names = [each["metadata"]["name"] for each in yaml.safe_load_all(some.out)]
    assert names == ["tas-bus-a.b", "tas-bus-all", "tas-nats"]


async def test_a_user_of_another_operator_writes_nothing_else_into_the_secrets(tas: Tas, tmp_path: Path) -> None:
    folder = tmp_path / "operator"
    await init(tas, folder)
    key, signer = Nkey.new(NkeyKind.USER), Nkey.new(NkeyKind.ACCOUNT)
    file = folder / "users" / "foreign.creds"
    for name in ("a\n  labels: {owner: me}", "a b", "-", "a" * 300):
        jwt = user_jwt(signer, key.public, account=signer.public, name=name, permissions=None, now=0)
        file.write_text(credentials_text(jwt, key))
        done = await tas("bus", "secrets", str(folder), "--user", name, "--user", "tas-watch")
        assert (done.code, done.out) == (1, "")
        assert f"{file}: the name of the user, {name!r}, must be a DNS name" in done.err
        # Who is not asked for does not matter.
        others = await tas("bus", "secrets", str(folder), "--user", "tas-watch")
        assert (others.code, others.out.count("kind: Secret")) == (0, 2)


async def test_after_an_upgrade_check_asks_for_a_new_auth_conf_with_the_limits_of_this_version(
    tas: Tas, tmp_path: Path
) -> None:
    folder = tmp_path / "operator"
    await init(tas, folder)
    no_limits = {role: replace(each, limits=Limits(subscriptions=-1)) for role, each in ROLES.items()}
    before = OperatorFolder.open(folder).keys.server_configuration(no_limits, revoked={}, now=1000.0)
    (folder / "auth.conf").write_text(before)
    mend = f"auth.conf: does not have the rights and limits of this version: tas bus init {folder}"

    async def check(server: OperatedServer) -> list[str]:
        return (await tas("bus", "check", str(folder), "--bus", server.url)).out.splitlines()

    async with operated(tmp_path, before) as server:
        assert {mend, "server test: ok", "tas-watch: ok"} <= set(await check(server))
        await init(tas, folder)
        assert auth(folder) != before
        found = await check(server)
        assert mend not in found
        assert any(line.startswith("server test: has another auth.conf than the folder") for line in found)
        server.configuration = auth(folder)
        server.reload()
        await eventually(lambda: _is_ok(check, server))


async def test_check_names_each_user_whom_an_open_server_does_not_limit(tas: Tas, tmp_path: Path) -> None:
    """Also a node, which may not ask for its rights: the server has not read auth.conf at all."""
    folder = tmp_path / "operator"
    await init(tas, folder)
    assert (await tas("bus", "user", str(folder), "node", "a.b", "--source", "machine")).code == 0
    async with operated(tmp_path, "") as server:
        done = await tas("bus", "check", str(folder), "--bus", server.url)
    assert done.code == 1
    for path in (folder / "users").iterdir():
        assert f"{path.stem}: the server does not limit this user: auth.conf is of another operator" in done.out


async def _is_ok(check: Callable[[OperatedServer], Awaitable[list[str]]], server: OperatedServer) -> bool:
    return "server test: ok" in await check(server)


def make_earlier(folder: Path) -> None:
    """Makes of a folder what an earlier version would have made."""
    opened = OperatorFolder.open(folder)
    keys = opened.keys
    for new in ("keys/publishers.seed", "earlier.json"):
        (folder / new).unlink()
    for user in opened.users():
        text = earlier_credentials(keys, user.role, user.claims.name, *user.claims.values("source"))
        user.file.write_text(text)
    (folder / "auth.conf").write_text(earlier_configuration(keys))


@pytest.mark.long
async def test_after_an_upgrade_programs_go_on_and_their_new_credentials_can_do_less(tas: Tas, tmp_path: Path) -> None:
    folder = tmp_path / "operator"
    await init(tas, folder)
    for arguments in (("node", "a.b", "--source", "machine"), ("publisher", "probe", "--source", "probe")):
        assert (await tas("bus", "user", str(folder), *arguments, "--days", "30")).code == 0
    make_earlier(folder)

    async def check() -> list[str]:
        return (await tas("bus", "check", str(folder), "--bus", server.url)).out.splitlines()

    async def finding(user: str = "tas-reader") -> tuple[str, str]:
        credentials = str(folder / "users" / f"{user}.creds")
        found = (await tas("doctor", "--bus", server.url, "--bus-credentials", credentials, "--json")).json
        (one,) = [each for each in found if each["check"] == "bus.credentials"]
        return one["severity"], one["run"]

    async def reloaded() -> None:
        server.configuration = auth(folder)
        server.reload()
        await eventually(lambda: _is_ok(lambda _: check(), server))

    async with operated(tmp_path, auth(folder)) as server, AsyncExitStack() as stack:

        async def connect(file: Path) -> Bus:
            access = Access(credentials=file)
            bus = await stack.enter_async_context(Bus.connect(server.url, name="x", streams=(), access=access))
            await bus.wait_connected()
            return bus

        async def works() -> bool:
            """Whether all three are connected, and each does what it does."""
            await node.publish(SAMPLES, "tas.samples.a_b.machine", b"{}")
            await probe.publish(TABLES, "tas.tables.probe.1-0", b"{}")
            await evaluate.entries(NODES)
            return True

        access = Access(credentials=folder / "users" / "tas-keeper.creds")
        keeper = await stack.enter_async_context(Bus.connect(server.url, name="keeper", access=access))
        await eventually(lambda: keeper.connected and keeper.problem is None)
        names = ("a_b", "probe", "tas-evaluate")
        node, probe, evaluate = [await connect(folder / "users" / f"{name}.creds") for name in names]
        stolen = [tmp_path / f"{name}.creds" for name in names]
        for name, copy in zip(names, stolen, strict=True):
            copy.write_bytes((folder / "users" / f"{name}.creds").read_bytes())
        assert await works()
        assert f"auth.conf: does not have the rights and limits of this version: tas bus init {folder}" in await check()
        # The server has the configuration of before, and does not know what this version asks.
        assert await finding() == await finding("tas-operator") == ("warning", "tas bus check DIR")
        assert (await finding("tas-evaluate"))[0] == "unknown"

        await init(tas, folder)
        await reloaded()
        assert await answered(works)
        found = await check()
        fill, take = "by which its holder can fill any bucket", "by which its holder can take all consumers of a stream"
        before = "has credentials of an earlier version"
        assert f"a_b: {before}, {fill}: tas bus user DIR node a.b --source machine --renew" in found
        assert f"probe: {before}, {fill}: tas bus user DIR publisher probe --source probe --renew" in found
        assert f"tas-evaluate: {before}, {take}: tas bus user DIR evaluate tas-evaluate --renew" in found
        assert (await finding()) == ("warning", "tas bus check DIR")
        known = contents(folder)
        refused = await tas("bus", "init", str(folder), "--refuse-earlier")
        assert (refused.code, contents(folder) == known) == (1, True)
        assert "has credentials of an earlier version, of a_b, probe, tas-agents, tas-all, " in refused.err
        assert f"tas bus init {folder} --renew-earlier makes new ones" in refused.err

        links = [bus.link for bus in (node, probe, evaluate)]
        await init(tas, folder, "--renew-earlier")
        assert {name for name, content in contents(folder).items() if known.get(name) != content} == {
            "issued.json",
            *(
                f"users/{user.claims.name}.creds"
                for user in OperatorFolder.open(folder).users()
                if user.role not in PEOPLE
            ),
        }
        await eventually(lambda: all(link.lost.is_set() for link in links))
        assert await answered(works)
        found = await check()
        assert not [line for line in found if before in line]
        (line,) = [
            line for line in found if line.startswith("auth.conf: servers take credentials of an earlier version")
        ]
        assert "still connected" not in line
        assert "is not known" not in line
        for copy in stolen:
            await connect(copy)
        assert any("still connected by such: a_b, probe, tas-evaluate: give them" in line for line in await check())

        strict = await tas("bus", "init", str(folder), "--refuse-earlier")
        assert (strict.code, "the Secrets in Kubernetes" in strict.out) == (0, True)
        await reloaded()
        assert await answered(works)
        assert not [line for line in await check() if "earlier" in line]
        assert (await finding())[0] == "ok"
        assert (await finding("tas-evaluate"))[0] == "unknown"
        for copy in stolen[:2]:
            access = Access(credentials=copy)
            thief = await stack.enter_async_context(Bus.connect(server.url, name="x", streams=(), access=access))
            await eventually(lambda: "does not accept" in thief.last_error)  # noqa: B023 - before the next one
        thief = await connect(stolen[2])
        with pytest.raises(ForbiddenError):
            await thief.write_durable(NODES.stream, "any", {"ack_policy": "none"}, action="create")
        await init(tas, folder)
        assert not OperatorFolder.open(folder).takes_earlier
        # An earlier version writes auth.conf as it knows it.
        (folder / "auth.conf").write_text(earlier_configuration(OperatorFolder.open(folder).keys))
        again = await tas("bus", "init", str(folder))
        assert "took credentials of an earlier version again" in again.out
        assert not OperatorFolder.open(folder).undone
        assert OperatorFolder.open(folder).keys.takes_earlier(auth(folder)) is False
        (folder / "auth.conf").write_text(earlier_configuration(OperatorFolder.open(folder).keys))
        (folder / "earlier.json").unlink()
        assert OperatorFolder.open(folder).takes_earlier
        # Who has lost the file gets it as strict as it was.
        (folder / "auth.conf").unlink()
        assert not OperatorFolder.open(folder).takes_earlier


async def test_the_program_on_a_node_publishes_and_asks_a_closed_bus_nothing_that_it_may_not(
    tas: Tas, tmp_path: Path
) -> None:
    folder = tmp_path / "operator"
    await init(tas, folder)
    assert (await tas("bus", "user", str(folder), "node", "a.b", "--source", "machine")).code == 0
    async with operated(tmp_path, auth(folder)) as server, AsyncExitStack() as stack:
        shown = ("--bus", server.url, "--bus-credentials", str(folder / "users" / "a_b.creds"))
        command = ("run", "machine", *shown, *HEALTH, "--node", "a.b", "--period", "100ms")
        machine = await stack.enter_async_context(tas.running(*command))

        async def says_why() -> bool:
            status, text = await machine.health("/readyz")
            return status == 503 and "tas run keeper creates SAMPLES" in json.loads(text)["workers"]["machine"]

        await eventually(says_why)  # the stream is missing
        keeper = Access(credentials=folder / "users" / "tas-keeper.creds")
        bus = await stack.enter_async_context(Bus.connect(server.url, name="keeper", access=keeper))
        await eventually(lambda: bus.connected and bus.problem is None)
        before = await bus.epoch(SAMPLES)
        await machine.ready()  # its last sample was stored

        async def has_samples() -> bool:
            return (await bus.epoch(SAMPLES)).last_sequence >= before.last_sequence + 2

        await eventually(has_samples)
        assert (await machine.end(), machine.noise) == (0, [])
        assert "Violation" not in server.log.read_text()


@pytest.mark.long
async def test_check_compares_a_server_and_a_revoked_user_is_refused_after_a_reload(tas: Tas, tmp_path: Path) -> None:
    folder = tmp_path / "operator"
    await init(tas, folder)
    assert (await tas("bus", "user", str(folder), "node", "a.b", "--source", "machine")).code == 0
    other = tmp_path / "other"
    await init(tas, other)

    async def check(of: Path, server: OperatedServer) -> dict[str, str]:
        """What is printed about each user and the server; what it says about streams has tests of its own."""
        done = await tas("bus", "check", str(of), "--bus", server.url)
        assert done.code == 1  # at least: the server does not sync each write
        users = {path.stem for path in (of / "users").iterdir()}
        known = {*users, "server test"}
        found = dict(line.partition(": ")[::2] for line in done.out.splitlines() if line.partition(": ")[0] in known)
        assert found.keys() - {"server test"} == users
        return found

    (unused,) = free_ports(1)
    done = await tas("bus", "check", str(folder), "--bus", f"nats://127.0.0.1:{unused}")
    assert (done.code, done.out) == (1, "")
    assert f"no server answers at nats://127.0.0.1:{unused}: no connection" in done.err
    async with operated(tmp_path, auth(folder)) as server:
        keeper = Access(credentials=folder / "users" / "tas-keeper.creds")
        async with Bus.connect(server.url, name="keeper", access=keeper) as bus:
            await eventually(lambda: bus.connected and bus.problem is None)
        node = Access(credentials=folder / "users" / "a_b.creds")
        async with Bus.connect(server.url, name="node", streams=(), access=node) as bus:
            await bus.wait_connected()
            await bus.publish(SAMPLES, "tas.samples.a_b.machine", b"{}")
            first = bus.link
            found = await check(folder, server)
            assert found.pop("a_b") == found.pop("server test") == "ok"
            assert set(found.values()) == {"ok"}
            # Of another operator nobody is known, and so nobody may ask about the server.
            unknown = await check(other, server)
            assert "server test" not in unknown
            assert all("does not accept" in text for text in unknown.values())

            # Credentials that are stolen before they are renewed are revoked with the new ones.
            stolen = tmp_path / "stolen.creds"
            stolen.write_bytes((folder / "users" / "a_b.creds").read_bytes())
            renewed = await tas("bus", "user", str(folder), "node", "a.b", "--source", "machine", "--renew")
            assert renewed.code == 0, renewed.err
            await eventually(lambda: bus.connected and bus.link is not first)
            access = Access(credentials=stolen)
            async with Bus.connect(server.url, name="thief", streams=(), access=access) as thief:
                await thief.wait_connected()
                second = bus.link
                assert (await tas("bus", "revoke", str(folder), "a_b")).code == 0
                assert not (folder / "users" / "a_b.creds").exists()
                # The user has no file any more, but the server still lets both of its credentials in.
                still = (await check(folder, server))["server test"]
                assert "has another auth.conf than the folder, and revoked credentials of a_b still count" in still
                assert thief.connected
                server.configuration = auth(folder)
                server.reload()
                await eventually(second.lost.is_set)
                await eventually(lambda: "does not accept" in thief.last_error)
                assert (await check(folder, server))["server test"] == "ok"
                assert (await tas("bus", "user", str(folder), "node", "a.b", "--source", "machine")).code == 0
                await eventually(lambda: bus.connected and bus.link is not second)
                await bus.publish(SAMPLES, "tas.samples.a_b.machine", b"{}")
                assert not thief.connected


async def test_a_stream_full_of_consumers_is_named_and_revoke_and_mend_make_room(tas: Tas, tmp_path: Path) -> None:
    """Consumers of a reader, and those that a reader of an earlier version could make, on a stream of that version."""
    folder = tmp_path / "operator"
    await init(tas, folder)
    (folder / "auth.conf").write_text(earlier_configuration(OperatorFolder.open(folder).keys))
    (folder / "earlier.json").unlink()  # an earlier version had none
    assert (await tas("bus", "user", str(folder), "reader", "bob")).code == 0
    admin = tmp_path / "admin.creds"
    admin.write_text(OperatorFolder.open(folder).keys.mender("admin", now=0, expires=time.time() + 3600))
    bob = tmp_path / "bob.creds"
    bob.write_bytes((folder / "users" / "bob.creds").read_bytes())
    before = {"allow_rollup_hdrs": True, "duplicate_window": 120 * 10**9, "consumer_limits": {}, "max_consumers": 16}
    before["max_bytes"] = -1
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(operated(tmp_path, auth(folder)))

        async def connect(file: Path, **options: Any) -> Bus:
            access = Access(credentials=file)
            bus = await stack.enter_async_context(Bus.connect(server.url, name="test", access=access, **options))
            await bus.wait_connected()
            return bus

        keeper = await connect(folder / "users" / "tas-keeper.creds")
        await eventually(lambda: keeper.problem is None)
        owner = await connect(admin, streams=())

        async def config_of(of: Bucket) -> dict[str, Any]:
            # A reload ends the connections of the account once.
            config: dict[str, Any] = (await answered(lambda: owner.api(f"STREAM.INFO.{of.stream}")))["config"]
            return config

        async def names() -> set[str]:
            found = await answered(lambda: consumers_of(owner))
            return {each.name for each in found if each.stream == NODES.stream}

        await owner.api(f"STREAM.UPDATE.{NODES.stream}", await config_of(NODES) | before)
        marked = {"subject_delete_marker_ttl": 60 * 10**9}
        await owner.api(f"STREAM.UPDATE.{LEASES.stream}", await config_of(LEASES) | marked)
        thief = await connect(bob, streams=())
        earlier = await connect(folder / "users" / "tas-extender.creds", streams=())
        lasting = {"ack_policy": "explicit", "metadata": {"x": "x" * 10000}}
        for maker, name in ((thief, "bob"), (thief, "bob_8"), *((earlier, f"junk{each}") for each in range(14))):
            await maker.write_durable(NODES.stream, name, lasting, action="create")
        with pytest.raises(CrowdedError):
            await earlier.entries(NODES)

        reader = ("--bus", server.url, "--bus-credentials", str(folder / "users" / "tas-reader.creds"))
        for command in ("status", "doctor"):
            printed = (await tas(command, *reader, "--json")).json
            findings = {each["check"]: each for each in (printed if command == "doctor" else printed["findings"])}
            assert findings["bus.consumers"]["severity"] == "error", command
            assert "KV_NODES has 16 of at most 16 consumers" in findings["bus.consumers"]["what"]
            assert findings["bus.consumers"]["run"] == "tas bus mend DIR"
            assert findings["bus.limits"]["severity"] == "warning"
            assert "KV_LEASES, KV_NODES" in findings["bus.limits"]["what"]
        process = ("--bus", server.url, "--bus-credentials", str(folder / "users" / "tas-evaluate.creds"))
        evaluate = await stack.enter_async_context(tas.running("run", "evaluate", *process, *HEALTH))

        async def says_why() -> bool:
            status, text = await evaluate.health("/readyz")
            named = "KV_NODES" in text and "maximum consumers limit reached" in text and "tas bus mend DIR" in text
            return status == 503 and named

        await eventually(says_why)

        notify = await connect(folder / "users" / "tas-notify.creds", streams=())
        for place, sink in enumerate(("chat", "desk", "mail", "pager" + "!" * 4000), start=6):
            position = {"ack_policy": "explicit", "filter_subject": "tas.events.>", "description": f"notify-{sink}"}
            await notify.write_durable(EVENTS.stream, f"_sink_{place}", position, action="create")

        # Who is revoked has no consumer left, though the credentials count until a reload; then others find a place.
        done = await tas("bus", "revoke", str(folder), "bob", "--bus", server.url)
        assert done.code == 0
        assert "KV_NODES: 16 consumers removed: bob, bob_8, junk0 and 13 more" in done.out
        assert "EVENTS" not in done.out, "the positions of sinks that do not run now stay"

        async def is_silent() -> bool:
            return not await says_why()

        await eventually(is_silent)
        await thief.write_durable(NODES.stream, "bob_3", lasting, action="create")
        await earlier.write_durable(NODES.stream, "junk", lasting, action="create")
        server.configuration = auth(folder)
        server.reload()
        await eventually(lambda: "does not accept" in thief.last_error)

        async def reads() -> bool:
            return bool(await names() - {"bob_3", "junk"})

        await eventually(reads)
        done = await tas("bus", "mend", str(folder), "--dry-run", "--bus", server.url)
        assert (done.code, "KV_NODES: 2 consumers would be removed: bob_3, junk" in done.out) == (0, True)
        sinks = "_sink_6 (notify-chat), _sink_7 (notify-desk), _sink_8 (notify-mail), _sink_9 (notify-pager!!"
        assert f"EVENTS: 4 consumers would be removed: {sinks}" in done.out, "nobody waits for them"
        assert len(done.out) < 2000
        assert "KV_NODES: would be changed: allow_rollup_hdrs True to False" in done.out
        assert {"bob_3", "junk"} < await names()
        done = await tas("bus", "mend", str(folder), "--bus", server.url)
        assert (done.code, done.err) == (0, "")
        assert not {"bob_3", "junk"} & await names()
        mended, leases = await config_of(NODES), await config_of(LEASES)
        assert (mended["allow_rollup_hdrs"], mended["duplicate_window"]) == (False, 10**8)
        assert mended["consumer_limits"] == {"inactive_threshold": 600 * 10**9}
        assert mended["max_bytes"] == NODES.max_bytes
        assert mended["max_consumers"] == 16, "what an operator has set stays"
        assert (leases["allow_rollup_hdrs"], leases.get("subject_delete_marker_ttl")) == (False, None)
        done = await tas("bus", "mend", str(folder), "--bus", server.url)
        assert (done.code, done.out) == (0, "")
        findings = {each["check"]: each for each in (await tas("status", *reader, "--json")).json["findings"]}
        assert not {"bus.limits", "bus.consumers"} & findings.keys()


async def test_a_full_bucket_is_named_and_mend_gives_it_room(tas: Tas, tmp_path: Path) -> None:
    """Whoever fills a bucket takes no room of others, and what the bucket has can be written again (facts.md n79)."""
    folder = tmp_path / "operator"
    await init(tas, folder)
    async with operated(tmp_path, auth(folder)) as server, AsyncExitStack() as stack:

        async def connect(user: str) -> Bus:
            access = Access(credentials=folder / "users" / f"tas-{user}.creds")
            own = Bus.connect(server.url, name=user, access=access, streams=needed_by([user]))
            bus = await stack.enter_async_context(own)
            await eventually(lambda: bus.connected and bus.problem is None)
            return bus

        async def fill(bus: Bus) -> None:
            for number in itertools.count():
                await bus.put(PODS, f"a.p{number}", bytes(100_000), revision=0, read_at=time.monotonic())

        await connect("keeper")
        reader = ("--bus", server.url, "--bus-credentials", str(folder / "users" / "tas-reader.creds"))
        done = await tas("bus", "mend", str(folder), "--bus", server.url, "--room", "PODS=1Mi")
        assert (done.code, done.out) == (0, "KV_PODS: changed: max_bytes to 1048576\n")
        watch = await connect("watch")
        with pytest.raises(FullError, match="maximum bytes exceeded"):
            await fill(watch)
        assert "PODS has no room" in str(watch.problem)
        entry = await watch.get(PODS, "a.p1")
        assert entry is not None
        await watch.put(PODS, "a.p1", bytes(99_000), revision=entry.revision, read_at=time.monotonic())
        await watch.put(NODES, "n.facts", b"{}", revision=0, read_at=time.monotonic())
        for command in ("status", "doctor"):
            printed = (await tas(command, *reader, "--json")).json
            findings = {each["check"]: each for each in (printed if command == "doctor" else printed["findings"])}
            assert findings["bus.room"]["run"] == "tas bus mend DIR --room PODS=2Mi", command
        done = await tas("bus", "mend", str(folder), "--bus", server.url, "--room", "PODS=2Mi")
        assert done.code == 0
        await watch.put(PODS, "a.more", bytes(100_000), revision=0, read_at=time.monotonic())
        for dry_run in (["--dry-run"], []):
            done = await tas("bus", "mend", str(folder), "--bus", server.url, "--room", "PODS=1Mi", *dry_run)
            assert (done.code, "bytes, and would be full with 1048576" in done.err) == (1, True)
        done = await tas("bus", "mend", str(folder), "--bus", server.url, "--room", "PODS=2M")
        assert (done.code, "must be BUCKET=SIZE, as NODES=608Mi" in done.err) == (2, True)
