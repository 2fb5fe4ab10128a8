"""HTTPS with client certificates over real sockets: which clients are admitted, also after the files change."""

import asyncio
import datetime as dt
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from math import isnan
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from tests.certificates import Authority, Pair, private_key, private_pem
from tests.integration.servers import eventually
from tests.integration.workers.extender import key_updates
from tests.integration.workers.extender.key_updates import (
    APPLICATION_DATA,
    KEY_UPDATE,
    KEY_UPDATE_WITH_ANSWER,
)
from tests.integration.workers.extender.test_http import Connection, Reply, request
from workers.http import connections
from workers.http.address import Address
from workers.http.certificates import Certificates, TlsMetrics
from workers.http.connections import ConnectionMetrics
from workers.http.limits import IDLE_SECONDS, Limits
from workers.http.listening import listening
from workers.http.tls import load_tls
from workers.http.tls_files import TlsError, TlsFiles

PATIENCE = 120.0
HOUR = dt.timedelta(hours=1)
NEVER = 1e6
"""As limits of `serving`: so many seconds until the first sweep of idle connections."""

AUTHORITY = Authority("cluster")
STRANGER = Authority("stranger")
SERVER = AUTHORITY.server("extender")
SCHEDULER = AUTHORITY.client("system:kube-scheduler")
REFUSED = (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)
"""The errors of a refused client: an alert or a closed connection; in TLS 1.3 only when it reads."""


