"""The source remote write over real connections, from correct and faulty senders."""

import asyncio
import io
import os
import resource
import ssl
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from bus.connection import Bus
from bus.errors import UnavailableError
from tas.sources.result import RefusalReason, SourceResult
from tas.sources.state import SourceMetric
from tas.values.quantity import format_quantity
from tests.certificates import Authority, Pair
from tests.integration.servers import Server, eventually
from tests.integration.workers.collecting import World, collecting, polled
from tests.integration.workers.running import running
from tests.sources import writing
from tests.sources.writing import HEADERS, STALE, series
from workers.collect.sources import config, remote_write, tokens
from workers.collect.sources.config import ConfigFile
from workers.collect.sources.remote_write import RemoteWrite, RemoteWriteMetrics
from workers.collect.sources.tokens import TokenFile
from workers.following.node_samples import NodeSamplesReads
from workers.http.address import Address
from workers.http.certificates import Certificates, TlsMetrics
from workers.http.tls_files import TlsFiles
from workers.materialize.worker import Materialize
from workers.process.errors import StartError
from workers.samples.source_spec import SourceKind

LONG = 120.0
ANY_PORT = Address("127.0.0.1", 0)


def now() -> int:
    """Milliseconds since 1970."""
    return round(time.time() * 1000)


class Receiver:
    """A running receiver, and the results it published."""

    def __init__(self, source: RemoteWrite, registry: CollectorRegistry) -> None:
        self.source = source
        self.registry = registry
        self.metrics = frozenset({"load"})
        self.results: list[SourceResult] = []
        self.problem: Exception | None = None

    async def take(self, result: SourceResult) -> None:
        if self.problem is not None:
            raise self.problem
        self.results.append(result)

    @property
    def values(self) -> dict[tuple[str, str], str]:
        """The last published value of each metric and node."""
        return {
            (each.metric, each.node): format_quantity(each.value) for result in self.results for each in result.samples
        }

    def refused(self, why: RefusalReason) -> int:
        return sum(result.refusals[why].count for result in self.results if why in result.refusals)

    def answered(self, code: int) -> float | None:
        return self.registry.get_sample_value(
            "tas_remote_write_requests_total", {"source": "remote-write", "code": str(code)}
        )


@asynccontextmanager
async def receiving(
    configuration: Path | None = None,
    *,
    certificates: Certificates | None = None,
    tokens: TokenFile | None = None,
    body_seconds: float = LONG,
) -> AsyncIterator[Receiver]:
    registry = CollectorRegistry()
    source = RemoteWrite(
        "remote-write",
        ANY_PORT,
        ConfigFile.load(configuration),
        metrics=RemoteWriteMetrics(registry),
        certificates=certificates,
        tokens=tokens,
        body_seconds=body_seconds,
    )
    receiver = Receiver(source, registry)
    task = asyncio.create_task(source.listen(lambda: receiver.metrics, receiver.take))
    try:
        await eventually(lambda: bool(source.url))
        yield receiver
        assert not task.done(), task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


async def send(
    receiver: Receiver | RemoteWrite,
    body: bytes | Iterable[writing.Series],
    *,
    method: str = "POST",
    path: str = "",
    headers: Mapping[str, str] = HEADERS,
    trusts: Authority | None = None,
) -> tuple[int, str]:
    """The status and the text of the answer."""
    url = receiver.source.url if isinstance(receiver, Receiver) else receiver.url
    data = body if isinstance(body, bytes) else writing.body(body)
    if path:
        url = url.replace(remote_write.PATH, path)
    timeout = aiohttp.ClientTimeout(total=LONG)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.request(method, url, data=io.BytesIO(data), headers=headers, ssl=trusting(trusts)) as answer,
    ):
        return answer.status, await answer.text()


def trusting(authority: Authority | None) -> ssl.SSLContext | bool:
    """The TLS of a sender, which presents no certificate."""
    return authority is None or ssl.create_default_context(cadata=authority.certificate.decode())


