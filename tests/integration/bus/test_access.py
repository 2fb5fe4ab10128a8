"""Credentials, tokens and certificates: what a server in operator mode demands, and what a process says without."""

import asyncio
import re
import time
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from structlog.testing import capture_logs

from bus.buckets import NODES, SAMPLES, WORKERS, Bucket
from bus.connection import FULL_SECONDS, Bus
from bus.errors import ForbiddenError, UnavailableError
from bus.link import Link
from bus.rights.access import Access, Loaded
from bus.rights.roles import Permissions
from tests.certificates import Authority
from tests.integration.bus.operated import EVERYTHING, Operator, operated
from tests.integration.servers import Server, eventually

now = time.monotonic
pytestmark = pytest.mark.usefixtures("long_limits")


def written(path: Path, text: str | bytes) -> Path:
    """A file that appears whole, as a mounted secret does."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(text if isinstance(text, bytes) else text.encode())
    return unfinished.replace(path)


async def refused(url: str, access: Access, expected: str) -> str:
    """Why no connection comes about: a reason that has `expected`."""
    async with Bus.connect(url, name="test", streams=(), access=access) as bus:
        await eventually(lambda: bus.connected or expected in bus.last_error)
        assert not bus.connected
        return bus.last_error


async def test_a_server_with_accounts_and_certificates_lets_in_only_who_has_both(tmp_path: Path) -> None:
    authority, foreign = Authority("of the bus"), Authority("foreign")
    pair = authority.server("127.0.0.1")
    ca = written(tmp_path / "ca.crt", authority.certificate)
    written(tmp_path / "server.crt", pair.certificate)
    written(tmp_path / "server.key", pair.key)
    operator = Operator()
    files = f'cert_file: "{tmp_path}/server.crt", key_file: "{tmp_path}/server.key", ca_file: "{ca}"'
    tls = f"tls {{ {files}, verify: true }}\n"

    def client(of: Authority, name: str) -> tuple[Path, Path]:
        mine = of.client("extender")
        return written(tmp_path / f"{name}.crt", mine.certificate), written(tmp_path / f"{name}.key", mine.key)

    cert, key = client(authority, "client")
    other_cert, other_key = client(foreign, "other")
    mine = written(tmp_path / "mine.creds", operator.credentials("tas-extender"))
    theirs = written(tmp_path / "theirs.creds", Operator().credentials("tas-stranger"))
    past = written(tmp_path / "past.creds", operator.credentials("tas-past", expires=time.time() - 70_000))
    token = written(tmp_path / "token", "secret-token")
    damaged = written(tmp_path / "damaged.creds", re.sub("(SU[A-Z2-7]{20})[A-Z2-7]", r"\1", mine.read_text()))
    async with operated(tmp_path, operator.configuration() + tls) as server:
        accepted = Access(credentials=mine, cacert=ca, cert=cert, key=key)
        async with Bus.connect(server.url, name="test", access=accepted) as bus:
            await bus.wait_connected()
            assert bus.link.inbox.startswith("_INBOX.tas-extender."), "replies come to the inbox of the user"
            await bus.put(NODES, "a.facts", b"1", revision=0, read_at=now())
            end = x509.load_pem_x509_certificate(cert.read_bytes()).not_valid_after_utc.timestamp()
            assert bus.expires == {"bus-cert": end}, "the credentials never expire"
            assert bus.credentials_expire == end
        refusals = {
            "demands credentials, and none are given": Access(cacert=ca, cert=cert, key=key),
            f"does not accept the user tas-stranger of {theirs}": Access(
                credentials=theirs, cacert=ca, cert=cert, key=key
            ),
            f"the user tas-past of {past} expired 70": Access(credentials=past, cacert=ca, cert=cert, key=key),
            f"does not accept the token in {token}": Access(token=token, cacert=ca, cert=cert, key=key),
            "be signed by one of the authorities of the system": Access(credentials=mine, cert=cert, key=key),
            f"be signed by one of those in {other_cert}": Access(
                credentials=mine, cacert=other_cert, cert=cert, key=key
            ),
            "demands a certificate of its clients, and none is given": Access(credentials=mine, cacert=ca),
            f"the certificate in {other_cert}": Access(credentials=mine, cacert=ca, cert=other_cert, key=other_key),
            f"{cert} and {other_key}: must be a certificate and its": Access(
                credentials=mine, cacert=ca, cert=cert, key=other_key
            ),
            f"{damaged}: USER NKEY SEED: must": Access(credentials=damaged, cacert=ca, cert=cert, key=key),
            f"{tmp_path}/none: No such file": Access(credentials=tmp_path / "none"),
        }
        for reason in await asyncio.gather(
            *(refused(server.url, access, expected) for expected, access in refusals.items())
        ):
            assert "secret-token" not in reason
            assert not re.search(r"SU[A-Z2-7]{40}", reason), "a seed in a message"


async def test_changed_credentials_are_used_at_once_and_bad_ones_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.connection.FOLLOW_SECONDS", 0.05)
    operator = Operator()
    file = written(tmp_path / "user.creds", operator.credentials("tas-first"))

    async with (
        operated(tmp_path, operator.configuration()) as server,
        Bus.connect(server.url, name="test", access=Access(credentials=file)) as bus,
    ):
        await bus.wait_connected()
        first = bus.link
        for bad in ("nothing", Operator().credentials("tas-stranger")):
            written(file, bad)
            await eventually(lambda: "bus_credentials_refused" in capsys.readouterr().out)
            assert bus.link is first
            await bus.get(NODES, "a.facts")
            assert bus.refusing  # so that somebody is alerted before the connection is lost
            assert not bus.unavailable
            assert "new credentials: " in str(bus.problem)
        written(file, operator.credentials("tas-second"))
        await eventually(lambda: bus.connected and bus.link.loaded.name == "tas-second")
        assert first.lost.is_set()
        await eventually(lambda: not bus.refusing)
        await bus.put(NODES, "a.facts", b"1", revision=0, read_at=now())
        await server.stop()
        await eventually(lambda: not bus.connected)
        written(file, operator.credentials("tas-third"))
        await server.start()
        await eventually(lambda: bus.connected and bus.link.loaded.name == "tas-third")


async def test_another_reason_why_no_connection_comes_about_is_logged_and_no_flood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.connection.REASON_SECONDS", 0.2)
    monkeypatch.setattr(
        "bus.link.CONNECT_SECONDS", 60.0
    )  # on a busy machine a refusal would be late, for one more reason
    operator = Operator()
    past = written(tmp_path / "past.creds", operator.credentials("tas-past", expires=time.time() - 60))

    def reasons(logs: Sequence[MutableMapping[str, Any]]) -> list[str]:
        return [line["error"] for line in logs if line["event"] == "bus_unreachable"]

    async with operated(tmp_path, operator.configuration()) as server:
        await server.stop()
        with capture_logs() as logs:
            async with Bus.connect(server.url, name="test", streams=(), access=Access(credentials=past)) as bus:
                await eventually(lambda: bool(reasons(logs)))
                await server.start()
                await eventually(lambda: "expired" in reasons(logs)[-1])
                assert "expired" not in reasons(logs)[0]
                before = len(reasons(logs))
                seen: set[str] = set()

                def has_changed_twice() -> bool:
                    seen.add(bus.last_error)
                    return len(seen) > 2

                await eventually(has_changed_twice)
                assert len(reasons(logs)) == before, "it only counts the seconds"


async def test_changed_credentials_that_are_refused_for_a_while_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.connection.FOLLOW_SECONDS", 0.05)
    monkeypatch.setattr("bus.connection.REFUSED_SECONDS", 0.2)
    operator = Operator()
    file = written(tmp_path / "user.creds", operator.credentials("tas-first"))
    async with (
        operated(tmp_path, operator.configuration()) as server,
        Bus.connect(server.url, name="test", access=Access(credentials=file)) as bus,
    ):
        await bus.wait_connected()
        connect, failures = bus._open_with, [UnavailableError("too many connections")]

        async def fail_once(loaded: Loaded) -> Link:
            if failures:
                raise failures.pop()
            return await connect(loaded)

        monkeypatch.setattr(bus, "_open_with", fail_once)
        written(file, operator.credentials("tas-second"))
        await eventually(lambda: bus.connected and bus.link.loaded.name == "tas-second")
        assert failures == []


async def test_a_missing_permission_is_an_error_with_user_and_subject(tmp_path: Path) -> None:
    operator = Operator()
    only_samples = Permissions(publish=("tas.samples.a.*",), subscribe=("_INBOX.tas-a.>",))
    agent = written(tmp_path / "a.creds", operator.credentials("tas-a", only_samples))
    deaf = written(tmp_path / "b.creds", operator.credentials("tas-b", only_samples))
    all_rights = written(tmp_path / "c.creds", operator.credentials("tas-c", EVERYTHING))
    async with operated(tmp_path, operator.configuration()) as server:
        async with Bus.connect(server.url, name="test", access=Access(credentials=all_rights)) as bus:
            await bus.wait_connected()
        async with Bus.connect(server.url, name="test", streams=(), access=Access(credentials=agent)) as bus:
            await bus.wait_connected()
            await bus.publish(SAMPLES, "tas.samples.a.machine", b"{}")
            for subject in ("tas.samples.b.machine", "tas.samples.Big.machine"):
                with pytest.raises(
                    ForbiddenError, match=f"{subject}: the user tas-a of {agent} may not publish"
                ) as error:
                    await bus.publish(SAMPLES, subject, b"{}")
                assert "use the credentials of a user whose role may" in str(error.value)
                assert "tas bus check" in str(error.value)
        expected = f"the user tas-b of {deaf} may not subscribe to _INBOX.tas-b.>"
        await refused(server.url, Access(credentials=deaf), expected)


async def test_a_write_for_which_the_user_has_no_right_is_a_problem_of_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a process on servers with the rights of an earlier version, which tries again without end."""
    monkeypatch.setattr("bus.connection.FOLLOW_SECONDS", 0.05)
    operator = Operator()
    some = ("$JS.API.>", "$KV.NODES.a.facts", "tas.samples.a.*")
    mine = written(tmp_path / "a.creds", operator.credentials("tas-a", rights(*some)))
    everything = written(tmp_path / "b.creds", operator.credentials("tas-b"))

    async def put(bus: Bus, bucket: Bucket, key: str) -> None:
        await bus.put(bucket, key, b"{}", revision=0, read_at=now())

    def end_a_minute_later(bus: Bus) -> None:
        later = now() + FULL_SECONDS
        with monkeypatch.context() as patch:
            patch.setattr("bus.connection.time.monotonic", lambda: later)
            assert bus.problem is None

    async with operated(tmp_path, operator.configuration()) as server:
        async with Bus.connect(server.url, name="test", access=Access(credentials=everything)) as bus:
            await bus.wait_connected()
        async with Bus.connect(server.url, name="test", access=Access(credentials=mine)) as bus:
            await bus.wait_connected()
            with pytest.raises(ForbiddenError):
                await put(bus, WORKERS, "evaluate.x")
            assert bus.problem is None, "all work goes on without it"
            with capture_logs() as logs:
                for key in ("b.facts", "c.facts"):
                    with pytest.raises(ForbiddenError):
                        await put(bus, NODES, key)
                    assert str(bus.problem).startswith(f"$KV.NODES.b.facts: the user tas-a of {mine} may not publish")
                    assert (bus.refusing, bus.unavailable) == (True, False)
            assert "bus_problem" not in {each["event"] for each in logs}, "bus_permission_missing says it"
            await put(bus, NODES, "a.facts")
            assert bus.refusing, "this is another right"
            end_a_minute_later(bus)
            messages = [("tas.samples.a.x", b"{}"), ("tas.samples.b.x", b"{}")]
            with pytest.raises(ForbiddenError):
                await bus.publish_all(SAMPLES, messages)
            assert str(bus.problem).startswith("tas.samples.b.x: ")
            end_a_minute_later(bus)
            outcomes = await bus.publish_each(SAMPLES, [(*each, {}) for each in messages])
            assert [type(each) for each in outcomes] == [int, ForbiddenError]
            with pytest.raises(ForbiddenError):
                await put(bus, NODES, "b.facts")
            assert len(bus._standing()) == 2
            before = bus.link
            written(mine, operator.credentials("tas-a", rights(*some, "$KV.NODES.b.facts", "tas.samples.b.*")))
            await eventually(lambda: bus.connected and bus.link is not before)
            await put(bus, NODES, "b.facts")
            assert [str(each).partition(":")[0] for each in bus._standing()] == ["tas.samples.b.x"]
            await bus.publish(SAMPLES, "tas.samples.b.x", b"{}")
            assert bus.problem is None, "it has the rights now"


