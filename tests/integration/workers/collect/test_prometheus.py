"""The source Prometheus over HTTP: recorded responses of a real server, and faults."""

import asyncio
import base64
import json
import os
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bus.connection import Bus
from tas.sources.prometheus import query_of, read_answer
from tas.sources.result import RefusalReason, SourceResult, scrapes
from tas.sources.series import MetricMapping
from tas.values.quantity import format_quantity
from tests.certificates import Authority, Pair
from tests.e2e.processes import free_ports
from tests.integration.servers import eventually
from tests.integration.workers.collecting import World, collecting, polled
from tests.sources import writing
from tests.sources.answers import QUERIES, Answer, SimulatedPrometheus, golden, simulated_prometheus
from tests.sources.writing import series
from workers.collect.sources import config, prometheus
from workers.collect.sources.base import LARGE_BYTES, Reader, SourceError
from workers.collect.sources.config import ConfigFile
from workers.collect.sources.prometheus import MAX_CONCURRENT_QUERIES, Prometheus
from workers.collect.sources.remote_write import RemoteWrite
from workers.http.address import Address
from workers.process.errors import StartError
from workers.samples.source_spec import SourceKind

HEALTH = QUERIES["vector"]
LONG = 120.0


@pytest.fixture
async def simulated() -> AsyncIterator[SimulatedPrometheus]:
    async with simulated_prometheus() as simulated:
        simulated.answers[HEALTH] = golden("vector")
        yield simulated


@asynccontextmanager
async def source(
    url: str, configuration: Path | None = None, *, seconds: float = LONG
) -> AsyncIterator[Callable[..., Awaitable[SourceResult]]]:
    """A function that polls the source for metrics."""
    asked = Prometheus("prometheus", url, ConfigFile.load(configuration, sources={"prometheus"}), query_seconds=seconds)
    try:
        yield lambda *metrics: asked.read(frozenset(metrics))
    finally:
        await asked.close()


def values(result: SourceResult) -> dict[tuple[str, str], str]:
    return {(each.metric, each.node): format_quantity(each.value) for each in result.samples}


def written(path: Path, **fields: object) -> Path:
    """A file with a source configuration, replaced atomically."""
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(fields))
    return unfinished.rename(path)


async def test_each_metric_has_its_own_query(simulated: SimulatedPrometheus) -> None:
    simulated.answers[QUERIES["two-names"]] = golden("two-names")
    async with source(f"{simulated.url}/prefix/") as read:
        result = await read("health_metric", "load", "nothing")
    assert values(result) == {("health_metric", "node-1"): "2", ("load", "node-1"): "0.7"}
    assert set(result.missing) == {"nothing"}
    assert sorted(asked["query"] for asked in simulated.asked) == sorted(
        [HEALTH, QUERIES["two-names"], QUERIES["empty"]]
    )
    assert {(asked["path"], asked["timeout"], asked["lookback_delta"]) for asked in simulated.asked} == {
        ("/prefix/api/v1/query", f"{LONG:g}s", "120s")
    }


async def test_concurrent_queries_are_limited(simulated: SimulatedPrometheus) -> None:
    metrics = [f"metric_{number}" for number in range(5 * MAX_CONCURRENT_QUERIES)]
    together = asyncio.Barrier(MAX_CONCURRENT_QUERIES)

    async def answer() -> web.Response:
        await together.wait()
        return web.Response(body=golden("empty").body)

    for metric in metrics:
        simulated.answers[query_of(metric, MetricMapping())] = answer
    async with source(simulated.url) as read:
        result = await read(*metrics)
    assert all("no value from the query" in why for why in result.missing.values())
    assert simulated.most_at_once == MAX_CONCURRENT_QUERIES


async def test_the_largest_cluster_is_read(simulated: SimulatedPrometheus) -> None:
    all_series = [
        {"metric": {"__name__": "node_load", "instance": f"node-{number}:9100"}, "value": [1767225600.5, f"0.{number}"]}
        for number in range(15_000)
    ]
    body = {"status": "success", "data": {"resultType": "vector", "result": all_series}}
    simulated.answers[QUERIES["two-names"]] = Answer(json.dumps(body).encode())
    async with source(simulated.url) as read:
        result = await read("load", "health_metric")
    assert len(result.samples) == 15_001
    assert values(result)["load", "node-14999"] == "0.14999"


