"""The custom metrics API with an adapter that answers what it likes, over real HTTP."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tas.sources.custom_metrics import GROUP
from tas.sources.nodes import NodeNames
from tas.sources.result import MAX_ITEMS
from tas.values.quantity import NANO, Quantity
from workers.collect.sources import custom_metrics
from workers.collect.sources.base import SourceError
from workers.collect.sources.custom_metrics import MAX_ANSWER_BYTES, CustomMetrics
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import MAX_RETRY_AFTER_SECONDS

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
METRIC = "load"
GROUP_ANSWER = {"kind": "APIGroup", "name": GROUP, "versions": [{"version": "v1beta2"}]}


def item(node: str, value: Any = "1", **fields: Any) -> dict[str, Any]:
    return {"describedObject": {"kind": "Node", "name": node}, "value": value, **fields}


def values(*items: Any) -> dict[str, Any]:
    return {"kind": "MetricValueList", "items": list(items)}


def body(content: bytes | dict[str, Any], **headers: str) -> Answer:
    """An answer with this content."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=data, headers={name.replace("_", "-"): value for name, value in headers.items()})

    return answer


def status(code: int, **headers: str) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=code, headers={name.replace("_", "-"): value for name, value in headers.items()})

    return answer


def pieces(piece: bytes, pause: float) -> Answer:
    """An answer without an end."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(piece)
            await asyncio.sleep(pause)

    return answer


class Adapter:
    """The API server with an adapter behind it. `requests` has the paths and the tokens of all requests."""

    def __init__(self) -> None:
        self.answer: Answer = body(values(item("node-1")))
        self.requests: list[tuple[str, str]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.path, request.headers.get("Authorization", "")))
        return await (body(GROUP_ANSWER) if request.path == f"/apis/{GROUP}" else self.answer)(request)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.5, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


@asynccontextmanager
async def reading(adapter: Adapter, folder: Path) -> AsyncIterator[CustomMetrics]:
    """The source, for a cluster with two nodes."""
    async with adapter.listening() as url:
        kubeconfig = folder / "kubeconfig"
        config = {
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        kubeconfig.write_text(json.dumps(config))
        names = NodeNames({"node-1": (), "node-2": ()}, is_complete=True)
        async with KubernetesClient.connect(kubeconfig, worker="test") as client:
            yield CustomMetrics("custom-metrics", client, nodes=lambda: names)


REFUSED: dict[str, tuple[Answer, str]] = {
    "bytes without end": (pieces(b" " * (1 << 20), 0), f"more than {MAX_ANSWER_BYTES} bytes"),
    "one byte after the other": (pieces(b" ", 0.01), "no answer within"),
    "nested lists": (body(b'{"kind":"MetricValueList","items":' + b"[" * 100_000), "values of load"),
    "too many values": (body(b'{"kind":"MetricValueList","items":[' + b"0," * 2_100_000 + b"0]}"), "values in"),
    "too many items": (body(values(*[0] * (MAX_ITEMS + 1))), f"must be at most {MAX_ITEMS}"),
    "another kind": (body({"kind": "SecretList", "items": []}), "must be MetricValueList"),
    "no JSON": (body(b"\xff\x00"), "values of load"),
    "a few bytes that become many": (
        body(gzip.compress(b" " * (MAX_ANSWER_BYTES + 1)), Content_Encoding="gzip"),
        f"more than {MAX_ANSWER_BYTES} bytes",
    ),
    "an error of its own": (status(500), "(500)"),
    "nothing": (status(204), "values of load"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_an_answer_that_is_none_is_an_error_and_the_next_one_counts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, text = REFUSED[name]
    if name == "one byte after the other":
        monkeypatch.setattr(custom_metrics, "METRIC_SECONDS", 0.3)
        monkeypatch.setattr(custom_metrics, "PAUSE_SECONDS", (0.0, 0.0))
    adapter = Adapter()
    async with reading(adapter, tmp_path) as source:
        good = adapter.answer
        adapter.answer = answer
        with pytest.raises(SourceError) as refused:
            await source.read(frozenset({METRIC}))
        assert text in str(refused.value)
        assert str(refused.value).isprintable()
        assert len(str(refused.value)) < 1000
        monkeypatch.undo()
        adapter.answer = good
        (sample,) = (await source.read(frozenset({METRIC}))).samples
        assert (sample.node, sample.value) == ("node-1", Quantity(NANO))


async def test_single_values_are_refused_and_others_of_the_answer_count(tmp_path: Path) -> None:
    """Of invented nodes, of other metrics, without a meaning, and with names that look like rows."""
    adapter = Adapter()
    hostile: list[Any] = [
        *(item(f"invented-{number}") for number in range(5000)),
        item("node-1\nFORGED"),
        item("node-1", "NaN"),
        item("node-1", "1e999999999"),
        item("node-1", "9" * 100_000),
        item("node-1", timestamp="9999-12-31T23:59:59Z"),
        item("node-1", timestamp="0001-01-01T00:00:00Z"),
        item("node-1", timestamp="x" * 100_000),
        item("node-1", metric={"name": "other\nFORGED"}),
        {"describedObject": {"kind": "Pod", "name": "node-1"}, "value": "1"},
        {"describedObject": [], "value": {}},
        None,
        10**400,
        item("node-2", "7", windowSeconds=-(2**63)),
    ]
    adapter.answer = body(values(*hostile))
    async with reading(adapter, tmp_path) as source:
        result = await source.read(frozenset({METRIC}))
    (sample,) = result.samples
    assert (sample.node, sample.value) == ("node-2", Quantity(7 * NANO))
    assert sum(each.count for each in result.refusals.values()) == len(hostile) - 1
    texts = [each.example for each in result.refusals.values()]
    assert all(text.isprintable() and len(text) < 1000 for text in texts), texts


async def test_it_cannot_send_the_token_elsewhere_or_silence_the_source_for_long(tmp_path: Path) -> None:
    adapter, thief = Adapter(), Adapter()
    async with reading(adapter, tmp_path) as source, thief.listening() as url:
        for code in (301, 302, 307, 308):
            adapter.answer = status(code, Location=f"{url}/stolen")
            with pytest.raises(SourceError, match=f"({code})"):
                await source.read(frozenset({METRIC}))
        assert thief.requests == []
        assert {token for _, token in adapter.requests} == {"Bearer secret"}
        for seconds in ("99999", "999999999", "1e300", "Wed, 21 Oct 2965 07:28:00 GMT"):
            adapter.answer = status(429, Retry_After=seconds)
            source._retry_at = float("-inf")
            with pytest.raises(SourceError) as refused:
                await source.read(frozenset({METRIC}))
            assert 0 < refused.value.retry_after <= MAX_RETRY_AFTER_SECONDS
