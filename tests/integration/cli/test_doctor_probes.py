"""The requests of `tas doctor` to an extender, with the certificates of a scheduler, over real connections."""

import datetime as dt
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from bus import server as embedded
from bus.connection import Bus
from cli.doctor.bus_facts import Stored, read_bus
from cli.doctor.extender_probe import ExtenderRead, read_extender
from cli.doctor.monitors import monitored as monitored_by
from cli.doctor.scheduler_files import Tls
from tas.diagnosis.bus import BusFacts
from tas.diagnosis.clocks import Offset
from tas.diagnosis.extender import Distrust, Reach, Request
from tas.diagnosis.finding import Missing
from tas.diagnosis.url import Url
from tests.certificates import Authority, Pair
from tests.e2e.processes import free_ports
from tests.integration.cli.tas import Tas
from tests.integration.servers import Server
from workers.http.address import Address
from workers.http.tls import load_tls
from workers.http.tls_files import TlsFiles
from workers.runtime import version_route

DAY = dt.timedelta(days=1)


@asynccontextmanager
async def serving(
    app: web.Application, server: Pair | None, clients: Authority | None, folder: Path
) -> AsyncIterator[Url]:
    """Serves by HTTPS with the TLS of the extender, or by HTTP."""
    context = None
    if server is not None and clients is not None:
        files = TlsFiles(cert=folder / "s.crt", key=folder / "s.key", cacert=folder / "clients.crt")
        files.cert.write_bytes(server.certificate)
        files.key.write_bytes(server.key)
        (folder / "clients.crt").write_bytes(clients.certificate)
        context = load_tls(files).context
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        port = runner.addresses[0][1]
        yield Url("http" if context is None else "https", "127.0.0.1", port)
    finally:
        await runner.cleanup()


def extender(**headers: str) -> web.Application:
    app = web.Application()
    app.add_routes([version_route()])

    async def add(_request: web.Request, response: web.StreamResponse) -> None:
        response.headers.pop("Server", None)  # as the extender does
        response.headers.update(headers)

    app.on_response_prepare.append(add)
    return app


def tls_of(folder: Path, authority: Authority | None, client: Pair | None, server_name: str | None = None) -> Tls:
    """The files of a scheduler."""
    if client is not None:
        (folder / "c.crt").write_bytes(client.certificate)
        (folder / "c.key").write_bytes(client.key)
    return Tls(
        authority=None if authority is None else authority.certificate.decode(),
        cert=None if client is None else folder / "c.crt",
        key=None if client is None else folder / "c.key",
        server_name=server_name,
    )


async def asked(url: Url, tls: Tls | None) -> ExtenderRead:
    (unused,) = free_ports(1)
    return await read_extender(url, tls, Address("127.0.0.1", unused), is_guess=False)


async def request_of(url: Url, tls: Tls | None) -> Request:
    request = (await asked(url, tls)).request
    assert isinstance(request, Request)
    return request


async def test_an_extender_answers_a_scheduler_with_its_certificates(tmp_path: Path) -> None:
    ca = Authority("ca")
    async with serving(extender(), ca.server("tas"), ca, tmp_path) as url:
        found = await asked(url, tls_of(tmp_path, ca, ca.client("scheduler")))
    assert isinstance(found.request, Request)
    assert (found.request.reach, found.request.ours, found.request.verifies, found.request.presented) == (
        Reach.ANSWERED,
        True,
        True,
        True,
    )
    assert isinstance(found.clock, Offset)
    assert found.clock.least < 60
    assert isinstance(found.unready, Missing)
    assert found.unready.mend


