"""`tas doctor` where something is in between: proxies, a Service, other clocks, and sources and certificates that end.

The real nats-server and API server take the clock of the machine, and are in Go, which no library can give another one.
So a program in between changes the times in their answers. `tas doctor` itself gets another clock from libfaketime.
"""

import asyncio
import base64
import datetime as dt
import json
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bus.buckets import SOURCES
from bus.connection import Bus
from cli.doctor.service import address_of
from tas.diagnosis.service import NoService, ServiceName
from tests.certificates import Authority
from tests.forks import ForkedProcess
from tests.integration.servers import answered, eventually
from tests.kubernetes.admin import Admin
from workers.kubernetes.client import KubernetesClient

from .adapter import AggregatedAdapter
from .between import ReverseProxy, other_clock, refusing_proxy, reverse_proxy
from .cluster import NODES, Cluster
from .installation import METRIC, SERVICE, UNREACHED, Findings, Installation
from .processes import running

AHEAD = 30.0
BUS_AHEAD = 15.0
"""`other_clock` shifts the clock of a server, and not the times of what is stored there: with 30 s no process would
seem to run any more."""
FAKETIME = [str(path) for path in Path("/usr/lib").glob("*/faketime/libfaketime.so.1")]
OTHER_TIME = ("clocks.api_server", "clocks.bus", "clocks.extender")


def serving(folder: Path, certificate: bytes, key: bytes) -> ssl.SSLContext:
    """The TLS of a server with this certificate."""
    (folder / "proxy.crt").write_bytes(certificate)
    (folder / "proxy.key").write_bytes(key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "proxy.crt", folder / "proxy.key")
    return context