def rights(*publish: str) -> Permissions:
    return Permissions(publish=publish, subscribe=("_INBOX.tas-a.>",))


async def test_a_user_of_an_address_has_no_role_and_is_to_be_given_the_permission(tmp_path: Path) -> None:
    user = '{ user: "u", password: "p", permissions: { publish: ["$JS.API.>"] } }'
    async with operated(tmp_path, f"authorization {{ users: [{user}] }}") as server:
        address = server.url.replace("nats://", "nats://u:p@")
        async with Bus.connect(address, name="test", streams=()) as bus:
            await bus.wait_connected()
            with pytest.raises(ForbiddenError, match=r"give it this permission: docs/how-to/bus-credentials\.md"):
                await bus.publish(SAMPLES, "tas.samples.a.machine", b"{}")


@pytest.mark.parametrize("by", ["scheme", "authority"])
async def test_credentials_are_not_sent_in_clear_where_tls_is_demanded(server: Server, tmp_path: Path, by: str) -> None:
    """Else a server in between would get them, only by saying that it has no TLS."""
    access = Access()
    if by == "authority":
        access = Access(cacert=written(tmp_path / "ca.crt", Authority("of the bus").certificate))
    url = server.url.replace("nats://", "tls://") if by == "scheme" else server.url
    await refused(url, access, "the server offers no TLS, which this process demands")