async def test_samples_of_used_metrics_are_published(receiver: Receiver) -> None:
    written = [
        series("node_load", (0.5, now()), instance="node-1:9100", job="node", anything="else"),
        series("other", (7.0, now()), instance="node-1:9100"),
        series("load", (STALE, now()), node="node-2"),
    ]
    assert await send(receiver, written) == (204, "")
    assert receiver.values == {("load", "node-1"): "0.5"}
    assert receiver.results[0].refusals == {}
    assert receiver.answered(204) == 1
    assert receiver.registry.get_sample_value("tas_remote_write_series", {"source": "remote-write"}) == 2


async def test_unused_series_are_no_error(receiver: Receiver) -> None:
    assert await send(receiver, [series("other", (1.0, now()), node="a")]) == (204, "")
    assert await send(receiver, writing.compressed(b"")) == (204, "")
    assert await send(receiver, [series("load", (float("nan"), now()), node="a")]) == (204, "")
    assert receiver.values == {}
    assert receiver.refused(RefusalReason.VALUE) == 1


class TestHeaders:
    @pytest.mark.parametrize(
        "headers",
        [
            {"Content-Type": 'Application/X-Protobuf; proto="prometheus.WriteRequest"'},
            {"Content-Encoding": "Snappy"},
            {"X-Prometheus-Remote-Write-Version": "1.0.0"},
            {"User-Agent": "vmagent"},
        ],
    )
    async def test_valid_header_variants_are_accepted(self, receiver: Receiver, headers: dict[str, str]) -> None:
        assert await send(receiver, [], headers={**HEADERS, **headers}) == (204, "")

    @pytest.mark.parametrize(
        ("headers", "message"),
        [
            ({"Content-Encoding": "identity"}, "Content-Encoding = 'identity': must be snappy"),
            ({"Content-Encoding": "gzip"}, "Content-Encoding = 'gzip': must be snappy"),
            ({"Content-Type": "application/json"}, "Content-Type = 'application/json': must be application/x-protobuf"),
            (
                {"Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request"},
                "its message prometheus.WriteRequest (remote write 1.0)",
            ),
            ({"X-Prometheus-Remote-Write-Version": "2.0.0"}, "must be 0.1.0 (remote write 1.0)"),
        ],
    )
    async def test_facts_n23_another_protocol_is_refused(
        self, receiver: Receiver, headers: dict[str, str], message: str
    ) -> None:
        status, text = await send(receiver, [], headers={**HEADERS, **headers})
        assert status == 415
        assert message in text
        assert receiver.results == []

    async def test_another_path_or_method_is_refused(self, receiver: Receiver) -> None:
        assert await send(receiver, [], path="/write") == (404, "path = '/write': must be /api/v1/write\n")
        assert (await send(receiver, b"", method="GET"))[0] == 405


