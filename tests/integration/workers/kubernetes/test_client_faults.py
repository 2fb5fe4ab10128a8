"""The client and the reflector against a faulty server."""

import asyncio
import base64
import gzip
import json
import os
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from tests.certificates import Authority
from tests.integration.servers import eventually
from tests.kubernetes.admin import Admin
from tests.kubernetes.client_scenarios import followed
from tests.sandbox import Sandbox
from workers.http.protocol import MAX_INFORMATIONAL
from workers.kubernetes.client import WRITE_SECONDS, ChangeType, KubernetesClient
from workers.kubernetes.credentials import Credentials
from workers.kubernetes.errors import (
    ConfigurationError,
    ExpiredError,
    ForbiddenError,
    GoneError,
    KubernetesError,
    RejectedError,
    SilentError,
    UnavailableError,
)
from workers.kubernetes.reflector import Consumer, Reflector
from workers.kubernetes.resources import FULL_NODES, LABELLED_NODES, NODES, PODS, POLICIES, Object, Resource

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
NODE = {"metadata": {"name": "n", "uid": "u", "resourceVersion": "7"}}


@asynccontextmanager
async def served(handler: Handler, folder: Path) -> AsyncIterator[KubernetesClient]:
    """A client of a server that answers every request with `handler`."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.5, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    kubeconfig = folder / "kubeconfig"
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    kubeconfig.write_text(json.dumps(config))
    try:
        async with KubernetesClient.connect(kubeconfig, worker="test") as client:
            yield client
    finally:
        await runner.cleanup()


def lines(*pieces: bytes, then_wait: float = 0.0) -> Handler:
    """The answer to a watch: these pieces, then the end."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(0)
        await asyncio.sleep(then_wait)
        return response

    return handler


def event(kind: str, what: Any) -> bytes:
    return json.dumps({"type": kind, "object": what}).encode() + b"\n"


async def types_of(client: KubernetesClient, **limits: float) -> list[ChangeType]:
    async with aclosing(client.watch(NODES, resource_version="1", **limits)) as changes:  # type: ignore[arg-type]
        return [change.type async for change in changes]


async def test_requests_have_the_token_and_the_user_agent(tmp_path: Path) -> None:
    seen: list[web.Request] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request)
        return web.json_response(NODE)

    async with served(handler, tmp_path) as client:
        await client.get(NODES, "n")
        await client.merge_patch(NODES, "n", {"metadata": {"labels": {"a": None}}}, field_manager="tas-on-nats")
    got, patched = seen
    assert got.headers["User-Agent"] == "tas-on-nats/test"
    assert got.headers["Authorization"] == "Bearer secret"
    assert "as=PartialObjectMetadata;g=meta.k8s.io;v=v1" in got.headers["Accept"]
    assert (patched.method, patched.headers["Content-Type"]) == ("PATCH", "application/merge-patch+json")
    assert patched.query["fieldManager"] == "tas-on-nats"


async def test_events_may_arrive_in_any_pieces_and_an_incomplete_event_is_dropped(tmp_path: Path) -> None:
    whole = event("ADDED", NODE) + b"\n" + event("BOOKMARK", {"metadata": {"resourceVersion": "9"}})
    pieces = [bytes([each]) for each in whole] + [event("DELETED", NODE)[:-5]]
    async with served(lines(*pieces), tmp_path) as client:
        assert await types_of(client) == [ChangeType.ADDED, ChangeType.BOOKMARK]


async def test_a_large_event_is_read_and_one_above_the_limit_is_refused(tmp_path: Path) -> None:
    large = NODE | {"metadata": {**NODE["metadata"], "annotations": {"a": "x" * (2 << 20)}}}
    async with served(lines(event("MODIFIED", large), event("FUTURE", {})), tmp_path) as client:
        assert await types_of(client) == [ChangeType.MODIFIED]
    async with served(lines(*[b"x" * (1 << 20)] * 17), tmp_path) as client:
        with pytest.raises(RejectedError, match="an event of more than"):
            await types_of(client)


async def test_of_an_error_only_the_start_is_read(tmp_path: Path) -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(status=403)
        await response.prepare(request)
        with suppress(ConnectionError):
            while sent < 2 << 30:
                await response.write(b"x" * (1 << 20))
                sent += 1 << 20
        return response

    async with served(endless, tmp_path) as client:
        with pytest.raises(ForbiddenError, match="get nodes n: xxxx") as caught:
            await client.get(NODES, "n")
    assert sent < 64 << 20
    assert len(str(caught.value)) < 1000