class Folder:
    """The three files in the form of a mounted secret: links into a folder that is replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writes = 0
        path.mkdir()

    @property
    def files(self) -> TlsFiles:
        return TlsFiles(cert=self.path / "cert", key=self.path / "key", cacert=self.path / "cacert")

    def swap(self, *, server: Pair = SERVER, key: bytes | None = None, authorities: bytes) -> None:
        self._writes += 1
        data = self.path / f"..{self._writes}"
        data.mkdir()
        (data / "cert").write_bytes(server.certificate)
        (data / "key").write_bytes(server.key if key is None else key)
        (data / "cacert").write_bytes(authorities)
        (self.path / "..new").symlink_to(data.name)
        (self.path / "..new").rename(self.path / "..data")
        for name in ("cert", "key", "cacert"):
            if not (self.path / name).is_symlink():
                (self.path / name).symlink_to(f"..data/{name}")


@dataclass
class Served:
    address: Address
    certificates: Certificates
    registry: CollectorRegistry
    folder: Folder
    holding: asyncio.Event = field(default_factory=asyncio.Event)
    held: int = 0

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    @asynccontextmanager
    async def connect(self, client: Pair | None = SCHEDULER, **options: Any) -> AsyncIterator[Connection]:
        context = client_context(self.folder.path.parent, client, **options)
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection(self.address.host, self.address.port, ssl=context)
        try:
            yield Connection(reader, writer)
        finally:
            writer.transport.abort()

    async def ask(self, client: Pair | None = SCHEDULER, **options: Any) -> Reply:
        async with self.connect(client, **options) as connection:
            await connection.send(request())
            return await connection.receive()

    async def refuses(self, client: Pair | None, **options: Any) -> None:
        with pytest.raises(REFUSED):
            await self.ask(client, **options)

    async def count(self, reason: str, times: int = 1) -> None:
        await eventually(lambda: self.metric("tas_tls_refused_total", reason=reason) == times)


def client_context(
    folder: Path,
    client: Pair | None,
    *,
    version: ssl.TLSVersion | None = None,
    trusts: Authority = AUTHORITY,
    ciphers: str | None = None,
) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=trusts.certificate.decode())
    if ciphers is not None:
        context.set_ciphers(ciphers)
    if version is not None:
        if version < ssl.TLSVersion.TLSv1_2:
            context.set_ciphers("DEFAULT:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = version
    if client is not None:
        path = folder / "client.pem"
        path.write_bytes(client.certificate + client.key)
        context.load_cert_chain(path)
    return context


def app(served: Callable[[], Served]) -> web.Application:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        if request.path == "/held":
            served().held += 1
            await served().holding.wait()
        return web.json_response({"path": request.path})

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    return app


@asynccontextmanager
async def serving(
    folder: Folder,
    *allowed: str,
    header_seconds: float = PATIENCE,
    answer_seconds: float = 2.0,
    idle_seconds: float = IDLE_SECONDS,
) -> AsyncIterator[Served]:
    registry = CollectorRegistry()
    certificates = Certificates(folder.files, allowed=allowed, metrics=TlsMetrics(registry), check_seconds=0.01)
    served = Served(Address("127.0.0.1", 0), certificates, registry, folder)
    limits = Limits(header_seconds=header_seconds, answer_seconds=answer_seconds, idle_seconds=idle_seconds)
    metrics = ConnectionMetrics(registry)
    async with listening(
        app(lambda: served), served.address, purpose="test", limits=limits, certificates=certificates, metrics=metrics
    ) as address:
        served.address = address
        yield served


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path / "certificates")
    folder.swap(authorities=AUTHORITY.certificate)
    return folder


@pytest.fixture
async def served(folder: Folder) -> AsyncIterator[Served]:
    async with serving(folder) as served:
        yield served


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_of_the_authority_is_answered(served: Served, version: ssl.TLSVersion) -> None:
    async with served.connect(version=version) as connection:
        for _ in range(3):
            await connection.send(request())
            assert (await connection.receive()).json == {"path": "/scheduler/filter"}


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1:DeprecationWarning")
async def test_facts_H6_no_client_certificate_and_tls_1_1_fail_the_handshake(served: Served) -> None:
    await served.refuses(None)
    await served.refuses(SCHEDULER, version=ssl.TLSVersion.TLSv1_1)

    await served.count("no_certificate")
    await served.count("protocol")


async def test_a_cipher_without_authenticated_encryption_is_refused(served: Served) -> None:
    """The client offers no other one, and the key of the server fits to it."""
    await served.refuses(SCHEDULER, version=ssl.TLSVersion.TLSv1_2, ciphers="ECDHE-ECDSA-AES128-SHA256")
    await served.count("protocol")


async def test_each_certificate_of_the_file_is_trusted_also_one_that_is_no_root(folder: Folder) -> None:
    folder.swap(authorities=SCHEDULER.certificate)
    async with serving(folder) as served:
        assert (await served.ask()).status == 200
        await served.refuses(AUTHORITY.client("system:kube-scheduler"))


async def test_plain_http_on_the_tls_port_is_refused_counted_and_logged_once_for_each_peer(served: Served) -> None:
    """The hard case: each connection comes from another port."""
    assert served.registry.get_sample_value("tas_tls_refused_total", {"reason": "protocol"}) == 0
    with capture_logs() as logs:
        for _ in range(5):
            reader, writer = await asyncio.open_connection(served.address.host, served.address.port)
            writer.write(request())
            async with asyncio.timeout(PATIENCE):
                with suppress(ConnectionError):
                    assert b"200" not in await reader.read()
            writer.close()
        await served.count("protocol", 5)

    (line,) = [line for line in logs if line["event"] == "client_refused"]
    assert (line["reason"], line["error"], line["client"]) == ("protocol", "http request", None)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("reason", "client", "name"),
    [
        ("expired", AUTHORITY.client("late-scheduler", lives=-dt.timedelta(hours=1)), "late-scheduler"),
        ("untrusted", STRANGER.client("foreign-scheduler"), "foreign-scheduler"),
        ("wrong_purpose", AUTHORITY.server("server-as-client"), "server-as-client"),
        ("name", AUTHORITY.client("kubelet", names=[x509.DNSName("kubelet.example")]), "kubelet, kubelet.example"),
        ("untrusted", STRANGER.client("large", names=[x509.DNSName("n")] * 3000), "a certificate of 9"),
    ],
    ids=["expired", "foreign", "purpose", "name", "large"],
)
async def test_an_invalid_certificate_is_refused_counted_and_logged_with_its_name(
    folder: Folder, reason: str, client: Pair, name: str, version: ssl.TLSVersion
) -> None:
    with capture_logs() as logs:
        async with serving(folder, "system:kube-scheduler") as served:
            for _ in range(3):
                await served.refuses(client, version=version)
            await served.count(reason, 3)
            assert (await served.ask(version=version)).status == 200
            assert served.metric("tas_tls_refused_total", reason=reason) == 3

    (line,) = [line for line in logs if line["event"] == "client_refused"]
    assert (line["reason"], line["log_level"]) == (reason, "warning")
    assert name in line["client"]
    assert line["address"].startswith("127.0.0.1:")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("reason", "other", "is_forged"), [("expired", "untrusted", False), ("untrusted", "expired", True)]
)
async def test_a_forged_certificate_in_the_name_of_an_expired_authority_is_not_an_expired_one(
    folder: Folder, reason: str, other: str, is_forged: bool, version: ssl.TLSVersion
) -> None:
    """Otherwise a stranger could raise TasCertificateExpired: OpenSSL looks at dates before signatures."""
    ended = Authority("ended", lives=-HOUR)
    folder.swap(authorities=AUTHORITY.certificate + ended.certificate)
    client = ended.client("system:kube-scheduler")
    if is_forged:
        der = bytearray(ssl.PEM_cert_to_DER_cert(client.certificate.decode()))
        der[-1] ^= 1  # the end of the signature
        client = Pair(certificate=ssl.DER_cert_to_PEM_cert(bytes(der)).encode(), key=client.key)
    async with serving(folder) as served:
        await served.refuses(client, version=version)
        await served.count(reason)
        assert served.metric("tas_tls_refused_total", reason=other) == 0


@pytest.mark.parametrize(
    "name", [x509.DNSName("sched.example"), x509.UniformResourceIdentifier("spiffe://cluster/sched")]
)
async def test_an_alternative_name_is_checked_like_the_common_name(folder: Folder, name: x509.GeneralName) -> None:
    async with serving(folder, "another", str(name.value)) as served:
        assert (await served.ask(AUTHORITY.client("any", names=[name]))).status == 200
        await served.refuses(SCHEDULER)


async def test_a_new_certificate_is_served_and_open_connections_stay(served: Served, folder: Folder) -> None:
    renewed = Authority("renewed")
    async with served.connect() as old:
        await old.send(request("/held"))
        await eventually(lambda: served.held == 1)
        folder.swap(server=renewed.server("extender"), authorities=AUTHORITY.certificate)
        await eventually(lambda: served.metric("tas_tls_reloads_total", result="loaded") == 1)

        assert (await served.ask(trusts=renewed)).status == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            await served.ask()
        served.holding.set()
        assert (await old.receive()).status == 200
        await old.send(request())
        assert (await old.receive()).status == 200, "no authority is gone: the connection stays"


async def test_an_added_authority_keeps_connections_and_a_removed_authority_is_not_trusted(
    served: Served, folder: Folder
) -> None:
    stranger = STRANGER.client("stranger")
    await served.refuses(stranger)
    async with served.connect() as idle, served.connect() as busy:
        folder.swap(authorities=AUTHORITY.certificate + STRANGER.certificate)
        await eventually(lambda: served.metric("tas_tls_reloads_total", result="loaded") == 1)
        assert (await served.ask(stranger)).status == 200
        await idle.send(request())
        assert (await idle.receive()).status == 200

        await busy.send(request("/held"))
        await eventually(lambda: served.held == 1)
        folder.swap(authorities=STRANGER.certificate)
        await eventually(lambda: served.metric("tas_tls_reloads_total", result="loaded") == 2)
        await served.refuses(SCHEDULER)
        assert (await served.ask(stranger)).status == 200

        assert await asyncio.wait_for(idle.reader.read(), PATIENCE) == b"", "idle: closed without being asked"
        served.holding.set()
        last = await busy.receive()
        assert (last.status, last.headers["connection"]) == (200, "close")
        assert await asyncio.wait_for(busy.reader.read(), PATIENCE) == b""


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_session_has_no_ticket_and_is_not_resumed_after_a_change_of_the_authorities(
    served: Served, folder: Folder, version: ssl.TLSVersion
) -> None:
    """With TLS 1.2 OpenSSL resumes a session by its number, if its connection has ended in order or is still open."""
    context = client_context(folder.path.parent, SCHEDULER, version=version)

    def visit(session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool]:
        with (
            socket.create_connection((served.address.host, served.address.port), timeout=PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as tls,
        ):
            tls.sendall(request())
            if not (answer := tls.recv(4096)):
                raise ConnectionError
            assert b" 200 " in answer
            assert tls.session is None or not tls.session.has_ticket
            return tls.session, bool(tls.session_reused)

    session, _ = await asyncio.to_thread(visit, None)
    _, reused = await asyncio.to_thread(visit, session)
    assert not reused or version is ssl.TLSVersion.TLSv1_2
    folder.swap(authorities=STRANGER.certificate)
    await eventually(lambda: served.metric("tas_tls_reloads_total", result="loaded") == 1)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.to_thread(visit, session)


async def test_an_incomplete_key_keeps_the_last_valid_files_and_is_retried(served: Served, folder: Folder) -> None:
    renewed = AUTHORITY.server("extender")
    with capture_logs() as logs:
        folder.swap(server=renewed, key=renewed.key[:60], authorities=AUTHORITY.certificate)
        await eventually(lambda: served.metric("tas_tls_reloads_total", result="failed") >= 2)
        assert (await served.ask()).status == 200
        folder.swap(server=renewed, authorities=AUTHORITY.certificate)
        await eventually(lambda: served.metric("tas_tls_reloads_total", result="loaded") == 1)
        assert (await served.ask()).status == 200

    failed, *after = [line for line in logs if line["event"] != "certificate_expiring"]
    assert (failed["event"], failed["log_level"]) == ("certificates_not_loaded", "error")
    assert failed["error"].startswith(f"--key {folder.path / 'key'}: no private key in PEM")
    assert [line["event"] for line in after] == ["certificates_loaded", "certificates_recovered"]


@pytest.mark.parametrize(
    ("name", "later"),
    [
        ("cert", {"server": AUTHORITY.server("later", begins=HOUR), "authorities": AUTHORITY.certificate}),
        ("cacert", {"authorities": Authority("later", begins=HOUR).certificate}),
    ],
    ids=["server", "authorities"],
)
async def test_certificates_that_are_not_valid_yet_replace_valid_ones_once_they_are(
    served: Served, folder: Folder, name: str, later: dict[str, Any]
) -> None:
    def tries() -> float:
        return sum(served.metric("tas_tls_reloads_total", result=result) for result in ("failed", "loaded"))

    with capture_logs() as logs:
        folder.swap(**later)
        await eventually(lambda: tries() >= 1)
        assert (await served.ask()).status == 200
        served.certificates._clock = lambda: time.time() + 2 * HOUR.total_seconds()
        await eventually(lambda: served.metric("tas_tls_reloads_total", result="loaded") == 1)

    failed, *after = [line for line in logs if line["event"] != "certificate_expiring"]
    assert (failed["event"], failed["log_level"]) == ("certificates_not_loaded", "error")
    assert failed["error"].startswith(f"--{name} {folder.path / name}: is not valid before 20")
    assert [line["event"] for line in after] == ["certificates_loaded", "certificates_recovered"]


@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("cert", {"server": AUTHORITY.server("old", lives=-HOUR), "authorities": AUTHORITY.certificate}),
        ("cacert", {"authorities": Authority("old", lives=-HOUR).certificate}),
    ],
    ids=["server", "authorities"],
)
async def test_certificates_that_have_expired_replace_no_valid_ones(
    served: Served, folder: Folder, name: str, old: dict[str, Any]
) -> None:
    """As an old Secret that was restored."""
    with capture_logs() as logs:
        folder.swap(**old)
        await eventually(lambda: served.metric("tas_tls_reloads_total", result="failed") >= 1)
        assert (await served.ask()).status == 200
        folder.swap(authorities=AUTHORITY.certificate + STRANGER.certificate)
        await eventually(lambda: served.metric("tas_tls_reloads_total", result="loaded") == 1)

    failed, *after = [line for line in logs if line["event"] != "certificate_expiring"]
    # The files may have changed while they were read again: that is one more reason.
    assert (failed["event"], failed["log_level"]) == ("certificates_not_loaded", "error")
    assert failed["error"].startswith(f"--{name} {folder.path / name}: is not valid after 20")
    assert [line["event"] for line in after[-2:]] == ["certificates_loaded", "certificates_recovered"]


async def test_expired_certificates_replace_other_expired_ones(served: Served, folder: Folder) -> None:
    """None of the two is of use; what is in force is what the files have."""
    served.certificates._clock = lambda: time.time() + 36 * HOUR.total_seconds()
    folder.swap(server=AUTHORITY.server("old", lives=HOUR), authorities=AUTHORITY.certificate)
    await eventually(lambda: served.metric("tas_tls_reloads_total", result="loaded") == 1)


async def test_an_expired_authority_beside_a_valid_one_keeps_no_files_out(served: Served, folder: Folder) -> None:
    folder.swap(authorities=Authority("old", lives=-HOUR).certificate + AUTHORITY.certificate)
    await eventually(lambda: served.metric("tas_tls_reloads_total", result="loaded") == 1)
    assert served.metric("tas_tls_reloads_total", result="failed") == 0


async def test_an_expired_certificate_behind_that_of_the_server_keeps_no_files_out(
    served: Served, folder: Folder
) -> None:
    """As one that has signed an authority of today, for clients of before."""
    own = AUTHORITY.server("new")
    chain = own.certificate + Authority("old", lives=-HOUR).certificate
    folder.swap(server=replace(own, certificate=chain), authorities=AUTHORITY.certificate)
    await eventually(lambda: served.metric("tas_tls_reloads_total", result="loaded") == 1)
    assert served.metric("tas_tls_reloads_total", result="failed") == 0


async def test_certificates_that_are_not_valid_yet_replace_expired_ones_and_are_logged(
    served: Served, folder: Folder
) -> None:
    """None of the two is of use now; the new ones become valid by themselves."""
    with capture_logs() as logs:
        served.certificates._clock = lambda: time.time() + 36 * HOUR.total_seconds()
        folder.swap(
            server=AUTHORITY.server("later", begins=48 * HOUR, lives=72 * HOUR), authorities=AUTHORITY.certificate
        )
        await eventually(lambda: served.metric("tas_tls_reloads_total", result="loaded") == 1)
        await eventually(lambda: any(line["event"] == "certificate_not_yet_valid" for line in logs))

    (early,) = [line for line in logs if line["event"] == "certificate_not_yet_valid"]
    assert (early["file"], early["log_level"]) == (f"--cert {folder.path / 'cert'}", "warning")


def test_of_a_chain_the_last_to_become_valid_counts_and_of_authorities_the_first(folder: Folder) -> None:
    first, last = (AUTHORITY.server("extender", begins=hours * HOUR) for hours in (1, 2))
    chain = Pair(certificate=first.certificate + last.certificate, key=first.key)
    folder.swap(server=chain, authorities=last.certificate + first.certificate)
    now = time.time()
    begins = load_tls(folder.files).begins
    assert [round((begins[f"--{name} {folder.path / name}"] - now) / 3600) for name in ("cert", "cacert")] == [2, 1]


async def test_new_contents_are_loaded_after_two_equal_reads(folder: Folder) -> None:
    certificates = Certificates(folder.files)
    both = AUTHORITY.certificate + STRANGER.certificate
    folder.swap(authorities=both)
    await certificates._check_files()
    await certificates._check_files()
    assert len(certificates.current.authorities) == 2

    folder.swap(authorities=AUTHORITY.certificate)  # like the first half of a file that is being written in place
    await certificates._check_files()
    folder.swap(authorities=both)
    await certificates._check_files()
    assert (len(certificates.current.authorities), certificates.epoch) == (2, 0)

    folder.swap(authorities=AUTHORITY.certificate)
    await certificates._check_files()
    await certificates._check_files()
    assert (len(certificates.current.authorities), certificates.epoch) == (1, 1)


@pytest.mark.parametrize("name", ["cert", "key", "cacert"])
async def test_a_missing_file_keeps_the_last_valid_files(served: Served, folder: Folder, name: str) -> None:
    with capture_logs() as logs:
        (folder.path / name).unlink()
        await eventually(lambda: served.metric("tas_tls_reloads_total", result="failed") >= 2)
        assert (await served.ask()).status == 200
    (failed,) = [line for line in logs if line["event"] == "certificates_not_loaded"]
    assert failed["error"] == f"--{name} {folder.path / name}: {os.strerror(2)}"


async def test_a_connection_whose_certificate_expires_is_closed(folder: Folder) -> None:
    later = dt.datetime.now(dt.UTC).timestamp() + 2 * 86400
    async with serving(folder) as served:
        async with served.connect() as idle, served.connect() as asking:
            for connection in (idle, asking):
                await connection.send(request())
                assert "connection" not in (await connection.receive()).headers
            await asking.send(request("/held"))
            await eventually(lambda: served.held == 1)
            served.certificates._clock = lambda: later
            assert await asyncio.wait_for(idle.reader.read(), PATIENCE) == b""
            served.holding.set()
            assert (await asking.receive()).status == 200, "it was being answered"
            assert await asyncio.wait_for(asking.reader.read(), PATIENCE) == b""
        assert served.metric("tas_extender_connections_closed_total", reason="certificate") == 1


async def test_after_its_authority_was_removed_a_request_of_which_a_part_has_arrived_is_answered(
    folder: Folder,
) -> None:
    async with serving(folder) as served, served.connect() as idle, served.connect() as asking:
        for connection in (idle, asking):
            await connection.send(request())
            assert "connection" not in (await connection.receive()).headers
        await asking.send(request()[:20])
        served.certificates.epoch += 1
        assert await asyncio.wait_for(idle.reader.read(), PATIENCE) == b"", "all connections were looked at"
        await asking.send(request()[20:])
        reply = await asking.receive()
        assert (reply.status, reply.headers.get("connection")) == (200, "close")
        assert await asyncio.wait_for(asking.reader.read(), PATIENCE) == b""


async def test_after_its_authority_was_removed_a_request_that_began_behind_another_one_is_answered(
    folder: Folder,
) -> None:
    async with serving(folder) as served, served.connect() as idle, served.connect() as asking:
        await idle.send(request())
        assert "connection" not in (await idle.receive()).headers
        await asking.send(request("/held"))
        await eventually(lambda: served.held == 1)
        await asking.send(request()[:20])
        await served.ask()  # what came before has arrived
        served.holding.set()
        assert "connection" not in (await asking.receive()).headers
        served.certificates.epoch += 1
        assert await asyncio.wait_for(idle.reader.read(), PATIENCE) == b"", "all connections were looked at"
        await asking.send(request()[20:])
        reply = await asking.receive()
        assert (reply.status, reply.headers.get("connection")) == (200, "close")
        assert await asyncio.wait_for(asking.reader.read(), PATIENCE) == b""


async def test_a_request_behind_one_that_takes_long_is_not_late(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if all connections are looked at just between the two."""
    end_request = connections.Connection.end_request

    def end_and_sweep(connection: connections.Connection) -> None:
        end_request(connection)
        connection.sweep(time.monotonic(), Limits(header_seconds=0.5))

    monkeypatch.setattr(connections.Connection, "end_request", end_and_sweep)
    async with serving(folder, header_seconds=0.5) as served, served.connect() as late, served.connect() as asking:
        await asking.send(request("/held"))
        await eventually(lambda: served.held == 1)
        await asking.send(request())
        await late.send(request()[:20])
        assert await asyncio.wait_for(late.reader.read(), PATIENCE) == b"", "the time for a header has passed"
        served.holding.set()
        assert [(await asking.receive()).status for _ in range(2)] == [200, 200]
        assert served.metric("tas_extender_connections_closed_total", reason="header_time") == 1