def administrator(kubeconfig: Path, folder: Path) -> ssl.SSLContext:
    """The TLS of the user of a kubeconfig."""
    document = json.loads(kubeconfig.read_text())
    user, cluster = document["users"][0]["user"], document["clusters"][0]["cluster"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    for name in ("certificate", "key"):
        (folder / f"admin.{name}").write_bytes(base64.b64decode(user[f"client-{name}-data"]))
    context.load_cert_chain(folder / "admin.certificate", folder / "admin.key")
    return context


@asynccontextmanager
async def proxied_extender(site: Installation, folder: Path) -> AsyncIterator[ReverseProxy]:
    """A proxy with the certificate of the extender, at which the scheduler asks meanwhile."""
    files = site.files.folder
    server = serving(folder, (files / "tls.crt").read_bytes(), (files / "tls.key").read_bytes())
    text = site.config.read_text()
    async with reverse_proxy(site.product.url, client=site.files.client(), server=server) as proxy:
        site.change_entry(urlPrefix=f"{proxy.url}/scheduler")
        try:
            yield proxy
        finally:
            site.config.write_text(text)


async def test_a_proxy_in_front_of_the_extender(site: Installation, tmp_path: Path) -> None:
    await site.has()
    async with proxied_extender(site, tmp_path) as proxy:
        await site.has()  # nobody can see it
        for headers, via in (
            ({"Via": "1.1 squid"}, "Via: 1.1 squid"),
            ({"Server": "nginx/1.22.1"}, "Server: nginx/1.22.1"),
        ):
            proxy.headers = headers
            found = await site.has("proxy.extender", "clocks.extender")
            assert found["proxy.extender"][0]["what"].endswith(f"answers through a proxy: {via}")
            # A proxy may put its own time into the answer.
            assert found["clocks.extender"][0]["severity"] == "unknown"
        via_found = found["proxy.extender"][0]
        proxy.status = HTTPStatus.BAD_GATEWAY
        nobody = ("extender.client", "proxy.extender", "clocks.extender")
        found = await site.has("extender.reached", *nobody)
        assert found["extender.reached"][0]["severity"] == "error"
        assert "(code 502, Server: nginx/1.22.1)" in found["extender.reached"][0]["what"]
        assert "502 Bad Gateway" in await asyncio.to_thread(site.run, found["extender.reached"][0]["run"])
        assert {found[check][0]["severity"] for check in nobody} == {"unknown"}
        # The proxy forbids, not the extender: the certificate of the scheduler is not to blame.
        proxy.status = HTTPStatus.FORBIDDEN
        found = await site.has("extender.reached", *nobody)
        assert found["extender.client"][0]["severity"] == "unknown"
        # The command of the finding leads the scheduler past the proxy.
        run = via_found["run"].replace("https://HOST:9001", site.product.url)
        site.configure(run)
        await site.has()
    await site.has()


async def test_a_proxy_that_lets_nobody_through(site: Installation) -> None:
    elsewhere = site.kubeconfig_at("kubernetes.default.svc:6443")
    async with refusing_proxy() as url:
        found = await site.doctor("--kubeconfig", str(elsewhere), HTTPS_PROXY=url)
    assert found["cluster.reached"][0]["severity"] == "error"
    # The API server does not answer, and the proxy is why.
    assert found["proxy.here"][0]["severity"] == "warning"
    assert found["proxy.here"][0]["run"] == "export NO_PROXY=kubernetes.default.svc"


async def test_a_service_whose_name_only_the_cluster_knows(site: Installation) -> None:
    await site.has()
    text, port = site.config.read_text(), site.product.url.rpartition(":")[2]
    services = "/api/v1/namespaces/telemetry-aware-scheduling/services"
    site.change_entry(urlPrefix=f"https://{SERVICE}:{port}/scheduler")
    unknown = ("extender.expires", *UNREACHED)
    found = await site.has("extender.reached", *unknown)
    what = f"https://{SERVICE}:{port}: the cluster has no Service telemetry-aware-scheduling/tas-service"
    assert (found["extender.reached"][0]["severity"], found["extender.reached"][0]["what"]) == ("error", what)
    for spec, reason in (
        ({"ports": [{"port": int(port)}]}, "the Service telemetry-aware-scheduling/tas-service has no ready endpoint"),
        # Where it leads to a machine that is known here, all checks are made, with the name in the certificate.
        ({"type": "ExternalName", "externalName": "localhost"}, ""),
    ):
        site.cluster.api.create(services, {"metadata": {"name": "tas-service"}, "spec": spec})
        found = await site.has(*(["extender.reached", *unknown] if reason else []))
        assert not reason or found["extender.reached"][0]["what"].endswith(reason)
        site.cluster.api.delete(f"{services}/tas-service")
    # Somebody who may not read Services: how to reach it nevertheless.
    nobody = site.cluster.kubeconfig_for("nobody", "system:authenticated")
    found = await site.doctor("--kubeconfig", str(nobody))
    assert found["extender.reached"][0]["severity"] == "unknown"
    assert "forbidden" in found["extender.reached"][0]["what"]
    site.config.write_text(text)
    await site.has()


async def test_the_address_of_a_service(cluster: Cluster, namespace: str, client: KubernetesClient) -> None:
    """Only read: nothing on this machine has such an address."""
    name = ServiceName(namespace, "extender")
    for address, ports in (("10.96.7.7", [9001]), ("None", [])):
        spec = {"clusterIP": address, "ports": [{"port": port} for port in ports]}
        cluster.api.create(f"/api/v1/namespaces/{namespace}/services", {"metadata": {"name": "extender"}, "spec": spec})
        assert await address_of(client, name, 9001) == NoService(f"the Service {name} has no ready endpoint")
        endpoints = [{"addresses": [f"192.0.2.{number}"], "conditions": {"ready": number == 2}} for number in (1, 2)]
        labels = {"kubernetes.io/service-name": "extender"}
        slices = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        metadata = {"name": "extender-1", "labels": labels}
        cluster.api.create(slices, {"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints})
        assert await address_of(client, name, 9001) == (address if ports else "192.0.2.2")
        if ports:
            assert await address_of(client, name, 443) == NoService(f"the Service {name} has no port 443, but 9001")
        cluster.api.delete(f"{slices}/extender-1")
        cluster.api.delete(f"/api/v1/namespaces/{namespace}/services/extender")


async def test_other_clocks(site: Installation, tmp_path: Path) -> None:
    await site.has()
    async with proxied_extender(site, tmp_path) as proxy:
        proxy.ahead = AHEAD
        assert_ahead(await site.has("clocks.extender"), "clocks.extender")
    async with other_clock(site.nats.url, BUS_AHEAD) as address:
        assert_ahead(await site.has("clocks.bus", flags=("--bus", address)), "clocks.bus")
    authority = Authority("proxy")
    pair = authority.server("proxy")
    server = serving(tmp_path, pair.certificate, pair.key)
    client = administrator(site.cluster.kubeconfig, tmp_path)
    async with reverse_proxy(site.cluster.url, client=client, server=server) as proxy:
        kubeconfig = site.kubeconfig_at(proxy.url.removeprefix("https://"), authority.certificate)
        await site.has(flags=("--kubeconfig", str(kubeconfig)))
        proxy.ahead = AHEAD
        found = await site.has("clocks.api_server", flags=("--kubeconfig", str(kubeconfig)))
        assert_ahead(found, "clocks.api_server")
    await site.has()


def assert_ahead(found: Findings, check: str) -> None:
    (one,) = found[check]
    assert one["severity"] == "error"
    assert " s ahead of this machine" in one["what"]
    assert "of the machine that is wrong" in one["mend"]


@pytest.mark.skipif(not FAKETIME, reason="needs libfaketime, of the Debian package faketime")
async def test_the_clock_of_this_machine(site: Installation) -> None:
    """Samples are judged by the clock of the bus: by that of this machine all would be stale."""
    found = await site.has(*OTHER_TIME, LD_PRELOAD=FAKETIME[0], FAKETIME="+40m", FAKETIME_DONT_FAKE_MONOTONIC="1")
    for check in OTHER_TIME:
        assert found[check][0]["severity"] == "error"
        assert " s behind this machine" in found[check][0]["what"]
        assert "of this machine, where tas doctor runs" in found[check][0]["mend"]
    await site.has()


def expire(certificate: Path, authority_key: Path) -> bytes:
    """Replaces a certificate of `tas certs` by one for the same key that expired a day ago, and returns it."""
    old = x509.load_pem_x509_certificate(certificate.read_bytes())
    signer = serialization.load_pem_private_key(authority_key.read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=9))
        .not_valid_after(now - dt.timedelta(days=1, hours=1))
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, critical=extension.critical)
    expired = builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    temporary = certificate.with_name("temporary")
    temporary.write_bytes(expired)
    temporary.rename(certificate)
    return expired


async def test_certificates_that_have_expired(site: Installation) -> None:
    await site.has()
    folder = site.files.folder
    # That of the extender: the scheduler refuses. An extender that runs would keep its valid one.
    expire(folder / "tls.crt", folder / "ca.key")
    site.product.process.restart()
    found = await site.has("extender.asked", "extender.expires", *UNREACHED)
    assert found["extender.expires"][0]["what"] == "the certificate of the extender expired 1 day ago"
    assert {found[check][0]["severity"] for check in ("extender.expires", "extender.ca")} == {"error"}
    assert "expired" in found["extender.ca"][0]["what"]
    site.run(found["extender.ca"][0]["run"].replace("DIR", str(folder)))
    await site.has("extender.asked")
    site.delete("pods", "--all")
    await site.has()
    # That of the scheduler: the extender refuses.
    (site.certificates / "client.crt").write_bytes(expire(folder / "client.crt", folder / "ca.key"))
    found = await site.has("extender.client", "extender.expires", "clocks.extender", "proxy.extender")
    assert {found[check][0]["severity"] for check in ("extender.expires", "extender.client")} == {"error"}
    assert "whose certificate has expired" in found["extender.client"][0]["what"]
    assert found["extender.client"][0]["mend"].startswith("renew the certificate, then run tas configure")
    site.run(found["extender.client"][0]["run"].replace("DIR", str(folder)))
    site.configure("tas configure -cert client.crt -key client.key --cacert ca.crt")
    await site.has()


class Prometheus:
    """Answers instant queries well, by an error, never, or without a series ("dry")."""

    def __init__(self) -> None:
        self.url = ""
        self._mode = "well"
        self._changed = asyncio.Event()

    def answers(self, mode: str) -> None:
        """From now on; requests without an answer get one."""
        self._mode = mode
        self._changed.set()
        self._changed = asyncio.Event()

    async def answer(self, _request: web.Request) -> web.Response:
        while self._mode == "never":
            await self._changed.wait()
        if self._mode == "error":
            return web.Response(status=500, text="storage is broken")
        series = [{"metric": {"node": node}, "value": [time.time(), "0"]} for node in NODES]
        result = [] if self._mode == "dry" else series
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})