async def test_a_message_of_an_error_is_one_line_of_limited_length(tmp_path: Path) -> None:
    async def refused(_request: web.Request) -> web.Response:
        return web.json_response({"reason": "Forbidden", "message": "no\n\x1b[31m" + "x" * 50_000}, status=403)

    async with served(refused, tmp_path) as client:
        with pytest.raises(ForbiddenError, match=r"get nodes n: no\\n\\x1b\[31mxxx") as caught:
            await client.get(NODES, "n")
    assert 1000 < len(str(caught.value)) < 1100


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_too_large_response_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, compressed: bool
) -> None:
    monkeypatch.setattr("workers.kubernetes.client.MAX_LIST_BYTES", 1 << 20)
    body = json.dumps({"kind": "NodeList", "metadata": {"resourceVersion": "1"}, "items": [], "x": "x" * (8 << 20)})

    async def large(_request: web.Request) -> web.Response:
        encoded = {"Content-Encoding": "gzip"} if compressed else {}
        return web.Response(body=gzip.compress(body.encode()) if compressed else body.encode(), headers=encoded)

    async with served(large, tmp_path) as client:
        with pytest.raises(RejectedError, match="list nodes: a response of more than 1048576 bytes"):
            await client.list(NODES)


@pytest.mark.parametrize(
    ("bytes_each", "pages"),
    [
        pytest.param(100, [(50, 0), (50, 50)], id="small objects"),
        pytest.param(4000, [(50, 0), *((3, start) for start in range(0, 60, 3))], id="large objects"),
    ],
)
async def test_a_list_of_large_objects_is_read_in_smaller_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_each: int, pages: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr("workers.kubernetes.client.MAX_LIST_BYTES", 64 << 10)
    found = [{"metadata": {"name": f"n{number}", "annotations": {"a": "x" * bytes_each}}} for number in range(60)]
    asked: list[tuple[int, int]] = []

    async def page(request: web.Request) -> web.Response:
        limit, start = int(request.query["limit"]), int(request.query.get("continue", "0"))
        asked.append((limit, start))
        metadata = {"resourceVersion": "1", "continue": str(start + limit) if start + limit < len(found) else ""}
        return web.json_response({"kind": "NodeList", "metadata": metadata, "items": found[start : start + limit]})

    async with served(page, tmp_path) as client:
        listing = await client.list(NODES, page_objects=50)
    assert [each.metadata.name for each in listing.items] == [each["metadata"]["name"] for each in found]
    assert asked == pages


@pytest.mark.parametrize("resource", [LABELLED_NODES, FULL_NODES], ids=["metadata", "whole"])
async def test_a_list_takes_the_memory_of_a_few_pages_and_not_of_the_cluster(
    tmp_path: Path, resource: Resource[Object]
) -> None:
    pages, objects, annotation = 20, 50, "x" * 10_000
    asked: list[int] = []

    async def page(request: web.Request) -> web.Response:
        number = int(request.query.get("continue", "0"))
        asked.append(number)
        metadata = {"resourceVersion": "1", "continue": str(number + 1) if number + 1 < pages else ""}
        items = [
            {"metadata": {"name": f"n-{number}-{each}", "annotations": {"a": annotation}}} for each in range(objects)
        ]
        return web.json_response({"kind": "NodeList", "metadata": metadata, "items": items})

    async with served(page, tmp_path) as client:
        tracemalloc.start()
        try:
            listing = await client.list(resource, page_objects=objects)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert asked == list(range(pages))
    assert len(listing.items) == pages * objects
    # The server of this test encodes a page, and the client joins and decodes it: each step has a copy.
    assert peak < 10 * objects * len(annotation), "half of the cluster"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ({"code": 410, "reason": "Expired", "message": "too old resource version"}, GoneError),
        ({"code": 504, "reason": "Timeout", "message": "Too large resource version"}, UnavailableError),
        ({"message": "no code"}, UnavailableError),
        ("no status", UnavailableError),
    ],
)
async def test_an_error_event_raises_its_error(tmp_path: Path, status: Any, kind: type[KubernetesError]) -> None:
    async with served(lines(event("ADDED", NODE), event("ERROR", status)), tmp_path) as client:
        with pytest.raises(kind):
            await types_of(client)