WRONG: dict[str, Callable[[Authority, Authority, Path], tuple[Pair, Tls, Reach | Distrust, str]]] = {
    "another CA": lambda ca, other, folder: (
        ca.server("tas"),
        tls_of(folder, other, ca.client("s")),
        Distrust.ISSUER,
        "certificate",
    ),
    "another host": lambda ca, _, folder: (
        ca.server("tas", dns=("elsewhere",), ips=()),
        tls_of(folder, ca, ca.client("s")),
        Distrust.NAME,
        "IP address mismatch",
    ),
    "another serverName": lambda ca, _, folder: (
        ca.server("tas"),
        tls_of(folder, ca, ca.client("s"), server_name="elsewhere"),
        Distrust.NAME,
        "Hostname mismatch",
    ),
    "expired": lambda ca, _, folder: (
        ca.server("tas", lives=-DAY),
        tls_of(folder, ca, ca.client("s")),
        Distrust.DATES,
        "expired",
    ),
    "no certificate": lambda ca, _, folder: (ca.server("tas"), tls_of(folder, ca, None), Reach.REFUSED, ""),
    "an untrusted certificate": lambda ca, other, folder: (
        ca.server("tas"),
        tls_of(folder, ca, other.client("s")),
        Reach.REFUSED,
        "",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
async def test_certificates_that_do_not_match_are_found(fault: str, tmp_path: Path) -> None:
    ca, other = Authority("ca"), Authority("other")
    server, tls, wrong, reason = WRONG[fault](ca, other, tmp_path)
    async with serving(extender(), server, ca, tmp_path) as url:
        found = await request_of(url, tls)
    if isinstance(wrong, Distrust):
        assert (found.reach, found.distrust) == (Reach.UNTRUSTED, wrong), found
    else:
        assert found.reach is wrong, found
    assert reason in found.reason
    assert found.reason
    # Whoever signed a certificate, its end is seen.
    assert found.expires is not None
    assert (found.expires < time.time()) is (wrong is Distrust.DATES)
    assert (found.client_expires is None) is (tls.cert is None)


async def test_without_a_ca_the_certificate_is_not_verified_and_its_end_is_seen(tmp_path: Path) -> None:
    ca = Authority("ca")
    async with serving(extender(), ca.server("tas"), ca, tmp_path) as url:
        found = await request_of(url, tls_of(tmp_path, None, ca.client("scheduler")))
    assert (found.reach, found.verifies) == (Reach.ANSWERED, False)
    assert found.expires is not None
    assert abs(found.expires - time.time() - 86400) < 3600


async def test_a_proxy_and_another_program_are_seen(tmp_path: Path) -> None:
    async with serving(extender(Via="1.1 squid"), None, None, tmp_path) as url:
        found = await request_of(url, None)
        assert (found.ours, found.via) == (True, "Via: 1.1 squid")
    # Common proxies name only themselves, and put their own time into the answer.
    async with serving(extender(Server="nginx/1.22.1"), None, None, tmp_path) as url:
        read = await asked(url, None)
        assert isinstance(read.request, Request)
        assert (read.request.ours, read.request.via) == (True, "Server: nginx/1.22.1")
        assert isinstance(read.clock, Missing)
    async with serving(web.Application(), None, None, tmp_path) as url:
        found = await request_of(url, None)
        assert (found.reach, found.ours) == (Reach.ANSWERED, False)


async def test_another_program_that_forbids_is_no_extender(tmp_path: Path) -> None:
    async def forbidden(_request: web.Request) -> web.Response:
        return web.json_response({"reason": "ask somebody else"}, status=403)

    app = web.Application()
    app.add_routes([web.get("/version", forbidden)])
    async with serving(app, None, None, tmp_path) as url:
        found = await request_of(url, None)
    assert (found.reach, found.ours) == (Reach.ANSWERED, False)


async def test_nested_json_of_another_program_is_no_crash(tmp_path: Path) -> None:
    async def nested(_request: web.Request) -> web.Response:
        return web.Response(text="[" * 100_000, content_type="application/json")

    app = web.Application()
    app.add_routes([web.get(path, nested) for path in ("/version", "/readyz", "/answers")])
    async with serving(app, None, None, tmp_path) as url:
        found = await read_extender(url, None, Address(url.host, url.port), is_guess=False)
    assert isinstance(found.request, Request)
    assert not found.request.ours
    assert isinstance(found.unready, Missing)
    assert isinstance(found.asked, Missing)


async def test_a_host_that_cannot_exist_is_a_reason() -> None:
    for scheme in ("http", "https"):
        found = (await asked(Url(scheme, "a..b", 9001), None)).request
        reason = found.reason if isinstance(found, Missing | Request) else ""
        assert reason


async def test_nobody_listens_and_a_name_that_is_not_known() -> None:
    (unused,) = free_ports(1)
    found = await request_of(Url("http", "127.0.0.1", unused), None)
    assert (found.reach, found.reason) == (Reach.FAILED, f"cannot connect to 127.0.0.1:{unused}: Connection refused")
    address = Address("127.0.0.1", unused)
    guessed = (await read_extender(Url("http", "127.0.0.1", unused), None, address, is_guess=True)).request
    assert isinstance(guessed, Missing)
    assert "where the scheduler asks is not known" in guessed.reason
    unknown = (await asked(Url("http", "tas.invalid", 9001), None)).request
    assert isinstance(unknown, Missing)
    assert "the name tas.invalid is not known here" in unknown.reason


async def test_files_that_are_no_certificates_are_a_reason(tmp_path: Path) -> None:
    (tmp_path / "c.crt").write_text("no certificate")
    tls = Tls(authority=None, cert=tmp_path / "c.crt", key=tmp_path / "c.crt", server_name=None)
    found = (await asked(Url("https", "127.0.0.1", 1), tls)).request
    assert isinstance(found, Missing)
    assert found.reason.startswith("the certificates of the scheduler cannot be used: ")


async def test_the_health_port_reports_workers_and_answers(tmp_path: Path) -> None:
    async def readyz(_request: web.Request) -> web.Response:
        return web.json_response({"workers": {"extender": "no complete list yet", "materialize": None}}, status=503)

    async def answers(_request: web.Request) -> web.Response:
        answer = {"time": 1.0, "verb": "filter", "namespace": "default", "pod": "web"}
        return web.json_response([answer, answer | {"verb": "prioritize"}])

    app = web.Application()
    app.add_routes([web.get("/readyz", readyz), web.get("/answers", answers), version_route()])
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(app, None, None, tmp_path))
        found: Awaitable[ExtenderRead] = read_extender(url, None, Address(url.host, url.port), is_guess=True)
        read = await found
    unready, last = read.unready, read.asked
    assert read.health == str(url)
    assert unready == {"extender": "no complete list yet"}
    assert not isinstance(last, Missing)
    assert [(each.pod, each.status) for each in last] == [("web", 200)]


@asynccontextmanager
async def monitored(folder: Path, setting: str) -> AsyncIterator[tuple[str, str]]:
    """A nats-server with a monitoring port: the address of the bus, and the URL of the port."""
    port, monitor = free_ports(2)
    store = embedded._prepare(folder / "store")
    config = f"""
        listen: "127.0.0.1:{port}"
        http: "127.0.0.1:{monitor}"
        jetstream {{ store_dir: "{store}", max_file_store: {8 << 30}, {setting} }}
    """
    lock = await embedded._lock(store)
    try:
        process = await embedded._spawn(await embedded.find_binary(), store, lock, config)
    finally:
        os.close(lock)
    try:
        yield f"nats://127.0.0.1:{port}", f"http://127.0.0.1:{monitor}"
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize(("setting", "is_synced"), [("sync_interval: always", True), ("sync_interval: '1m'", False)])
async def test_facts_n33_the_monitoring_port_says_whether_each_write_is_synced(
    setting: str, is_synced: bool, tmp_path: Path
) -> None:
    async with monitored(tmp_path, setting) as (address, monitor), Bus.connect(address, name="t") as bus:
        await bus.wait_connected()
        found = await monitored_by(await read_bus(bus, embedded=False), [monitor])
        assert isinstance(found.bus, BusFacts)
        assert found.bus.sync is is_synced
        assert (found.bus.absent, found.bus.wrong, found.bus.cluster) == ([], [], "")
        assert found.bus.version.startswith("2.")
        assert set(found.bus.copies.values()) == {1}
        assert isinstance(found.clock, Offset)
        assert found.clock.least < 1
        assert isinstance(found.stored, Stored)
        assert found.stored == Stored([], {}, {}, {}, frozenset(), None, at=found.stored.at)
        # Of the default port of a server that is not ours nothing is believed.
        other = await monitored_by(await read_bus(bus, embedded=False), [])
        assert isinstance(other.bus, BusFacts)
        assert isinstance(other.bus.sync, Missing)
        assert "--bus-monitor" in other.bus.sync.mend


async def test_each_monitoring_port_that_is_given_is_asked(tas: Tas, tmp_path: Path) -> None:
    (unused,) = free_ports(1)
    silent = f"http://127.0.0.1:{unused}"
    async with monitored(tmp_path, "sync_interval: always") as (address, monitor):

        async def asked(*flags: str) -> str:
            done = await tas("doctor", "--json", "--bus", address, *flags)
            (found,) = (each for each in done.json if each["check"] == "bus.sync")
            return f"{found['severity']}: {found['what']}"

        # The last flag alone would say that all is well.
        assert f"does not answer at {silent}" in await asked("--bus-monitor", silent, "--bus-monitor", monitor)
        assert f"does not answer at {silent}" in await asked("--bus-monitor", f"{monitor}, {silent}")
        assert (await asked("--bus-monitor", monitor)).startswith("ok: ")
        refused = await tas("doctor", "--bus", address, "--bus-monitor", "127.0.0.1:8222")
        assert (refused.code, "'127.0.0.1:8222': must be a URL such as http://HOST:8222" in refused.err) == (2, True)


async def test_a_bus_without_our_streams_is_seen(new_server: Server) -> None:
    async with Bus.connect(new_server.url, name="t", streams=()) as bus:
        await bus.wait_connected()
        found = await read_bus(bus, embedded=True)
        assert isinstance(found.bus, BusFacts)
        assert "SAMPLES" in found.bus.absent
        assert isinstance(found.clock, Missing)
        assert isinstance(found.stored, Missing)


async def test_without_a_bus_and_a_cluster_every_other_check_says_so(tas: Tas, tmp_path: Path) -> None:
    tas.long_limits = False  # nobody is waited for
    bus, listen, health = (f"127.0.0.1:{port}" for port in free_ports(3))
    flags = ("--bus", f"nats://{bus}", "--listen", listen, "--extender-health", health)
    done = await tas("doctor", "--json", *flags, "--manifest", str(tmp_path / "absent.yaml"))
    assert done.code == 1, done.err
    found = {each["check"]: each["severity"] for each in done.json}
    assert {check for check, severity in found.items() if severity == "error"} == {"bus.reached"}
    assert set(found.values()) == {"error", "unknown"}
    assert {"scheduler.configured", "extender.reached", "metrics.present", "rights.accounts"} <= set(found)