async def test_a_token_file_is_read_for_each_connection(tmp_path: Path) -> None:
    token = written(tmp_path / "token", "first\n")
    async with (
        operated(tmp_path, 'authorization { token: "first" }') as server,
        Bus.connect(server.url, name="test", access=Access(token=token)) as bus,
    ):
        await bus.wait_connected()
        await server.stop()
        server.configuration = 'authorization { token: "second" }'
        written(token, "second\n")
        await server.start()
        await eventually(lambda: bus.connected and bus.link.loaded.contents.token == b"second\n")


async def test_a_server_that_never_speaks_is_named_with_a_reason() -> None:
    """The exception of a time limit has no text."""
    connected = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        assert await refused(
            f"nats://127.0.0.1:{port}", Access(), "nobody has answered as a nats-server within 3 s: is the port right?"
        )
        assert connected.is_set()
    finally:
        server.close()


async def test_a_server_is_slow_until_the_connection_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bus.link.CONNECT_SECONDS", 0.1)
    tried = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        tried.set()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with Bus.connect(f"nats://127.0.0.1:{port}", name="t") as bus:
        assert bus.is_slow
        await tried.wait()
        await eventually(lambda: "nobody has answered" in bus.last_error)
        assert bus.is_slow
        server.close()
        await server.wait_closed()
        await eventually(lambda: not bus.is_slow)
        assert "no servers available" in bus.last_error