async def test_after_its_authority_was_removed_a_connection_answers_one_request_and_ends(folder: Folder) -> None:
    """kube-scheduler repeats no request: an error may place a pod without its policy. No sweep ends the connection."""
    renewed = STRANGER.client("system:kube-scheduler")
    async with serving(folder, header_seconds=NEVER, answer_seconds=NEVER) as served, served.connect() as connection:

        async def replace(authorities: bytes) -> None:
            await connection.send(request())
            reply = await connection.receive()
            assert (reply.status, reply.headers.get("connection")) == (200, None)
            folder.swap(authorities=authorities)
            await eventually(lambda: served.certificates.current.contents[2] == authorities)

        await replace(AUTHORITY.certificate + STRANGER.certificate)
        await replace(STRANGER.certificate)

        await connection.send(request() * 2)
        reply = await connection.receive()
        assert (reply.status, reply.headers.get("connection")) == (200, "close")
        assert await asyncio.wait_for(connection.reader.read(), PATIENCE) == b"", "one answer, although two are asked"
        await served.refuses(SCHEDULER)
        assert (await served.ask(renewed)).status == 200


async def test_an_error_of_the_server_is_the_one_answer_after_its_authority_was_removed(folder: Folder) -> None:
    """Of a wrong method or path: aiohttp raises it."""
    async with serving(folder, header_seconds=NEVER, answer_seconds=NEVER) as served, served.connect() as connection:
        await connection.send(request())
        assert "connection" not in (await connection.receive()).headers
        served.certificates.epoch += 1
        await connection.send(request().replace(b"POST", b"PUT", 1))
        reply = await connection.receive()
        assert (reply.status, reply.headers.get("connection")) == (405, "close")
        assert await asyncio.wait_for(connection.reader.read(), PATIENCE) == b""