@pytest.mark.parametrize("line", [b"no json\n", b'{"type": "ADDED", "object": {}}\n', b'{"type": "ADDED"}\n'])
async def test_an_invalid_event_ends_the_watch(tmp_path: Path, line: bytes) -> None:
    async with served(lines(line), tmp_path) as client:
        with pytest.raises(UnavailableError):
            await types_of(client)


async def test_a_silent_watch_ends_at_its_time_limit(tmp_path: Path) -> None:
    async with served(lines(event("ADDED", NODE), then_wait=60), tmp_path) as client:
        began = time.monotonic()
        with pytest.raises(SilentError, match=r"no data from .* for 0\.3 s"):
            await types_of(client, silent_seconds=0.3)
        assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"{}",
        b'{"items": []}',
        b'{"kind": "NodeList", "items": []}',
        b'{"kind": "NodeList", "metadata": {}, "items": []}',
        b'{"kind": "NodeList", "metadata": {"resourceVersion": "1"}, "items": [{}]}',
        b'{"kind": "Status", "metadata": {"resourceVersion": "1"}, "status": "Success"}',
        b"\xff",
    ],
)
async def test_a_response_that_is_no_list_is_not_an_empty_list(tmp_path: Path, body: bytes) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    async with served(handler, tmp_path) as client:
        with pytest.raises(UnavailableError):
            await client.list(NODES)


async def test_a_refused_connection_is_an_unavailable_error(tmp_path: Path) -> None:
    async with served(lines(), tmp_path) as client:
        pass
    kubeconfig = tmp_path / "kubeconfig"
    async with KubernetesClient.connect(kubeconfig, worker="test") as client:
        with pytest.raises(UnavailableError):
            await client.get(NODES, "n")


async def test_a_list_whose_pages_expire_is_requested_without_pages(
    sandbox: Sandbox, admin: Admin, client: KubernetesClient, namespace: str
) -> None:
    for number in range(5):
        await admin.create_pod(namespace, f"pod-{number}", "one")
    sandbox.faults.answer(410, which=lambda call: call.verb == "list" and call.resource == "pods")
    listing = await client.list(PODS, page_objects=2)
    assert len(listing.items) == 5


async def test_a_patch_that_waits_for_a_connection_is_not_sent_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The age is checked when the body is sent, not when the call starts."""
    arrived: list[bytes] = []
    connect = aiohttp.TCPConnector.connect

    async def slow_connect(*arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(1.0)
        return await connect(*arguments, **options)

    async def handler(request: web.Request) -> web.Response:
        arrived.append(await request.read())
        return web.json_response(NODE)

    async with served(handler, tmp_path) as client:
        await client.merge_patch(NODES, "n", {}, field_manager="test", read_at=time.monotonic())
        with monkeypatch.context() as slow:
            slow.setattr(aiohttp.TCPConnector, "connect", slow_connect)
            read_at = time.monotonic() - WRITE_SECONDS + 0.5
            with pytest.raises(ExpiredError):
                await client.merge_patch(NODES, "n", {"late": 1}, field_manager="test", read_at=read_at)
        await client.merge_patch(NODES, "n", {}, field_manager="test", read_at=time.monotonic())
    assert arrived == [b"{}", b"{}"]


async def test_a_watch_without_bookmarks_is_resumed(tmp_path: Path) -> None:
    """A resource that does not change is no failure, and is not reported."""
    async with Sandbox.start(nodes=["node-1"], bookmark_seconds=1000) as sandbox:
        kubeconfig = sandbox.kubeconfig(tmp_path / "silent")
        async with KubernetesClient.connect(kubeconfig, worker="test") as client:
            lists: list[int] = []
            seen: set[str] = set()
            consumer = Reflector(client, NODES, silent_seconds=0.3).consumer(
                on_list=lambda listing: lists.append(len(listing.items)),
                on_change=lambda change: seen.add(change.object.metadata.name),
            )
            task = asyncio.create_task(consumer.run())
            with capture_logs() as logs:
                await eventually(lambda: sandbox.count()["watch", "nodes"] >= 3)
            assert (logs, consumer.problem) == ([], None)
            sandbox.add_node("node-2")
            await eventually(lambda: "node-2" in seen)
            assert lists == [1]
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_a_server_that_falls_silent_is_noticed_by_the_watch_whose_turn_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not all ask then: each alone would wait three times as long, and all would ask at once."""
    watched: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"kind": "NodeList", "metadata": {"resourceVersion": "1"}, "items": []})
        watched.append(request.path)
        if len(watched) > 3:
            await asyncio.sleep(60)
        return await lines(then_wait=60)(request)

    async with served(handler, tmp_path) as client, asyncio.TaskGroup() as tasks:
        consumers = [Reflector(client, each, silent_seconds=6.0).consumer() for each in (NODES, PODS, POLICIES)]
        following = [tasks.create_task(each.run()) for each in consumers]
        await eventually(lambda: len(watched) >= 3)
        # Not before: a busy machine takes longer to open a watch, which would then be opened again.
        monkeypatch.setattr("workers.kubernetes.client.CALL_SECONDS", 0.2)
        await eventually(lambda: len(watched) > 5)
        assert (len(set(watched[:3])), len(set(watched[3:6])) < 3) == (3, True), "not all at once"
        assert any("no data" in (each.problem or "") for each in consumers)
        assert client.silence.age >= 2.0
        for each in following:
            each.cancel()


