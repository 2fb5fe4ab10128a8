"""Prometheus, asked: over a server that answers as a real one does, and as one should not."""

import asyncio
import base64
import json
import os
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bus.connection import Bus
from tas.quantity import format_quantity
from tas.sources.prometheus import query_of
from tas.sources.reading import Batch, Refused, scrapes
from tas.sources.series import MetricMapping
from tests.certificates import Authority, Pair
from tests.integration.servers import eventually
from tests.integration.workers.collecting import World, collecting
from tests.sources import writing
from tests.sources.answers import QUERIES, Answer, PlayedPrometheus, golden, played_prometheus
from tests.sources.writing import series
from workers.runtime import Address, StartError
from workers.sources import config, prometheus
from workers.sources.base import SourceError, SourceKind
from workers.sources.config import ConfigFile
from workers.sources.prometheus import QUERIES_AT_ONCE, Prometheus
from workers.sources.remote_write import RemoteWrite

HEALTH = QUERIES["vector"]
LONG = 30.0


@pytest.fixture
async def played() -> AsyncIterator[PlayedPrometheus]:
    async with played_prometheus() as played:
        played.answers[HEALTH] = golden("vector")
        yield played


@asynccontextmanager
async def source(
    url: str, configuration: Path | None = None, *, seconds: float = LONG
) -> AsyncIterator[Callable[..., Awaitable[Batch]]]:
    """The source as something to be asked for metrics."""
    asked = Prometheus("prometheus", url, ConfigFile.load(configuration, sources={"prometheus"}), query_seconds=seconds)
    try:
        yield lambda *metrics: asked.read(frozenset(metrics))
    finally:
        await asked.close()


def values(batch: Batch) -> dict[tuple[str, str], str]:
    return {(each.metric, each.node): format_quantity(each.value) for each in batch.readings}


def written(path: Path, **fields: object) -> Path:
    """A source configuration in a file, put there as one piece."""
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(fields))
    return unfinished.rename(path)


async def test_each_metric_is_a_query_of_its_own(played: PlayedPrometheus) -> None:
    played.answers[QUERIES["two-names"]] = golden("two-names")
    async with source(f"{played.url}/prefix/") as read:
        batch = await read("health_metric", "load", "nothing")
    assert values(batch) == {("health_metric", "node-1"): "2", ("load", "node-1"): "0.7"}
    assert set(batch.missing) == {"nothing"}
    assert sorted(asked["query"] for asked in played.asked) == sorted([HEALTH, QUERIES["two-names"], QUERIES["empty"]])
    assert {(asked["path"], asked["timeout"], asked["lookback_delta"]) for asked in played.asked} == {
        ("/prefix/api/v1/query", "30s", "120s")
    }


async def test_no_more_than_a_few_are_on_their_way_at_once(played: PlayedPrometheus) -> None:
    metrics = [f"metric_{number}" for number in range(5 * QUERIES_AT_ONCE)]
    together = asyncio.Barrier(QUERIES_AT_ONCE)

    async def answer() -> web.Response:
        await together.wait()
        return web.Response(body=golden("empty").body)

    for metric in metrics:
        played.answers[query_of(metric, MetricMapping())] = answer
    async with source(played.url) as read:
        batch = await read(*metrics)
    assert all("no value from the query" in why for why in batch.missing.values())
    assert played.most_at_once == QUERIES_AT_ONCE


async def test_as_many_nodes_as_there_may_be(played: PlayedPrometheus) -> None:
    all_series = [
        {"metric": {"__name__": "node_load", "instance": f"node-{number}:9100"}, "value": [1767225600.5, f"0.{number}"]}
        for number in range(15_000)
    ]
    body = {"status": "success", "data": {"resultType": "vector", "result": all_series}}
    played.answers[QUERIES["two-names"]] = Answer(json.dumps(body).encode())
    async with source(played.url) as read:
        batch = await read("load", "health_metric")
    assert len(batch.readings) == 15_001
    assert values(batch)["load", "node-14999"] == "0.14999"


async def test_all_that_one_look_brings_of_a_node_is_one_scrape(played: PlayedPrometheus) -> None:
    played.answers[HEALTH] = golden("vector", evaluated=1767225600.5)
    played.answers[QUERIES["two-names"]] = golden("two-names", evaluated=1767225600.25)
    async with source(played.url) as read:
        batch = await read("health_metric", "load")
    ((node, scrape),) = scrapes(batch.readings, source="prometheus", asked=0)
    assert (node, scrape.measured, sorted(scrape.metrics)) == ("node-1", 1767225600.25, ["health_metric", "load"])