async def test_a_connection_ends_in_order_just_before_its_certificate_expires(folder: Folder) -> None:
    """The client may have a new certificate, which it presents only in a new connection."""
    async with serving(folder, header_seconds=NEVER, answer_seconds=NEVER) as served, served.connect() as connection:
        await connection.send(request())
        assert "connection" not in (await connection.receive()).headers
        expires = served.metric("tas_tls_remaining_seconds", file="client") + time.time()
        served.certificates._clock = lambda: expires - 3.0
        await connection.send(request())
        reply = await connection.receive()
        assert (reply.status, reply.headers.get("connection")) == (200, "close")
        assert await asyncio.wait_for(connection.reader.read(), PATIENCE) == b""


async def test_a_request_after_its_certificate_has_expired_gets_403(folder: Folder) -> None:
    later = time.time() + 2 * 86400
    async with serving(folder, header_seconds=NEVER, answer_seconds=NEVER) as served, served.connect() as connection:
        await connection.send(request())
        assert (await connection.receive()).status == 200
        served.certificates._clock = lambda: later
        await connection.send(request())
        reply = await connection.receive()
        assert (reply.status, reply.headers["connection"]) == (403, "close")
        assert reply.json == {"error": "client: its certificate has expired"}


async def test_a_missing_handshake_times_out_and_blocks_no_other_client(folder: Folder) -> None:
    async with serving(folder, header_seconds=2.0) as served:
        silent = [await asyncio.open_connection(served.address.host, served.address.port) for _ in range(20)]
        assert (await served.ask()).status == 200
        for reader, writer in silent:
            assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
            writer.close()
        await served.count("gone", 20)
        assert (await served.ask()).status == 200