async def test_an_earlier_state_of_the_server_is_listed_again(
    sandbox: Sandbox, admin: Admin, client: KubernetesClient, node: str
) -> None:
    """After a restore of etcd the reached version is ahead of the server's version."""
    async with followed(client, watch_seconds=60) as nodes:
        await admin.label_node(node, {"colour": "red"})
        await eventually(lambda: nodes.has(node, colour="red"))
        nodes.reflector.resource_version = "999999999"
        sandbox.faults.answer(504, which=lambda call: call.verb == "watch" and call.resource == "nodes")
        sandbox.cut_watches()
        await eventually(lambda: nodes.consumer.listed == 2)
        await admin.label_node(node, {"colour": "blue"})
        await eventually(lambda: nodes.has(node, colour="blue"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        "current-context: x",
        json.dumps({"current-context": "x", "contexts": [], "clusters": [], "users": []}),
        json.dumps(
            {
                "current-context": "x",
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": "https://h", "certificate-authority": "/nowhere"}}],
                "users": [{"name": "u", "user": {}}],
            }
        ),
    ],
    ids=["empty", "no-yaml", "list", "object", "no-contexts", "no-such-context", "no-such-file"],
)
async def test_an_invalid_kubeconfig_is_an_error_of_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match="kubeconfig") as caught:
        async with KubernetesClient.connect(file, worker="test"):
            pass
    assert "\n" not in str(caught.value)
    assert " object at 0x" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "sEcReT",
        "sEcReT: [",
        "*sEcReT",
        "!sEcReT x",
        "{sEcReT: 1, sEcReT: 2}",
        "current-context: x\ncontexts: [sEcReT]\nclusters: []\n",
        "current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
        "clusters: [{name: c, cluster: {}}]\nusers: [{name: u, user: {token: sEcReT}}]\n",
    ],
)
async def test_an_error_of_a_kubeconfig_quotes_none_of_its_content(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match="kubeconfig") as caught:
        async with KubernetesClient.connect(file, worker="test"):
            pass
    assert "sEcReT" not in str(caught.value)


async def test_outside_of_a_cluster_there_is_no_service_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigurationError, match="the service account of this pod"):
        async with KubernetesClient.connect(None, worker="test"):
            pass


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of a pod's account, and the address of its API server."""
    (tmp_path / "token").write_text("first")
    (tmp_path / "ca.crt").write_bytes(Authority("cluster").certificate)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return tmp_path