class TestTrouble:
    async def test_a_query_that_hangs_costs_no_other_its_value(self, played: PlayedPrometheus) -> None:
        played.answers[QUERIES["empty"]] = Answer(b"", status=0)
        async with source(played.url, seconds=1.0) as read:
            batch = await read("health_metric", "nothing")
        assert values(batch) == {("health_metric", "node-1"): "2"}
        assert batch.missing == {"nothing": f"{played.url}: no answer within 1 s"}

    async def test_where_all_hang_it_says_so_in_time(self, played: PlayedPrometheus) -> None:
        metrics = [f"metric_{number}" for number in range(3 * QUERIES_AT_ONCE)]
        for metric in metrics:
            played.answers[query_of(metric, MetricMapping())] = Answer(b"", status=0)
        async with source(played.url, seconds=0.5) as read, asyncio.timeout(LONG):
            with pytest.raises(SourceError, match=r"no answer within 0\.5 s"):
                await read(*metrics)
        assert len(played.asked) < len(metrics)  # who waits for a turn waits no longer either

    async def test_nobody_there_is_told_without_the_password(self) -> None:
        async with played_prometheus() as gone:
            url = gone.url.replace("http://", "http://tas:hunter2@")
        async with source(url) as read:
            with pytest.raises(SourceError) as caught:
                await read("load")
        assert gone.url in str(caught.value)
        assert "hunter2" not in str(caught.value)

    @pytest.mark.parametrize(
        ("answer", "told"),
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
    async def test_an_answer_that_says_nothing(self, played: PlayedPrometheus, answer: Answer, told: str) -> None:
        played.answers[QUERIES["two-names"]] = answer
        async with source(played.url) as read:
            batch = await read("health_metric", "load")
            assert values(batch) == {("health_metric", "node-1"): "2"}
            assert told in batch.missing["load"]
            unreadable = told in ("HTML with", "an empty body with status 502", "no answer of a Prometheus")
            assert (Refused.SHAPE in batch.refusals) == unreadable
            with pytest.raises(SourceError, match=told):
                await read("load")

    async def test_who_is_asked_to_wait_waits(self, played: PlayedPrometheus) -> None:
        busy = Answer(b"too many", status=429, headers={"Retry-After": "17"})
        played.answers[QUERIES["two-names"]] = busy
        async with source(played.url) as read:
            with pytest.raises(SourceError) as caught:
                await read("load")
        assert caught.value.retry_after == 17.0

    async def test_an_answer_without_end_is_not_read_to_it(
        self, played: PlayedPrometheus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(prometheus, "MAX_ANSWER_BYTES", 100_000)

        async def endless() -> web.StreamResponse:
            return web.Response(body=b" " * 100_001)

        played.answers[QUERIES["two-names"]] = endless
        async with source(played.url) as read:
            with pytest.raises(SourceError, match="the answer is larger than 100000 bytes"):
                await read("load")

    async def test_an_answer_that_breaks_off(self) -> None:
        async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"status":"success","data":')
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(half, "127.0.0.1", 0)
        async with server, source("http://{}:{}".format(*server.sockets[0].getsockname())) as read:
            with pytest.raises(SourceError, match="not completed"):
                await read("load")


class TestWhoWeAre:
    async def sent(self, url: str, played: PlayedPrometheus, configuration: Path | None = None) -> str | None:
        """The header `Authorization` that comes."""
        async with source(url, configuration) as read:
            await read("health_metric")
        header: str | None = played.asked[-1]["headers"].get("Authorization")
        return header

    async def test_nobody_by_default(self, played: PlayedPrometheus) -> None:
        assert await self.sent(played.url, played) is None

    async def test_a_name_and_a_password_in_the_url(self, played: PlayedPrometheus) -> None:
        header = await self.sent(played.url.replace("://", "://t%40s:p%3Aw@"), played)
        assert header == "Basic " + base64.b64encode(b"t@s:p:w").decode()

    async def test_a_name_and_a_password_of_the_configuration(self, played: PlayedPrometheus, tmp_path: Path) -> None:
        (tmp_path / "password").write_text("hunter2\n")
        basic = {"username": "tas", "password_file": "password"}
        file = written(tmp_path / "sources.yaml", sources={"prometheus": {"basic_auth": basic}})
        header = await self.sent(played.url.replace("://", "://other:one@"), played, file)
        assert header == "Basic " + base64.b64encode(b"tas:hunter2").decode()

    async def test_a_token_that_is_renewed(self, played: PlayedPrometheus, tmp_path: Path) -> None:
        token = tmp_path / "token"
        token.write_text("first\n")
        authorization = {"credentials_file": str(token)}
        file = written(tmp_path / "sources.yaml", sources={"prometheus": {"authorization": authorization}})
        async with source(played.url, file) as read:
            await read("health_metric")
            token.write_text("second\n")
            await read("health_metric")
            token.unlink()
            with pytest.raises(SourceError, match=f"{token}: No such file"):
                await read("health_metric")
            token.write_bytes(b"\x00\n\n\x01")
            with pytest.raises(SourceError, match="holds no password or token"):
                await read("health_metric")
        assert [asked["headers"]["Authorization"] for asked in played.asked] == ["Bearer first", "Bearer second"]


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


class TestWhomWeTrust:
    async def test_an_authority_of_the_configuration(self, authority: Authority, tmp_path: Path) -> None:
        (tmp_path / "ca.crt").write_bytes(authority.certificate)
        tls = {"ca_file": "ca.crt"}
        file = written(tmp_path / "sources.yaml", sources={"prometheus": {"tls_config": tls}})
        async with played_prometheus(ssl_context=serving(tmp_path, authority.server("prometheus"))) as played:
            played.answers[HEALTH] = golden("vector")
            async with source(played.url, file) as read:
                assert values(await read("health_metric"))
                # Another authority, and its server is not trusted any more; then the first one again.
                (tmp_path / "ca.crt").write_bytes(Authority("another").certificate)
                with pytest.raises(SourceError, match="certificate verify failed"):
                    await read("health_metric")
                (tmp_path / "ca.crt").write_text("-----BEGIN")
                with pytest.raises(SourceError):
                    await read("health_metric")
                (tmp_path / "ca.crt").write_bytes(authority.certificate)
                assert values(await read("health_metric"))

    async def test_by_default_the_systems_alone(self, authority: Authority, tmp_path: Path) -> None:
        async with played_prometheus(ssl_context=serving(tmp_path, authority.server("prometheus"))) as played:
            played.answers[HEALTH] = golden("vector")
            async with source(played.url) as read:
                with pytest.raises(SourceError, match="certificate verify failed"):
                    await read("health_metric")
            skipping = {"insecure_skip_verify": True}
            file = written(tmp_path / "sources.yaml", sources={"prometheus": {"tls_config": skipping}})
            async with source(played.url, file) as read:
                assert values(await read("health_metric"))

    async def test_the_name_in_the_certificate(self, authority: Authority, tmp_path: Path) -> None:
        (tmp_path / "ca.crt").write_bytes(authority.certificate)
        pair = authority.server("prometheus", dns=("prometheus.example",), ips=())
        async with played_prometheus(ssl_context=serving(tmp_path, pair)) as played:
            played.answers[HEALTH] = golden("vector")
            trusting = {"ca_file": "ca.crt"}
            file = written(tmp_path / "sources.yaml", sources={"prometheus": {"tls_config": trusting}})
            async with source(played.url, file) as read:
                with pytest.raises(SourceError, match="certificate"):
                    await read("health_metric")
            naming = {"ca_file": "ca.crt", "server_name": "prometheus.example"}
            file = written(tmp_path / "sources.yaml", sources={"prometheus": {"tls_config": naming}})
            async with source(played.url, file) as read:
                assert values(await read("health_metric"))

    async def test_a_certificate_of_our_own(self, authority: Authority, tmp_path: Path) -> None:
        (tmp_path / "ca.crt").write_bytes(authority.certificate)
        certificate, key = keep(tmp_path, "client", authority.client("tas"))
        tls = {"ca_file": "ca.crt", "cert_file": certificate.name, "key_file": key.name}
        file = written(tmp_path / "sources.yaml", sources={"prometheus": {"tls_config": tls}})
        context = serving(tmp_path, authority.server("prometheus"), clients=authority)
        async with played_prometheus(ssl_context=context) as played:
            played.answers[HEALTH] = golden("vector")
            async with source(played.url, file) as read:
                assert values(await read("health_metric"))
            plain = written(tmp_path / "plain.yaml", sources={"prometheus": {"tls_config": {"ca_file": "ca.crt"}}})
            async with source(played.url, plain) as read:
                with pytest.raises(SourceError):
                    await read("health_metric")


class TestTheConfiguration:
    async def test_it_says_the_query_the_label_and_the_aggregate(
        self, played: PlayedPrometheus, tmp_path: Path
    ) -> None:
        all_series = [
            {"metric": {"host": "a", "cpu": str(cpu)}, "value": [1767225600, str(value)]}
            for cpu, value in enumerate((0.25, 0.5))
        ]
        body = {"status": "success", "data": {"resultType": "vector", "result": all_series}}
        played.answers["my query"] = Answer(json.dumps(body).encode())
        entry = {"query": "my query", "node_label": "host", "aggregate": "avg"}
        async with source(played.url, written(tmp_path / "sources.yaml", metrics={"cpu": entry})) as read:
            assert values(await read("cpu")) == {("cpu", "a"): "0.375"}

    async def test_a_change_counts_and_one_that_cannot_be_read_does_not(
        self, played: PlayedPrometheus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(config, "LOOK_SECONDS", 0.0)
        path = tmp_path / "sources.yaml"
        written(path, metrics={"load": {"query": "first"}})
        registry = CollectorRegistry()
        followed = ConfigFile.load(path, registry=registry)
        asked = Prometheus("prometheus", played.url, followed)

        async def query() -> str:
            await asked.read(frozenset({"load"}))
            text: str = played.asked[-1]["query"]
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
        told = [log["error"] for log in logs if log["event"] == "source_config_unreadable"]
        assert len(told) == 2
        assert f"source configuration {path}: metrics.load = 'an object of quary'" in told[0]
        assert "No such file" in told[1]

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("metrics: {load: {query: 5}}", "metrics.load.query = 5: Expected `str | null`, got `int`"),
            ("metrics: [", "no YAML: line 2, column 1: "),
            ("a: 1\n---\nb: 2", "document = [{'a': 1}, {'b': 2}]: must be an object"),
            ("sources: {other: {}}", "sources = 'other': is no source that is asked: must be one of prometheus"),
            ("# nothing\n" + "x" * (1 << 20), "more than 1048576 bytes"),
        ],
    )
    def test_one_that_cannot_be_is_told_before_anything_starts(self, tmp_path: Path, text: str, told: str) -> None:
        path = tmp_path / "sources.yaml"
        path.write_text(text)
        with pytest.raises(StartError) as caught:
            ConfigFile.load(path, sources={"prometheus"})
        assert f"source configuration {path}: " in str(caught.value)
        assert told in str(caught.value)


async def test_it_answers_again_after_it_was_away(played: PlayedPrometheus) -> None:
    port = int(played.url.rpartition(":")[2])
    async with played_prometheus() as other:
        other_port = int(other.url.rpartition(":")[2])
        other.answers[HEALTH] = golden("vector")
        async with source(other.url) as read:
            assert values(await read("health_metric"))
            other_url = other.url
            assert port != other_port
    async with source(other_url) as read:
        with pytest.raises(SourceError):
            await read("health_metric")
        async with played_prometheus(port=other_port) as again:
            again.answers[HEALTH] = golden("vector")

            async def answered() -> bool:
                try:
                    return bool(values(await read("health_metric")))
                except SourceError:
                    return False

            await eventually(answered, within=LONG)


async def test_one_that_hangs_costs_no_other_a_beat(bus: Bus, played: PlayedPrometheus) -> None:
    world = World(bus)
    await world.listed()
    await world.use("health_metric")
    written = RemoteWrite("written", Address("127.0.0.1", 0), ConfigFile.load(None))
    async with played_prometheus() as stuck:
        stuck.answers[HEALTH] = Answer(b"", status=0)
        sources = [
            Prometheus(name, server.url, ConfigFile.load(None), query_seconds=seconds)
            for name, server, seconds in (("good", played, LONG), ("stuck", stuck, 1.0))
        ]
        async with collecting(bus, *sources, written, kind=SourceKind.PROMETHEUS):
            await eventually(lambda: bool(stuck.asked and written.url), within=LONG)
            for beat in (1, 2, 3):
                at = time.time()
                played.answers[HEALTH] = golden("vector", evaluated=at)
                sample = series("health_metric", (float(beat), round(at * 1000)), node="node-1")
                async with (
                    aiohttp.ClientSession() as session,
                    session.post(written.url, data=writing.body([sample]), headers=writing.HEADERS) as answer,
                ):
                    assert answer.status == 204
                await world.has("node-1", "written", {"health_metric": beat})

                async def newer(at: float = at) -> bool:
                    scrape = await world.scrape("node-1", "good")
                    return scrape is not None and abs(scrape.measured - at) < 0.001

                await eventually(newer, within=LONG, every=0.02)
            await world.problem("stuck", "no answer within 1 s")
            assert not (await world.problem("good", "")).problem
        for each in sources:
            await each.close()