async def test_a_handshake_byte_by_byte_ends_at_the_same_time(folder: Folder) -> None:
    """Each byte is news, and still the time of the whole handshake counts."""
    async with serving(folder, header_seconds=1.0) as served:
        reader, writer = await asyncio.open_connection(served.address.host, served.address.port)
        sent, ended = 0, asyncio.create_task(reader.read())
        while not ended.done() and sent < PATIENCE * 20:
            writer.write(b"\x16\x03\x01\x3f\xff"[sent : sent + 1] or b"\x01")  # a record of 16 KiB
            sent += 1
            await asyncio.wait([ended], timeout=0.05)
        assert sent < 400, "one a 20th of a second, and the limit of asyncio itself is a minute"
        writer.close()
        await served.count("gone")
        assert (await served.ask()).status == 200


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_huge_chain_of_certificates_is_refused(folder: Folder, version: ssl.TLSVersion) -> None:
    """OpenSSL reads at most 100 KiB of certificates of a peer: the default of `SSL_CTX_set_max_cert_list`."""
    huge = Pair(certificate=SCHEDULER.certificate + STRANGER.certificate * 400, key=SCHEDULER.key)
    async with serving(folder) as served:
        await served.refuses(huge, version=version)
        await served.count("handshake")
        assert (await served.ask()).status == 200