async def test_the_rotated_token_of_an_account_is_used_after_its_period(
    account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = await Credentials.load(None, account=account)
    assert credentials.server == "https://[fd00::1]:443"
    (account / "token").write_text("second")
    assert await credentials.headers() == {"Authorization": "Bearer first"}

    monkeypatch.setattr("workers.kubernetes.library.incluster_config.TOKEN_REFRESH_PERIOD", timedelta(0))
    credentials = await Credentials.load(None, account=account)
    (account / "token").write_text("third")

    assert await credentials.headers() == {"Authorization": "Bearer third"}


async def test_the_rotated_token_of_a_kubeconfig_is_used_after_its_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, kubeconfig = tmp_path / "token", tmp_path / "kubeconfig"
    token.write_text("first")
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"tokenFile": str(token)}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    kubeconfig.write_text(json.dumps(config))
    credentials = await Credentials.load(kubeconfig)
    token.write_text("second")
    assert await credentials.headers() == {"Authorization": "Bearer first"}

    monkeypatch.setattr("workers.kubernetes.credentials.REFRESH_SECONDS", 0.0)
    assert await credentials.headers() == {"Authorization": "Bearer second"}

    token.unlink()
    with pytest.raises(UnavailableError, match="no credentials"):
        await credentials.headers()