class TestPermanentRefusals:
    @pytest.mark.parametrize(
        ("body", "message"),
        [
            pytest.param(writing.body([series("load", (1.0, 5))])[:-4], "a broken snappy block", id="cut off"),
            pytest.param(b"\xff" * 40, "not a snappy block", id="no snappy"),
            pytest.param(writing.compressed(b"\x0a\x7f"), "not a message prometheus.WriteRequest", id="no message"),
            pytest.param(writing.varint(1 << 31) + b"x" * 99, "unpack", id="a bomb by its header"),
            pytest.param(writing.compressed(bytes((32 << 20) + 1)), "must be at most 33554432", id="a bomb"),
        ],
    )
    async def test_facts_n25_an_invalid_body_gets_4xx_and_is_not_retried(
        self, receiver: Receiver, body: bytes, message: str
    ) -> None:
        status, text = await send(receiver, body)
        assert status == 400
        assert message in text
        assert receiver.refused(RefusalReason.SHAPE) == 1
        assert message in receiver.results[0].refusals[RefusalReason.SHAPE].example
        assert await send(receiver, [series("load", (1.0, now()), node="a")]) == (204, "")

    async def test_an_invalid_series_does_not_affect_others(self, receiver: Receiver) -> None:
        written = [({"node": "a"}, [(1.0, now())]), series("load", (2.0, now()), node="b")]
        status, text = await send(receiver, written)
        assert status == 400
        assert text == "series {'node': 'a'}: has no label __name__\n"
        assert receiver.values == {("load", "b"): "2"}
        assert receiver.refused(RefusalReason.SHAPE) == 1

    async def test_a_too_large_body_gets_413(self, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(remote_write, "MAX_BODY_BYTES", 1000)
        assert (await send(receiver, bytes(1001)))[0] == 413

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(50):
                yield bytes(100)

        async with (
            aiohttp.ClientSession() as session,
            session.post(receiver.source.url, data=chunks(), headers=HEADERS) as answer,
        ):
            assert answer.status == 413


class TestSecurity:
    async def test_with_tls_a_sender_verifies_the_receiver_also_after_a_renewal(self, tmp_path: Path) -> None:
        old, new = Authority("old"), Authority("new")
        files = TlsFiles(cert=tmp_path / "crt", key=tmp_path / "key", cacert=None, prefix="remote-write-")
        write_pair(files, old.server("tas-collect"))
        registry = CollectorRegistry()
        certificates = Certificates(files, metrics=TlsMetrics(registry), check_seconds=0.01)
        async with receiving(certificates=certificates) as receiver:
            assert receiver.source.url.startswith("https://")
            assert await send(receiver, [series("load", (1.0, now()), node="a")], trusts=old) == (204, "")
            for wrong in (new, None):
                with pytest.raises(aiohttp.ClientConnectorCertificateError):
                    await send(receiver, [], trusts=wrong)
            with pytest.raises(aiohttp.ClientError):
                async with aiohttp.ClientSession() as session:
                    await session.post(receiver.source.url.replace("https:", "http:"), headers=HEADERS)
            await eventually(lambda: registry.get_sample_value("tas_tls_refused_total", {"reason": "protocol"}) == 1)

            write_pair(files, new.server("tas-collect"))

            async def renewed() -> bool:
                with suppress(aiohttp.ClientConnectorCertificateError):
                    return await send(receiver, [], trusts=new) == (204, "")
                return False

            await eventually(renewed)
        remaining = registry.get_sample_value("tas_tls_remaining_seconds", {"file": "remote-write-cert"})
        assert remaining is not None
        assert 23 * 3600 < remaining <= 24 * 3600
        assert registry.get_sample_value("tas_tls_remaining_seconds", {"file": "client"}) is None

    async def test_a_request_without_a_known_token_gets_401_and_is_not_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tokens, "CHECK_SECONDS", 0.0)
        file = tmp_path / "tokens"
        file.write_text("first\n")
        load = [series("load", (1.0, now()), node="a")]

        async def answers(receiver: Receiver, *tokens: str | None) -> list[int]:
            return [await answer(receiver, token) for token in tokens]

        async def answer(receiver: Receiver, token: str | None) -> int:
            header = {} if token is None else {"Authorization": f"Bearer {token}"}
            status, text = await send(receiver, load, headers={**HEADERS, **header})
            assert token is None or token not in text
            return status

        with capture_logs() as logs:
            async with receiving(tokens=TokenFile(file)) as receiver:
                assert await answers(receiver, None, "second", "firs", "first") == [401, 401, 401, 204]
                assert len(receiver.results) == 1
                assert await send(receiver, b"x", path="/anything", method="GET") == (
                    401,
                    "Authorization: is missing: must be Bearer and a token\n",
                )
                file.write_text("first\nsecond\n")
                assert await answers(receiver, "second", "first") == [204, 204]
                file.write_text("second\n")
                assert await answers(receiver, "second", "first") == [204, 401]
                for unusable in ("", "two words\n"):
                    file.write_text(unusable)
                    assert await answers(receiver, "second", "first") == [204, 401]
                file.unlink()
                assert await answers(receiver, "second", "first") == [204, 401]
                assert receiver.answered(401) == 8
                other = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
                async with (
                    aiohttp.ClientSession(connector=other) as session,
                    session.post(receiver.source.url, headers=HEADERS) as response,
                ):
                    assert response.headers["WWW-Authenticate"] == "Bearer"

        assert [line["tokens"] for line in logs if line["event"] == "tokens_loaded"] == [2, 1]
        assert [line["error"] for line in logs if line["event"] == "tokens_not_loaded"] == [
            "has no token",
            "line 1: a token consists of letters, digits and -._~+/, and may end with =",
            os.strerror(2),
        ]
        refused = [line for line in logs if line["event"] == "remote_write_refused"]
        assert [line["peer"] for line in refused] == ["127.0.0.1", "127.0.0.2"], "once for each sender"
        assert not any("second" in str(line) or "words" in str(line) for line in logs)

    @pytest.mark.parametrize(
        ("content", "words"), [(b"", "has no token"), (b"x" * 70_000, "more than 65536 bytes"), (None, os.strerror(2))]
    )
    def test_a_file_without_tokens_is_a_start_error(self, tmp_path: Path, content: bytes | None, words: str) -> None:
        file = tmp_path / "tokens"
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(StartError, match=f"--remote-write-token {file}: {words}"):
            TokenFile(file)