class Ending:
    """Ends polls whose time limit would come much later.

    Attributes:
        answered: The number of answers that the source has received.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answered = 0
        self._limits: list[asyncio.Timeout] = []
        timeout_at, read = asyncio.timeout_at, Reader.read

        def limited(when: float | None) -> asyncio.Timeout:
            self._limits.append(timeout_at(when))
            return self._limits[-1]

        async def counted(reader: Reader, *given: Any, **named: Any) -> Any:
            self.answered += 1
            return await read(reader, *given, **named)

        monkeypatch.setattr(asyncio, "timeout_at", limited)
        monkeypatch.setattr(Reader, "read", counted)

    async def after(self, answered: int, asked: int, simulated: SimulatedPrometheus) -> None:
        """Lets the time of the present poll end once there are so many answers, and so many queries were asked."""
        await eventually(lambda: self.answered >= answered and len(simulated.asked) >= asked)
        now = asyncio.get_running_loop().time()
        for limit in self._limits:
            with suppress(RuntimeError):  # its query has ended
                if limit.when() is not None:  # an answer is not being read
                    limit.reschedule(now)
        self._limits.clear()


def answer_of(metric: str) -> bytes:
    found = {"metric": {"__name__": metric, "instance": "node-1:9100"}, "value": [1767225600.5, "2"]}
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": [found]}}).encode()


async def test_of_more_metrics_than_can_be_read_in_one_poll_each_has_its_turn(
    simulated: SimulatedPrometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = {f"metric_{number:02}" for number in range(20)}
    for metric in metrics:
        simulated.answers[query_of(metric, MetricMapping())] = Answer(answer_of(metric) + b" " * LARGE_BYTES)
    goes_on = threading.Event()

    def slow(*given: Any, **named: Any) -> SourceResult:
        goes_on.wait(LONG)
        return read_answer(*given, **named)

    monkeypatch.setattr(prometheus, "read_answer", slow)
    ending = Ending(monkeypatch)
    async with source(simulated.url) as read:
        first = asyncio.ensure_future(read(*metrics))
        await ending.after(MAX_CONCURRENT_QUERIES, MAX_CONCURRENT_QUERIES, simulated)
        goes_on.set()
        result = await first
        ((had_turn, _),) = values(result)
        why = f"not read within {LONG:g} s: other metrics came first; first in the next poll"
        assert result.missing == dict.fromkeys(metrics - {had_turn}, why)
        assert result.without_turn == metrics - {had_turn}
        asked = len(simulated.asked)
        assert asked == MAX_CONCURRENT_QUERIES, "so many answers are in memory at most"
        result = await read(*metrics)
    assert {metric for metric, _ in values(result)} == metrics
    assert not result.missing
    first_asked = {each["query"] for each in simulated.asked[asked : asked + MAX_CONCURRENT_QUERIES]}
    assert query_of(had_turn, MetricMapping()) not in first_asked


async def test_a_slow_query_takes_a_slot_of_the_others_in_one_poll_at_most(
    simulated: SimulatedPrometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many did in each second poll: those of them that had to wait came first in the next one."""
    slow = [f"a_slow_{number:02}" for number in range(2 * MAX_CONCURRENT_QUERIES)]
    for metric in slow:
        simulated.answers[query_of(metric, MetricMapping())] = Answer(b"", status=0)
    simulated.answers[query_of("load", MetricMapping())] = Answer(answer_of("load"))
    ending = Ending(monkeypatch)
    async with source(simulated.url) as read:
        for number in (1, 2):  # in one poll each of them takes a slot: nobody knows yet that it is slow
            poll = asyncio.ensure_future(read(*slow, "load"))
            await ending.after(0, number * MAX_CONCURRENT_QUERIES, simulated)
            with pytest.raises(SourceError, match="no answer within"):
                await poll
        for answered in range(1, 5):
            asked = len(simulated.asked)
            poll = asyncio.ensure_future(read(*slow, "load"))
            await ending.after(answered, asked + 1 + MAX_CONCURRENT_QUERIES // 2, simulated)
            assert values(await poll) == {("load", "node-1"): "2"}


async def test_all_values_of_a_node_in_one_poll_are_one_scrape(simulated: SimulatedPrometheus) -> None:
    simulated.answers[HEALTH] = golden("vector", evaluated=1767225600.5)
    simulated.answers[QUERIES["two-names"]] = golden("two-names", evaluated=1767225600.25)
    async with source(simulated.url) as read:
        result = await read("health_metric", "load")
    ((node, scrape),) = scrapes(result.samples, source="prometheus", requested_at=0)
    assert (node, scrape.measured, sorted(scrape.metrics)) == ("node-1", 1767225600.25, ["health_metric", "load"])


class TestFaults:
    async def test_a_hanging_query_does_not_affect_others(self, simulated: SimulatedPrometheus) -> None:
        simulated.answers[QUERIES["empty"]] = Answer(b"", status=0)
        async with source(simulated.url, seconds=3.0) as read:
            result = await read("health_metric", "nothing")
        assert values(result) == {("health_metric", "node-1"): "2"}
        assert result.missing == {"nothing": f"{simulated.url}: no answer within 3 s"}

    async def test_hanging_queries_are_an_error_at_the_time_limit(self, simulated: SimulatedPrometheus) -> None:
        metrics = [f"metric_{number}" for number in range(3 * MAX_CONCURRENT_QUERIES)]
        for metric in metrics:
            simulated.answers[query_of(metric, MetricMapping())] = Answer(b"", status=0)
        async with source(simulated.url, seconds=0.5) as read, asyncio.timeout(LONG):
            with pytest.raises(SourceError, match=r"no answer within 0\.5 s"):
                await read(*metrics)
        assert len(simulated.asked) < len(metrics)  # queries that wait for a slot end too

    async def test_a_refused_connection_is_an_error_without_the_password(self) -> None:
        (port,) = free_ports(1)
        async with source(f"http://tas:hunter2@127.0.0.1:{port}") as read:
            with pytest.raises(SourceError) as caught:
                await read("load")
        assert f"http://127.0.0.1:{port}" in str(caught.value)
        assert "hunter2" not in str(caught.value)

    @pytest.mark.parametrize(
        ("answer", "message"),
        [
            pytest.param(Answer(b"<html>Log in", headers={"Content-Type": "text/html"}), "HTML with", id="HTML"),
            pytest.param(Answer(b"", status=502), "an empty body with status 502", id="empty"),
            pytest.param(Answer(golden("vector").body[:50]), "no answer of a Prometheus", id="truncated"),
            pytest.param(golden("no-query"), "bad_data", id="an error"),
            pytest.param(Answer(golden("no-query").body), "bad_data", id="an error with status 200"),
            pytest.param(golden("matrix"), "must give an instant vector", id="a matrix"),
            pytest.param(
                Answer(golden("vector").body, headers={"Content-Encoding": "gzip"}), "Can not decode", id="no gzip"
            ),
        ],
    )
    async def test_an_invalid_response_is_an_error(
        self, simulated: SimulatedPrometheus, answer: Answer, message: str
    ) -> None:
        simulated.answers[QUERIES["two-names"]] = answer
        async with source(simulated.url) as read:
            result = await read("health_metric", "load")
            assert values(result) == {("health_metric", "node-1"): "2"}
            assert message in result.missing["load"]
            unreadable = message in ("HTML with", "an empty body with status 502", "no answer of a Prometheus")
            assert (RefusalReason.SHAPE in result.refusals) == unreadable
            with pytest.raises(SourceError, match=message):
                await read("load")

    async def test_retry_after_is_in_the_error(self, simulated: SimulatedPrometheus) -> None:
        busy = Answer(b"too many", status=429, headers={"Retry-After": "17"})
        simulated.answers[QUERIES["two-names"]] = busy
        async with source(simulated.url) as read:
            with pytest.raises(SourceError) as caught:
                await read("load")
        assert caught.value.retry_after == 17.0

    async def test_a_too_large_response_is_not_read_to_its_end(
        self, simulated: SimulatedPrometheus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(prometheus, "MAX_ANSWER_BYTES", 100_000)

        async def endless() -> web.StreamResponse:
            return web.Response(body=b" " * 100_001)

        simulated.answers[QUERIES["two-names"]] = endless
        async with source(simulated.url) as read:
            with pytest.raises(SourceError, match=r"a response of more than 100000 bytes: query '\{"):
                await read("load")

    async def test_an_endless_error_response_is_not_read_to_its_end(self, simulated: SimulatedPrometheus) -> None:
        response = EndlessResponse(status=500)

        async def endless() -> web.StreamResponse:
            return response

        simulated.answers[QUERIES["two-names"]] = endless
        async with source(simulated.url) as read:
            with pytest.raises(SourceError, match="no answer of a Prometheus, with status 500") as caught:
                await read("load")
        assert len(str(caught.value)) < 1000
        assert response.sent < 64 << 20

    async def test_a_redirection_is_not_followed(self, simulated: SimulatedPrometheus) -> None:
        async with simulated_prometheus() as other:
            elsewhere = f"{other.url.replace('//', '//name:hunter2@')}/api/v1/query"
            simulated.answers[QUERIES["two-names"]] = Answer(b"", status=307, headers={"Location": elsewhere})
            async with source(simulated.url) as read:
                with pytest.raises(SourceError, match="which is not followed") as caught:
                    await read("load")
            assert other.asked == []
        assert f"redirects to '{other.url}/api/v1/query' (307)" in str(caught.value)

    async def test_a_truncated_response_is_an_error(self) -> None:
        async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"status":"success","data":')
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(half, "127.0.0.1", 0)
        async with server, source("http://{}:{}".format(*server.sockets[0].getsockname())) as read:
            with pytest.raises(SourceError, match="not completed"):
                await read("load")


class EndlessResponse(web.StreamResponse):
    """A response of up to 2 GiB. `sent` counts its bytes."""

    sent = 0

    async def write_eof(self, data: bytes = b"") -> None:
        with suppress(ConnectionError):
            while self.sent < 2 << 30:
                await self.write(bytes(1 << 20))
                self.sent += 1 << 20


class TestCredentials:
    async def sent(self, url: str, simulated: SimulatedPrometheus, configuration: Path | None = None) -> str | None:
        """The received header `Authorization`."""
        async with source(url, configuration) as read:
            await read("health_metric")
        header: str | None = simulated.asked[-1]["headers"].get("Authorization")
        return header

    async def test_no_credentials_by_default(self, simulated: SimulatedPrometheus) -> None:
        assert await self.sent(simulated.url, simulated) is None

    async def test_a_name_and_a_password_in_the_url(self, simulated: SimulatedPrometheus) -> None:
        header = await self.sent(simulated.url.replace("://", "://t%40s:p%3Aw@"), simulated)
        assert header == "Basic " + base64.b64encode(b"t@s:p:w").decode()

    async def test_a_name_and_a_password_of_the_configuration(
        self, simulated: SimulatedPrometheus, tmp_path: Path
    ) -> None:
        (tmp_path / "password").write_text("hunter2\n")
        basic = {"username": "tas", "password_file": "password"}
        file = written(tmp_path / "sources.yaml", sources={"prometheus": {"basic_auth": basic}})
        header = await self.sent(simulated.url.replace("://", "://other:one@"), simulated, file)
        assert header == "Basic " + base64.b64encode(b"tas:hunter2").decode()

    async def test_a_renewed_token_is_used(self, simulated: SimulatedPrometheus, tmp_path: Path) -> None:
        token = tmp_path / "token"
        token.write_text("first\n")
        authorization = {"credentials_file": str(token)}
        file = written(tmp_path / "sources.yaml", sources={"prometheus": {"authorization": authorization}})
        async with source(simulated.url, file) as read:
            await read("health_metric")
            token.write_text("second\n")
            await read("health_metric")
            token.unlink()
            with pytest.raises(SourceError, match=f"{token}: No such file"):
                await read("health_metric")
            token.write_bytes(b"\x00\n\n\x01")
            with pytest.raises(SourceError, match="holds no password or token"):
                await read("health_metric")
        assert [asked["headers"]["Authorization"] for asked in simulated.asked] == ["Bearer first", "Bearer second"]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("the tests' own")


def keep(folder: Path, name: str, pair: Pair) -> tuple[Path, Path]:
    """The files of a certificate and its key."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    certificate.write_bytes(pair.certificate)
    key.write_bytes(pair.key)
    return certificate, key


def serving(folder: Path, pair: Pair, *, clients: Authority | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*keep(folder, "server", pair))
    if clients is not None:
        context.load_verify_locations(cadata=clients.certificate.decode())
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class TestTls:
    async def test_an_authority_of_the_configuration_is_trusted(self, authority: Authority, tmp_path: Path) -> None:
        (tmp_path / "ca.crt").write_bytes(authority.certificate)
        tls = {"ca_file": "ca.crt"}
        file = written(tmp_path / "sources.yaml", sources={"prometheus": {"tls_config": tls}})
        async with simulated_prometheus(ssl_context=serving(tmp_path, authority.server("prometheus"))) as simulated:
            simulated.answers[HEALTH] = golden("vector")
            async with source(simulated.url, file) as read:
                assert values(await read("health_metric"))
                # With another authority the server is not trusted any more; with the first one it is again.
                (tmp_path / "ca.crt").write_bytes(Authority("another").certificate)
                with pytest.raises(SourceError, match="certificate verify failed"):
                    await read("health_metric")
                (tmp_path / "ca.crt").write_text("-----BEGIN")
                with pytest.raises(SourceError):
                    await read("health_metric")
                (tmp_path / "ca.crt").write_bytes(authority.certificate)
                assert values(await read("health_metric"))

    async def test_by_default_only_the_systems_authorities_are_trusted(
        self, authority: Authority, tmp_path: Path
    ) -> None:
        async with simulated_prometheus(ssl_context=serving(tmp_path, authority.server("prometheus"))) as simulated:
            simulated.answers[HEALTH] = golden("vector")
            async with source(simulated.url) as read:
                with pytest.raises(SourceError, match="certificate verify failed"):
                    await read("health_metric")
            skipping = {"insecure_skip_verify": True}
            file = written(tmp_path / "sources.yaml", sources={"prometheus": {"tls_config": skipping}})
            async with source(simulated.url, file) as read:
                assert values(await read("health_metric"))

    async def test_the_server_name_of_the_configuration_is_checked(self, authority: Authority, tmp_path: Path) -> None:
        (tmp_path / "ca.crt").write_bytes(authority.certificate)
        pair = authority.server("prometheus", dns=("prometheus.example",), ips=())
        async with simulated_prometheus(ssl_context=serving(tmp_path, pair)) as simulated:
            simulated.answers[HEALTH] = golden("vector")
            trusting = {"ca_file": "ca.crt"}
            file = written(tmp_path / "sources.yaml", sources={"prometheus": {"tls_config": trusting}})
            async with source(simulated.url, file) as read:
                with pytest.raises(SourceError, match="certificate"):
                    await read("health_metric")
            naming = {"ca_file": "ca.crt", "server_name": "prometheus.example"}
            file = written(tmp_path / "sources.yaml", sources={"prometheus": {"tls_config": naming}})
            async with source(simulated.url, file) as read:
                assert values(await read("health_metric"))

    async def test_a_client_certificate_is_presented(self, authority: Authority, tmp_path: Path) -> None:
        (tmp_path / "ca.crt").write_bytes(authority.certificate)
        certificate, key = keep(tmp_path, "client", authority.client("tas"))
        tls = {"ca_file": "ca.crt", "cert_file": certificate.name, "key_file": key.name}
        file = written(tmp_path / "sources.yaml", sources={"prometheus": {"tls_config": tls}})
        context = serving(tmp_path, authority.server("prometheus"), clients=authority)
        async with simulated_prometheus(ssl_context=context) as simulated:
            simulated.answers[HEALTH] = golden("vector")
            async with source(simulated.url, file) as read:
                assert values(await read("health_metric"))
            plain = written(tmp_path / "plain.yaml", sources={"prometheus": {"tls_config": {"ca_file": "ca.crt"}}})
            async with source(simulated.url, plain) as read:
                with pytest.raises(SourceError):
                    await read("health_metric")


class TestConfiguration:
    async def test_query_label_and_aggregate_are_used(self, simulated: SimulatedPrometheus, tmp_path: Path) -> None:
        all_series = [
            {"metric": {"host": "a", "cpu": str(cpu)}, "value": [1767225600, str(value)]}
            for cpu, value in enumerate((0.25, 0.5))
        ]
        body = {"status": "success", "data": {"resultType": "vector", "result": all_series}}
        simulated.answers["my query"] = Answer(json.dumps(body).encode())
        entry = {"query": "my query", "node_label": "host", "aggregate": "avg"}
        async with source(simulated.url, written(tmp_path / "sources.yaml", metrics={"cpu": entry})) as read:
            assert values(await read("cpu")) == {("cpu", "a"): "0.375"}

    async def test_a_valid_change_is_used_and_an_invalid_change_is_not(
        self, simulated: SimulatedPrometheus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(config, "CHECK_SECONDS", 0.0)
        path = tmp_path / "sources.yaml"
        written(path, metrics={"load": {"query": "first"}})
        registry = CollectorRegistry()
        followed = ConfigFile.load(path, registry=registry)
        asked = Prometheus("prometheus", simulated.url, followed)

        async def query() -> str:
            await asked.read(frozenset({"load"}))
            text: str = simulated.asked[-1]["query"]
            return text

        with capture_logs() as logs:
            assert await query() == "first"
            written(path, metrics={"load": {"query": "second"}})
            assert await query() == "second"
            path.write_text("metrics: {load: {quary: third}}")
            assert await query() == await query() == "second"
            assert registry.get_sample_value("tas_source_config_readable") == 0
            path.unlink()
            assert await query() == "second"
            path.write_text("metrics: {load: {query: fourth}}")
            os.utime(path, ns=(1, 1))
            assert await query() == "fourth"
            assert registry.get_sample_value("tas_source_config_readable") == 1
        await asked.close()
        message = [log["error"] for log in logs if log["event"] == "source_config_unreadable"]
        assert len(message) == 2
        assert f"source configuration {path}: metrics.load.quary = <str>: " in message[0]
        assert "No such file" in message[1]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("metrics: {load: {query: 5}}", "metrics.load.query = 5: must be text"),
            ("metrics: [", "no YAML: line 2, column 1: "),
            ("a: 1\n---\nb: 2", "document = <list>: must be an object"),
            (
                "sources: {other: {}}",
                "sources = 'other': is not a polled source: must be one of prometheus",
            ),
            ("# nothing\n" + "x" * (1 << 20), "more than 1048576 bytes"),
        ],
    )
    def test_an_invalid_configuration_is_a_start_error(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "sources.yaml"
        path.write_text(text)
        with pytest.raises(StartError) as caught:
            ConfigFile.load(path, sources={"prometheus"})
        assert f"source configuration {path}: " in str(caught.value)
        assert message in str(caught.value)


async def test_the_source_recovers_after_an_outage() -> None:
    (port,) = free_ports(1)
    async with source(f"http://127.0.0.1:{port}") as read:
        for _ in range(2):
            async with simulated_prometheus(port=port) as simulated:
                simulated.answers[HEALTH] = golden("vector")

                async def answers() -> bool:
                    try:
                        return bool(values(await read("health_metric")))
                    except SourceError:
                        return False

                await eventually(answers)
            with pytest.raises(SourceError):
                await read("health_metric")


async def test_a_hanging_source_does_not_delay_others(bus: Bus, simulated: SimulatedPrometheus) -> None:
    world = World(bus)
    await world.listed()
    await world.use("health_metric")
    written = RemoteWrite("written", Address("127.0.0.1", 0), ConfigFile.load(None))
    async with simulated_prometheus() as stuck:
        stuck.answers[HEALTH] = Answer(b"", status=0)
        sources = [
            Prometheus(name, server.url, ConfigFile.load(None), query_seconds=seconds)
            for name, server, seconds in (("good", simulated, LONG), ("stuck", stuck, 1.0))
        ]
        async with collecting(bus, *sources, written, kind=SourceKind.PROMETHEUS):
            await eventually(lambda: bool(stuck.asked and written.url))
            for beat in (1, 2, 3):
                at = time.time()
                simulated.answers[HEALTH] = golden("vector", evaluated=at)
                sample = series("health_metric", (float(beat), round(at * 1000)), node="node-1")

                async def taken(sample: writing.Series = sample) -> bool:
                    async with (
                        aiohttp.ClientSession() as session,
                        session.post(written.url, data=writing.body([sample]), headers=writing.HEADERS) as answer,
                    ):
                        return answer.status == 204

                await eventually(taken)
                await world.has("node-1", "written", {"health_metric": beat})

                async def newer(at: float = at) -> bool:
                    scrape = await world.scrape("node-1", "good")
                    return scrape is not None and abs(scrape.measured - at) < 0.001

                await polled(newer)
            await world.problem("stuck", "no answer within 1 s")
            assert not (await world.problem("good", "")).problem
        for each in sources:
            await each.close()