async def test_no_key_of_a_kubeconfig_stays_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a refresh of the token write one. A process that is killed cannot delete its files."""
    folder, authority = tmp_path / "temporary", Authority("cluster")
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    pair = authority.client("admin")
    encoded = [base64.b64encode(each).decode() for each in (authority.certificate, pair.certificate, pair.key)]
    names = ("certificate-authority-data", "client-certificate-data", "client-key-data")
    certificates = dict(zip(names, encoded, strict=True))
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "https://h", names[0]: certificates.pop(names[0])}}],
        "users": [{"name": "u", "user": {"token": "first"} | certificates}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    os.utime(folder, ns=(1, 1))
    credentials = await Credentials.load(kubeconfig)
    assert credentials.tls is not None
    assert credentials.tls.cert_store_stats()["x509_ca"] == 1
    assert folder.stat().st_mtime_ns != 1  # the library has written files
    assert list(folder.iterdir()) == []

    os.utime(folder, ns=(1, 1))
    monkeypatch.setattr("workers.kubernetes.credentials.REFRESH_SECONDS", 0.0)
    assert await credentials.headers() == {"Authorization": "Bearer first"}
    assert folder.stat().st_mtime_ns == 1
    # An invalid key leaves none either.
    config["users"][0]["user"]["client-key-data"] = encoded[1]  # type: ignore[index]
    kubeconfig.write_text(json.dumps(config))
    with pytest.raises(ConfigurationError, match="kubeconfig"):
        await Credentials.load(kubeconfig)
    assert list(folder.iterdir()) == []


async def test_the_key_of_a_token_program_stays_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may give a certificate and its key instead of a token, and new ones each time."""
    folder, runs, authority = tmp_path / "temporary", tmp_path / "runs", Authority("cluster")
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    pair = authority.client("admin")
    status = {"clientCertificateData": pair.certificate.decode(), "clientKeyData": pair.key.decode()}
    answer = tmp_path / "answer"
    about = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    answer.write_text(json.dumps(about | {"status": status}))
    program = {"apiVersion": about["apiVersion"], "command": "sh", "args": ["-c", f"echo >> {runs}; cat {answer}"]}
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "https://h"}}],
        "users": [{"name": "u", "user": {"exec": program | {"interactiveMode": "Never"}}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    credentials = await Credentials.load(kubeconfig)
    assert runs.read_text() == "\n"
    assert list(folder.iterdir()) == []

    monkeypatch.setattr("workers.kubernetes.credentials.REFRESH_SECONDS", 0.0)
    os.utime(folder, ns=(1, 1))
    assert await credentials.headers() == {}
    assert folder.stat().st_mtime_ns == 1, "no file, not even for a moment"


async def test_lists_that_fail_slowly_are_retried_with_backoff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow failure is no success: only an established watch resets the backoff."""
    monkeypatch.setattr("workers.kubernetes.reflector.HEALTHY_WATCH_SECONDS", 0.0)  # any list takes longer
    asked: list[float] = []

    async def handler(_request: web.Request) -> web.StreamResponse:
        asked.append(time.monotonic())
        return web.Response(status=503)

    async with served(handler, tmp_path) as client:
        following = asyncio.create_task(Reflector(client, NODES).consumer().run())
        await eventually(lambda: len(asked) >= 5)
        following.cancel()
        await asyncio.wait([following])
    assert asked[4] - asked[3] >= 0.8 * 0.95  # the fourth wait: 1.6 s, shortened by up to a half


async def test_a_redirect_is_refused_and_the_token_goes_nowhere_else(tmp_path: Path) -> None:
    asked: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(request.path)
        raise web.HTTPFound("/elsewhere")

    async with served(handler, tmp_path) as client:
        with pytest.raises(RejectedError, match="302"):
            await client.get(NODES, "n")
    assert asked == ["/api/v1/nodes/n"]


async def test_a_response_above_the_limit_is_refused(tmp_path: Path) -> None:
    async def handler(_request: web.Request) -> web.Response:
        return web.Response(body=bytes(1000))

    async with served(handler, tmp_path) as client:
        assert await client.read(NODES, "/apis/x", max_bytes=1000) == bytes(1000)
        with pytest.raises(RejectedError, match="get /apis/x: a response of more than 999 bytes"):
            await client.read(NODES, "/apis/x", max_bytes=999)


class Scripted:
    """A server of nodes: its lists are empty, and each watch gives the next answer of the script, then waits."""

    def __init__(self, *watches: Handler) -> None:
        self.lists = 0
        self.watches: list[str] = []
        self.times: list[float] = []
        self.may_list = asyncio.Event()
        self.may_list.set()
        self._script = iter(watches)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            self.lists += 1
            await self.may_list.wait()
            return web.json_response({"kind": "NodeList", "metadata": {"resourceVersion": "1"}, "items": []})
        assert request.query["allowWatchBookmarks"] == "true"
        self.watches.append(request.query["resourceVersion"])
        self.times.append(time.monotonic())
        return await next(self._script, lines(then_wait=60))(request)


@asynccontextmanager
async def reflecting(script: Scripted, folder: Path) -> AsyncIterator[Consumer[Any]]:
    async with served(script.answer, folder) as client:
        consumer = Reflector(client, NODES).consumer()
        task = asyncio.create_task(consumer.run())
        try:
            yield consumer
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_a_watch_continues_after_the_last_event_or_bookmark(tmp_path: Path) -> None:
    script = Scripted(
        lines(event("BOOKMARK", {"metadata": {"resourceVersion": "5"}})),
        lines(event("MODIFIED", NODE)),
    )
    async with reflecting(script, tmp_path):
        await eventually(lambda: len(script.watches) == 3)
    assert script.watches == ["1", "5", "7"]
    assert script.lists == 1


async def test_a_throttled_watch_waits_as_long_as_it_was_asked_and_lists_nothing(tmp_path: Path) -> None:
    async def throttled(_request: web.Request) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": "1"})

    script = Scripted(throttled)
    async with reflecting(script, tmp_path):
        await eventually(lambda: len(script.watches) == 2)
    assert script.times[1] - script.times[0] >= 1.0
    assert script.lists == 1


async def test_a_list_that_is_requested_during_a_list_is_made_after_it(tmp_path: Path) -> None:
    script = Scripted()
    script.may_list.clear()
    async with reflecting(script, tmp_path) as consumer:
        await eventually(lambda: script.lists == 1)
        consumer.relist()
        script.may_list.set()
        await eventually(lambda: script.lists == 2)


async def test_a_name_from_elsewhere_stays_one_part_of_the_path(tmp_path: Path) -> None:
    asked: list[str] = []

    async def note(request: web.Request) -> web.Response:
        asked.append(request.raw_path)
        return web.json_response(NODE)

    async with served(note, tmp_path) as client:
        await client.get(NODES, "a/b?c#d %2F")
        await client.get(PODS, "web", namespace="../kube-system")
        for name in (".", ".."):
            with pytest.raises(RejectedError, match="no object has the name"):
                await client.get(NODES, name)
    assert asked == ["/api/v1/nodes/a%2Fb%3Fc%23d%20%252F", "/api/v1/namespaces/..%2Fkube-system/pods/web"]


async def test_a_backend_of_the_api_server_cannot_hold_a_request_by_answers_before_the_answer(tmp_path: Path) -> None:
    """The API server hands on what an adapter of the custom metrics API sends, `100 Continue` included (RFC 9110)."""
    before = 0

    async def continuing(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n" * before)
        return web.json_response(NODE)

    async with served(continuing, tmp_path) as client:
        assert (await client.get(NODES, "n")).metadata.name == "n"
        before = MAX_INFORMATIONAL + 1
        with pytest.raises(UnavailableError, match="more than 8 informational answers before the final one"):
            await client.get(NODES, "n")