@pytest.mark.parametrize(
    ("host", "has_token", "missing"),
    [
        ("127.0.0.1", False, []),
        ("::1", False, []),
        ("localhost", False, []),
        ("0.0.0.0", False, ["--remote-write-cert", "--remote-write-token"]),
        ("::", True, ["--remote-write-cert"]),
        ("", True, ["--remote-write-cert"]),
        ("collect.example", True, ["--remote-write-cert"]),
    ],
)
def test_what_protects_a_receiver_for_other_machines_is_named(
    tmp_path: Path, host: str, *, has_token: bool, missing: list[str]
) -> None:
    (tmp_path / "tokens").write_text("first\n")
    tokens = TokenFile(tmp_path / "tokens") if has_token else None
    source = RemoteWrite("remote-write", Address(host, 0), ConfigFile.load(None), tokens=tokens)
    assert source._missing_protection() == missing


def write_pair(files: TlsFiles, pair: Pair) -> None:
    files.cert.write_bytes(pair.certificate)
    files.key.write_bytes(pair.key)


class TestTemporaryRefusals:
    async def test_facts_n25_without_the_bus_the_sender_retries(self, receiver: Receiver) -> None:
        receiver.problem = UnavailableError("the bus is away")
        request = [series("load", (1.0, now()), node="a")]
        status, text = await send(receiver, request)
        assert (status, text) == (503, "not published, send it again: the bus is away\n")
        receiver.problem = None
        assert await send(receiver, request) == (204, "")
        assert receiver.values == {("load", "a"): "1"}

    async def test_a_bug_affects_no_other_request(self, receiver: Receiver) -> None:
        receiver.problem = RuntimeError("a bug")
        assert (await send(receiver, []))[0] == 500
        receiver.problem = None
        assert (await send(receiver, []))[0] == 204

    async def test_a_missing_body_gets_503(self) -> None:
        async with receiving(body_seconds=0.2) as receiver:
            parts = urlsplit(receiver.source.url)
            head = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(f"POST {parts.path} HTTP/1.1\r\nHost: x\r\n{head}Content-Length: 500\r\n\r\nabc".encode())
            async with asyncio.timeout(LONG):
                answer = await reader.read()  # until the connection is closed
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"body: 3 bytes in 0.2 s: too slow, send it again" in answer
            assert b"Retry-After: 1\r\n" in answer
            writer.close()

    async def test_a_disconnected_sender_releases_its_bytes(
        self, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(remote_write, "MAX_HELD_BYTES", 1000)
        parts = urlsplit(receiver.source.url)
        head = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
        for number in range(5):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(f"POST {parts.path} HTTP/1.1\r\nHost: x\r\n{head}Content-Length: 900\r\n\r\n".encode())
            writer.write(bytes(800))
            await eventually(lambda: receiver.source._held == 800, within=LONG)
            assert (await send(receiver, bytes(300)))[0] == 503, number
            writer.transport.abort()
            await eventually(lambda: receiver.source._held == 0, within=LONG)
        assert await send(receiver, [series("load", (1.0, now()), node="a")]) == (204, "")

    async def test_an_answered_sender_releases_its_bytes(
        self, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(remote_write, "MAX_HELD_BYTES", 1000)
        for _ in range(3):
            assert (await send(receiver, bytes(900)))[0] == 400
            assert await send(receiver, [series("load", (1.0, now()), node="a")]) == (204, "")

    async def test_too_many_bytes_at_once_get_503(self, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(remote_write, "MAX_HELD_BYTES", 100_000)
        parts = urlsplit(receiver.source.url)
        head = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
        _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(f"POST {parts.path} HTTP/1.1\r\nHost: x\r\n{head}Content-Length: 99999\r\n\r\n".encode())
        writer.write(bytes(99_000))

        async def refused() -> bool:
            return (await send(receiver, bytes(5000)))[0] == 503

        await eventually(refused)
        writer.transport.abort()  # its bytes are released

        async def taken() -> bool:
            return (await send(receiver, []))[0] == 204 and (await send(receiver, bytes(5000)))[0] == 400

        await eventually(taken)


@pytest.mark.ci
async def test_100_000_series_in_one_request(receiver: Receiver) -> None:
    receiver.metrics = frozenset({"metric_7"})
    written = [
        series(f"metric_{number % 100}", (float(number), now()), instance=f"node-{number // 100}:9100", job="node")
        for number in range(100_000)
    ]
    assert await send(receiver, written) == (204, "")
    assert len(receiver.values) == 1000
    assert receiver.values["metric_7", "node-999"] == "99907"


async def test_many_senders_at_once(receiver: Receiver) -> None:
    answers = await asyncio.gather(
        *(send(receiver, [series("load", (float(number), now()), node=f"node-{number}")]) for number in range(100))
    )
    assert set(answers) == {(204, "")}
    assert receiver.values == {("load", f"node-{number}"): str(number) for number in range(100)}


async def test_a_change_of_the_configuration_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CHECK_SECONDS", 0.0)
    path = tmp_path / "sources.yaml"
    path.write_text("metrics: {load: {series: first}}")
    async with receiving(path) as receiver:
        written = [series("first", (1.0, now()), node="a"), series("second", (2.0, now()), node="a")]
        await send(receiver, written)
        assert receiver.values == {("load", "a"): "1"}
        path.write_text("metrics: {load: {series: second}}")
        await send(receiver, written)
        assert receiver.values == {("load", "a"): "2"}


async def test_an_address_in_use_is_a_start_error(receiver: Receiver) -> None:
    taken = Address.parse(urlsplit(receiver.source.url).netloc)
    source = RemoteWrite("remote-write", taken, ConfigFile.load(None))
    with pytest.raises(StartError, match=f"source remote-write: cannot listen on {taken}: the port is in use"):
        await source.listen(frozenset, receiver.take)


class TestOnTheBus:
    async def test_a_sample_goes_from_the_sender_to_the_node(self, server: Server, bus: Bus) -> None:
        world = World(bus)
        await world.listed()
        await world.use("load")
        source = RemoteWrite("remote-write", ANY_PORT, ConfigFile.load(None))
        materialize = Materialize(bus, registry=CollectorRegistry())
        at = now()
        async with running(materialize), collecting(bus, source, kind=SourceKind.REMOTE_WRITE) as registry:
            await eventually(lambda: bool(source.url))
            await self.sent(source, [series("load", (1.0, at - 60_000), node="a")])
            await self.sent(source, [series("load", (3.0, at), node="a"), series("load", (7.0, at), node="b")])
            await self.sent(source, [series("load", (2.0, at - 2000), node="a")])  # too late: out of order
            await self.known(bus, {"a": "3", "b": "7"})

            # A stale marker is visible, and the value counts for two intervals more, of 60 s.
            marked = time.time()
            await self.sent(source, [series("load", (STALE, at + 1), node="a")])

            async def one_of_two_has_ended() -> bool:
                state = await world.state("remote-write")
                return state is not None and state.metrics.get("load") == SourceMetric(nodes=2, ended=1)

            await polled(one_of_two_has_ended)
            ended = {"source": "remote-write"}
            await eventually(lambda: registry.get_sample_value("tas_source_samples_ended", ended) == 1)

            async def end_is_stored() -> bool:
                (scrape,) = (await NodeSamplesReads(bus).read("a")).readable
                return scrape.ends is not None and marked + 120 <= scrape.ends < time.time() + 120

            await polled(end_is_stored)

            # Without the bus the answer is 503, so the sender retries and no sample is lost.
            newer = [series("load", (4.0, at + 1000), node="b")]
            server.pause()
            status, text = await send(source, newer)
            assert status == 503
            assert text.startswith("not published, send it again: ")
            server.resume()
            await self.sent(source, newer)
            await self.known(bus, {"a": "3", "b": "4"})

    async def sent(self, source: RemoteWrite, written: list[writing.Series]) -> None:
        """Sends until the answer is not 503, as a sender does."""

        async def taken() -> bool:
            status, _ = await send(source, written)
            assert status in (204, 503)
            return status == 204

        await eventually(taken)

    async def known(self, bus: Bus, values: Mapping[str, str]) -> None:
        async def stored() -> bool:
            for node, value in values.items():
                samples = (await NodeSamplesReads(bus).read(node)).readable
                if [format_quantity(each.metrics["load"]) for each in samples] != [value]:
                    return False
            return True

        await eventually(stored, every=0.02)


async def test_a_file_that_is_written_anew_with_the_same_content_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new configuration starts a new store, in which the series of an aggregate are incomplete at first."""
    monkeypatch.setattr(config, "CHECK_SECONDS", 0.0)
    path = tmp_path / "sources.yaml"
    text = "metrics: {load: {series: first}}"
    path.write_text(text)
    loaded = ConfigFile.load(path)
    before = await loaded.current()
    path.write_text(f"# as it was\n{text}")
    with capture_logs() as logs:
        assert await loaded.current() is before
    assert [line["event"] for line in logs] == ["source_config_read"]


@pytest.mark.parametrize("half", ["", "metrics: {load: {que"])
@pytest.mark.parametrize("after", ["_stamp", "read_source_config"])
async def test_half_of_a_file_that_is_being_written_is_not_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str, half: str
) -> None:
    """An editor empties the file, and then writes it: without its queries and bounds, other values would count."""
    monkeypatch.setattr(config, "CHECK_SECONDS", 0.0)
    path, original = tmp_path / "sources.yaml", getattr(config, after)
    path.write_text("metrics: {load: {query: first}}")
    loaded = ConfigFile.load(path)
    path.write_text(half)
    left = ["metrics: {load: {query: second}}"]

    def then_written(*arguments: object) -> object:
        try:
            return original(*arguments)
        finally:
            if left:
                path.write_text(left.pop())

    monkeypatch.setattr(config, after, then_written)
    with capture_logs() as logs:
        found = [(await loaded.current()).mappings.of("load").query for _ in range(3)]
    assert None not in found
    assert found[-1] == "second"
    assert [each["event"] for each in logs] == ["source_config_read"]  # and nobody is told that it cannot be read


@contextmanager
def no_file_can_be_opened() -> Iterator[None]:
    """As in a process that has as many files open as it may: this holds for root, too, unlike the mode of a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_change_that_could_not_be_read_is_read_once_that_is_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a file that only root could read, before its mode changed: nothing else says that it is another one."""
    monkeypatch.setattr(config, "CHECK_SECONDS", 0.0)
    path = tmp_path / "sources.yaml"
    path.write_text("metrics: {load: {query: first}}")
    registry = CollectorRegistry()
    loaded = ConfigFile.load(path, registry=registry)
    assert (await loaded.current()).mappings.of("load").query == "first"
    path.write_text("metrics: {load: {query: second}}")
    with capture_logs() as logs:
        with no_file_can_be_opened():
            for _ in range(3):
                assert (await loaded.current()).mappings.of("load").query == "first"
        assert registry.get_sample_value("tas_source_config_readable") == 0
        assert (await loaded.current()).mappings.of("load").query == "second"
    assert registry.get_sample_value("tas_source_config_readable") == 1
    assert [each["event"] for each in logs] == ["source_config_unreadable", "source_config_read"]


async def test_half_of_the_tokens_of_a_file_that_is_being_written_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "CHECK_SECONDS", 0.0)
    path = tmp_path / "tokens"
    path.write_text("one\ntwo\n")
    file = TokenFile(path)
    path.write_text("three\n")
    read, left = file._read, ["three\nfour\n"]

    def then_written() -> frozenset[bytes]:
        found = read()
        if left:
            path.write_text(left.pop())
        return found

    monkeypatch.setattr(file, "_read", then_written)
    assert await file.current() == {b"one", b"two"}
    assert await file.current() == {b"three", b"four"}
