"""A real Prometheus: our source polls it, it writes to our receiver, and its answers are those of the golden files."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner

from bus.errors import UnavailableError
from cli import cli
from tas.sources.result import RefusalReason, SourceResult
from tas.values.quantity import format_quantity
from tests.integration.servers import eventually
from tests.sources.answers import EXPOSITION, GOLDEN, QUERIES, with_fixed_times
from workers.collect.sources.base import SourceError
from workers.collect.sources.config import ConfigFile
from workers.collect.sources.prometheus import Prometheus
from workers.collect.sources.remote_write import PATH, RemoteWrite
from workers.collect.sources.tokens import TokenFile
from workers.http.address import Address
from workers.http.certificates import Certificates
from workers.http.tls_files import TlsFiles

from .golden import RECORD
from .processes import free_ports
from .prometheus import Exporter, exporter, prometheus


@pytest.fixture
async def scraped() -> AsyncIterator[Exporter]:
    async with exporter(EXPOSITION) as running:
        yield running


def values(result: SourceResult) -> dict[tuple[str, str], str]:
    """Each value by metric and node."""
    return {(sample.metric, sample.node): format_quantity(sample.value) for sample in result.samples}


async def query_of(url: str, query: str) -> tuple[int, object]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{url}/api/v1/query", params={"query": query}) as answer,
    ):
        return answer.status, await answer.json()


async def answer_of(url: str, query: str) -> dict[str, object]:
    """The answer as a golden file has it."""
    status, body = await query_of(url, query)
    return {"query": query, "status": status, "body": with_fixed_times(body)}


async def answered_with(expected: dict[str, object], url: str, query: str) -> dict[str, object]:
    """The answer to a query, if necessary after some more scrapes.

    The limit of a scrape is its interval, a second. On a busy machine one fails, and the series end until the next one.
    """
    found: dict[str, object] = {}

    async def is_as_expected() -> bool:
        nonlocal found
        found = await answer_of(url, query)
        return found == expected

    with suppress(AssertionError):  # the caller says what is wrong
        await eventually(is_as_expected, every=0.1)
    return found


async def read_until(source: Prometheus, metrics: frozenset[str], expected: dict[tuple[str, str], str]) -> SourceResult:
    """A result with these values; fails if there is none, if necessary after some more scrapes (`answered_with`)."""
    results: list[SourceResult] = []

    async def has_them() -> bool:
        with suppress(SourceError):
            results.append(await source.read(metrics))
        return bool(results) and values(results[-1]) == expected

    with suppress(AssertionError):
        await eventually(has_them, every=0.1)
    assert [values(each) for each in results[-1:]] == [expected]
    return results[-1]


async def wait_for_scrapes(url: str, targets: int) -> None:
    """Waits until every target has been scraped."""

    async def are_scraped() -> bool:
        with suppress(aiohttp.ClientError):
            _, body = await query_of(url, "load")
            return isinstance(body, dict) and len(body["data"]["result"]) == targets
        return False

    await eventually(are_scraped, every=0.1)


async def test_the_answers_of_prometheus_are_those_of_the_golden_files(
    scraped: Exporter, prometheus_binary: Path, tmp_path: Path
) -> None:
    with prometheus(prometheus_binary, tmp_path, {scraped.address: {"instance": "node-1:9100"}}) as (url, _):
        await wait_for_scrapes(url, 1)
        for name, query in QUERIES.items():
            file = GOLDEN / f"{name}.json"
            if RECORD:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(await answer_of(url, query), indent=1) + "\n")
            golden = json.loads(file.read_text())
            found = await answered_with(golden, url, query)
            assert found == golden, f"{file.name}: record again with TAS_E2E_RECORD=1"


async def test_the_source_reads_the_values_of_all_nodes_and_none_after_the_series_end(
    scraped: Exporter, prometheus_binary: Path, tmp_path: Path
) -> None:
    local = scraped.address.replace("127.0.0.1", "localhost")
    targets = {scraped.address: {"instance": "node-1:9100"}, local: {"node": "node-2"}}
    source_config = tmp_path / "sources.yaml"
    source_config.write_text("metrics: {cpu: {query: node_cpu, aggregate: max}, half: {query: 'load / 2'}}")
    with prometheus(prometheus_binary, tmp_path, targets) as (url, _):
        await wait_for_scrapes(url, 2)
        source = Prometheus("prometheus", url, ConfigFile.load(source_config))
        try:
            expected = {
                (metric, node): value
                for node in ("node-1", "node-2")
                for metric, value in {"health_metric": "2", "load": "0.7", "cpu": "0.5", "half": "0.35"}.items()
            }
            wanted = frozenset({"health_metric", "load", "cpu", "half", "broken", "nothing"})
            result = await read_until(source, wanted, expected)
            assert result.refusals[RefusalReason.VALUE].count == 2
            assert set(result.missing) == {"broken", "nothing"}

            windows = frozenset({"load:mean:1m", "load:p95:5m", "cpu:std:1m", "half:max:1m", "load:ewma:1m"})
            expected = {
                (metric, node): value
                for node in ("node-1", "node-2")
                for metric, value in {
                    "load:mean:1m": "0.7",
                    "load:p95:5m": "0.7",
                    "cpu:std:1m": "0",
                    "half:max:1m": "0.35",
                }.items()
            }
            result = await read_until(source, windows, expected)
            assert "no function for ewma" in result.missing["load:ewma:1m"]

            scraped.fails = True  # its series end with the next scrape, by stale markers

            async def has_ended() -> bool:
                return (await source.read(frozenset({"load", "load:mean:1m"}))).samples == ()

            await eventually(has_ended, every=0.1)
        finally:
            await source.close()


async def test_an_invalid_query_is_reported_with_the_message_of_prometheus(
    scraped: Exporter, prometheus_binary: Path, tmp_path: Path
) -> None:
    source_config = tmp_path / "sources.yaml"
    source_config.write_text("metrics: {bad: {query: 'max('}, range: {query: 'load[1m]'}, number: {query: '1'}}")
    with prometheus(prometheus_binary, tmp_path, {scraped.address: {"instance": "node-1:9100"}}) as (url, _):
        await wait_for_scrapes(url, 1)
        source = Prometheus("prometheus", url, ConfigFile.load(source_config))
        try:
            expected = {("load", "node-1"): "0.7"}
            result = await read_until(source, frozenset({"bad", "range", "number", "load"}), expected)
            assert "unclosed left parenthesis" in result.missing["bad"]
            assert "a query must give an instant vector" in result.missing["range"]
            assert "names no node" in result.missing["number"]
            with pytest.raises(SourceError, match="unclosed left parenthesis"):
                await source.read(frozenset({"bad"}))
        finally:
            await source.close()


@asynccontextmanager
async def receiving(
    port: int, metrics: frozenset[str], take: Callable[[SourceResult], Awaitable[None]], folder: Path
) -> AsyncIterator[None]:
    """Runs our receiver, with the files of a folder."""
    source = RemoteWrite(
        "remote-write",
        Address("127.0.0.1", port),
        ConfigFile.load(folder / "sources.yaml"),
        certificates=Certificates(TlsFiles(cert=folder / "tls.crt", key=folder / "tls.key", cacert=None)),
        tokens=TokenFile(folder / "tokens"),
    )
    task = asyncio.create_task(source.listen(lambda: metrics, take))
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_the_receiver_gets_all_values_by_https_with_a_token_and_prometheus_sends_again_after_failures(
    scraped: Exporter, prometheus_binary: Path, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    newest: dict[tuple[str, str], tuple[float, str]] = {}
    refused: set[RefusalReason] = set()
    calls = 0

    async def take(result: SourceResult) -> None:
        nonlocal calls
        calls += 1
        if calls <= 3:
            raise UnavailableError("no bus")  # Prometheus must send again
        for sample in result.samples:
            assert sample.measured is not None
            newest[sample.metric, sample.node] = (sample.measured, format_quantity(sample.value))
        refused.update(result.refusals)

    assert CliRunner().invoke(cli, ["certs", "init", str(tmp_path)]).exit_code == 0
    (tmp_path / "tokens").write_text("another\nsecret\n")
    (tmp_path / "token").write_text("secret\n")
    secured = {
        "authorization": {"credentials_file": str(tmp_path / "token")},
        "tls_config": {"ca_file": str(tmp_path / "ca.crt")},
    }
    (tmp_path / "sources.yaml").write_text(
        "metrics: {first_cpu: {series: node_cpu, labels: {cpu: '0'}}, all_cpus: {series: node_cpu, aggregate: sum}}"
    )
    wanted = frozenset({"health_metric", "load", "first_cpu", "all_cpus", "cpu", "broken", "tiny"})
    local = scraped.address.replace("127.0.0.1", "localhost")
    targets = {scraped.address: {"instance": "node-1:9100"}, local: {"node": "node-2"}}
    expected = {
        (metric, node): value
        for node in ("node-1", "node-2")
        for metric, value in {
            "health_metric": "2",
            "load": "0.7",
            "first_cpu": "0.25",
            "all_cpus": "0.75",
            "tiny": "0.00000001",
        }.items()
    }
    receiver = f"https://127.0.0.1:{port}{PATH}"
    async with receiving(port, wanted, take, tmp_path):
        with prometheus(prometheus_binary, tmp_path, targets, writes_to=receiver, writes_with=secured) as (url, _):
            await wait_for_scrapes(url, 2)
            await eventually(lambda: {place: value for place, (_, value) in newest.items()} == expected, every=0.1)
            # Two processors without an aggregate; NaN.
            await eventually(lambda: refused == {RefusalReason.DUPLICATE, RefusalReason.VALUE}, every=0.1)

            scraped.text = EXPOSITION.replace("node_health_metric 2", "node_health_metric 3")
            await eventually(lambda: newest["health_metric", "node-1"][1] == "3", every=0.1)

            scraped.fails = True  # stale markers: no more samples
            before = dict(newest)

            async def stopped() -> bool:
                nonlocal before
                was, before = before, dict(newest)
                return was == before

            await eventually(stopped, every=2.5)
            assert {place for place, _ in newest.items()} == set(expected)