async def test_a_certificate_with_a_name_that_python_cannot_read_is_refused_and_its_connection_forgotten(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    """The handshake itself succeeds: OpenSSL does not read the name. asyncio logs nothing of its own, for each try."""
    key = private_key()
    names = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, b"\x30\x03\x82\x01\xff")
    certificate = (
        AUTHORITY._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "odd")]), key)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(names, critical=False)
        .sign(AUTHORITY._key, hashes.SHA256())
    )
    odd = Pair(certificate=certificate.public_bytes(Encoding.PEM), key=private_pem(key))
    with capture_logs() as logs:
        async with serving(folder) as served:
            await served.refuses(odd)
            await served.count("handshake")
            await eventually(lambda: served.metric("tas_extender_connections") == 0)
            assert (await served.ask()).status == 200
    (line,) = [line for line in logs if line["event"] == "client_refused"]
    assert line["error"].startswith("UnreadableNameError: 'utf-8' codec can't decode byte 0xff")
    assert [record for record in caplog.records if record.name == "asyncio"] == []


async def test_a_client_cannot_ask_for_another_handshake(served: Served) -> None:
    """With TLS 1.2, by the command `R` of `openssl s_client`."""
    folder = served.folder.path.parent
    client_context(folder, SCHEDULER)  # writes the file
    port = served.address.port
    process = await asyncio.create_subprocess_exec(
        *("openssl", "s_client", "-tls1_2", "-connect", f"127.0.0.1:{port}", "-cert", str(folder / "client.pem")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        await process.stdout.readuntil(b"Secure Renegotiation IS supported")
        process.stdin.write(b"R\n")
        text = await process.stdout.readuntil(b"no renegotiation")
        await process.communicate()  # it ends by itself (facts.md n164)
    assert b"RENEGOTIATING" in text
    assert (await served.ask()).status == 200


@pytest.mark.parametrize("message", [KEY_UPDATE, KEY_UPDATE_WITH_ANSWER], ids=["", "answered"])
async def test_key_updates_are_no_request_and_their_connection_is_as_idle_as_a_silent_one(
    folder: Folder, message: bytes
) -> None:
    """OpenSSL takes any number of them (facts.md n164). Others are answered meanwhile."""
    async with serving(folder, idle_seconds=2.0) as served:
        context = client_context(folder.path.parent, SCHEDULER)
        log = folder.path.parent / "keys"
        reader, writer, keys = await key_updates.connected(served.address.host, served.address.port, context, log)
        writer.write(b"".join(keys.key_update(message) for _ in range(1000)) + keys.record(APPLICATION_DATA, request()))
        await reader.readuntil(b"\x17\x03\x03")
        ended = asyncio.create_task(reader.read())
        writer.write(b"".join(keys.key_update(message) for _ in range(50)))  # however soon the server ends it
        assert (await served.ask()).status == 200
        sent = 0
        while not (ended.done() or writer.transport.is_closing()) and sent < 20_000:
            writer.write(keys.key_update(message))
            sent += 1
            await asyncio.wait([ended], timeout=0.005)
        assert sent < 20_000, "20,000 take much longer than an idle connection lasts, so the server has ended it"
        writer.transport.abort()


async def test_the_remaining_time_of_certificates_is_exported_and_logged(folder: Folder) -> None:
    authority = Authority("new")  # as old as this test: that of the module was made when the tests were collected
    folder.swap(server=authority.server("extender", lives=dt.timedelta(hours=6)), authorities=authority.certificate)
    with capture_logs() as logs:
        async with serving(folder) as served:
            assert isnan(served.metric("tas_tls_remaining_seconds", file="client")), "nobody is connected"
            later, soon = [
                authority.client("system:kube-scheduler", lives=dt.timedelta(hours=hours)) for hours in (24, 3)
            ]
            async with (
                served.connect(later, trusts=authority) as scheduler,
                served.connect(soon, trusts=authority) as other,
            ):
                for client in (scheduler, other):
                    await client.send(request())
                    assert (await client.receive()).status == 200
                assert 2 * 3600 < served.metric("tas_tls_remaining_seconds", file="client") <= 3 * 3600
            assert 5 * 3600 < served.metric("tas_tls_remaining_seconds", file="cert") <= 6 * 3600
            assert 23 * 3600 < served.metric("tas_tls_remaining_seconds", file="cacert") <= 24 * 3600
    assert [line["file"] for line in logs if line["event"] == "certificate_expiring"] == ["--cert", "--cacert"]


async def test_of_several_certificates_in_a_file_the_first_to_expire_counts(folder: Folder) -> None:
    authority = Authority("new")  # as old as this test: that of the module was made when the tests were collected
    short, long = (authority.server("extender", lives=dt.timedelta(hours=hours)) for hours in (6, 12))
    chain = Pair(certificate=long.certificate + short.certificate, key=long.key)
    folder.swap(server=chain, authorities=authority.certificate + short.certificate)
    credentials, now = load_tls(folder.files), time.time()
    assert {file: round((seconds - now) / 3600) for file, seconds in credentials.expires.items()} == {
        "cert": 6,
        "cacert": 6,
    }

    def left(file: str, hours: int) -> int:
        at = now + 3600 * hours
        return round((credentials.expiry(file, at) - at) / 3600)

    # A server shows its whole chain; of two authorities one is enough.
    assert [left("cert", hours) for hours in (0, 5, 7)] == [6, 1, -1]
    assert [left("cacert", hours) for hours in (0, 5, 7, 25)] == [6, 1, 17, -1]


OTHER = AUTHORITY.server("other")
P_256, UNKNOWN_CURVE = (bytes.fromhex(f"06082a8648ce3d0301{last}") for last in ("07", "7f"))
UNREADABLE_KEY = ssl.DER_cert_to_PEM_cert(
    ssl.PEM_cert_to_DER_cert(SERVER.certificate.decode()).replace(P_256, UNKNOWN_CURVE)
).encode()
"""The certificate of the server with a curve that nobody knows."""


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"key": OTHER.key}, r"^--key .*/key: is not the key of --cert .*/cert$"),
        ({"key": b""}, r"^--key .*/key: no private key in PEM: [^/]+$"),
        ({"key": SERVER.certificate}, r"^--key .*/key: no private key in PEM: "),
        ({"server": Pair(certificate=b"nothing", key=SERVER.key)}, r"^--cert .*/cert: no certificates in PEM: [^/]+$"),
        ({"server": Pair(certificate=UNREADABLE_KEY, key=SERVER.key)}, r"^--cert .*/cert: has a key .* unreadable: C"),
        ({"authorities": b""}, r"^--cacert .*/cacert: no certificates in PEM: "),
        ({"authorities": AUTHORITY.certificate[:-40]}, r"^--cacert .*/cacert: no certificates in PEM: "),
    ],
    ids=["another's key", "empty key", "no key", "no certificate", "curve", "no authority", "half an authority"],
)
def test_invalid_files_are_an_error_with_file_and_reason(tmp_path: Path, files: dict[str, object], words: str) -> None:
    folder = Folder(tmp_path / "certificates")
    folder.swap(**{"authorities": AUTHORITY.certificate, **files})  # type: ignore[arg-type]
    with pytest.raises(TlsError, match=words):
        Certificates(folder.files)


def test_files_that_change_while_they_are_read_are_not_used(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    read, times = TlsFiles.read, []

    def replaced_between(files: TlsFiles) -> tuple[bytes, bytes, bytes]:
        times.append(1)
        if len(times) == 2:
            folder.swap(authorities=STRANGER.certificate)
        return read(files)

    monkeypatch.setattr(TlsFiles, "read", replaced_between)
    with pytest.raises(TlsError, match="the files changed while they were read"):
        load_tls(folder.files)


def test_an_encrypted_key_is_refused_without_a_password_prompt(folder: Folder) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(SERVER.key, None)
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    folder.swap(key=secret, authorities=AUTHORITY.certificate)
    with pytest.raises(TlsError, match="is encrypted: must be unencrypted"):
        Certificates(folder.files)