@asynccontextmanager
async def instant_queries() -> AsyncIterator[Prometheus]:
    """Runs it."""
    prometheus = Prometheus()
    app = web.Application()
    app.router.add_route("*", "/api/v1/query", prometheus.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        prometheus.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield prometheus
    finally:
        await runner.cleanup()


@contextmanager
def collecting(site: Installation, *sources: str) -> Iterator[None]:
    """Runs `collect` beside the workers."""
    flags = [word for source in sources for word in ("--source", source)]
    bus = ("--bus", site.nats.url, "--kubeconfig", str(site.cluster.kubeconfig), "--health-listen", "127.0.0.1:0")
    period = ("--period", "200ms")  # pauses after failures are multiples of it
    command = ["-m", "cli", "run", "collect", *bus, *flags, *period]
    env = site.environment()
    with running("tas-collect", command, folder=site.cluster.folder, env=env, kind=ForkedProcess):
        yield


async def forget(site: Installation, source: str) -> None:
    """Nobody configures this source any more: its state would expire after an hour."""
    unattended = f"{source} is unattended: no replica of collect polls it"
    await site.has("metrics.sources", saying={"metrics.sources": (unattended,)})
    async with Bus.connect(site.nats.url, name="test", streams=()) as bus:
        await bus.wait_connected()
        await answered(partial(bus.api, f"STREAM.PURGE.{SOURCES.stream}", {"filter": SOURCES.subject(source)}))
    await site.has()


async def is_healthy(site: Installation, source: str) -> bool:
    return (await site.sources()).get(source) == "healthy"


async def test_a_prometheus_that_fails_hangs_or_is_dry(site: Installation) -> None:
    await site.has()
    async with instant_queries() as prometheus:
        with collecting(site, f"prometheus={prometheus.url}"):
            for mode, reason in (
                ("dry", "no fresh value of any metric that policies use"),
                ("error", "with status 500"),
                ("never", "no answer within"),
            ):
                prometheus.answers(mode)
                saying = {"metrics.sources": ("prometheus is failing", reason)}
                (found,) = (await site.has("metrics.sources", saying=saying))["metrics.sources"]
                assert (found["severity"], found["run"]) == ("error", "tas get sources")
            assert "failing" in await asyncio.to_thread(site.run, "tas get sources")
            prometheus.answers("well")
            await eventually(partial(is_healthy, site, "prometheus"))
            await site.has()
    await forget(site, "prometheus")


async def test_a_custom_metrics_api_that_does_not_answer(site: Installation, admin: Admin, tmp_path: Path) -> None:
    await site.has()
    async with AggregatedAdapter.start(admin, tmp_path) as adapter:
        await adapter.serve("v1beta2")
        for node in NODES:
            adapter.metrics.set(METRIC, node, "0")
        with collecting(site, "custom-metrics"):
            await eventually(partial(is_healthy, site, "custom-metrics"))
            await site.has()
            adapter.down = True
            failing = ("custom-metrics is failing", "503")
            await site.has("metrics.sources", saying={"metrics.sources": failing})
            # A metric that nobody has: it is not known whether the custom metrics API has it.
            rules = [{"metricname": "nobodys", "operator": "LessThan"}]
            site.patch_policy({"strategies": {"scheduleonmetric": {"rules": rules}}})
            unknown = "which metrics the custom metrics API has is not known: "
            await site.has("metrics.present", "metrics.sources", saying={"metrics.present": (unknown,)})
            site.patch_policy({"strategies": {"scheduleonmetric": None}})
            adapter.down = False
            await eventually(partial(is_healthy, site, "custom-metrics"))
            await site.has()
    await forget(site, "custom-metrics")
