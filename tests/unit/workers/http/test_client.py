"""The TLS of clients of sources and sinks."""

import asyncio
import datetime as dt
import ssl
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization

from cli.loop import run_to_end
from tas.values.http_config import HttpConfig, TlsConfig
from tests.certificates import Authority
from tests.integration.servers import eventually
from workers.http import client as http_client
from workers.http.client import HttpClient
from workers.http.protocol import BoundedConnector


@pytest.mark.parametrize("tls", [None, TlsConfig(insecure_skip_verify=True)])
async def test_no_server_can_ask_for_another_handshake(tls: TlsConfig | None, tmp_path: Path) -> None:
    """Played with `openssl s_server -tls1_2` and 50 times `r`: 50 handshakes before, one and an alert now."""
    client = HttpClient("https://source.example", folder=tmp_path, user_agent="tas")
    connector = (await client.session(HttpConfig(tls_config=tls))).connector
    assert isinstance(connector, BoundedConnector)
    context = connector._ssl
    assert isinstance(context, ssl.SSLContext)
    assert ssl.OP_NO_RENEGOTIATION in context.options
    assert context.verify_mode is (ssl.CERT_REQUIRED if tls is None else ssl.CERT_NONE)
    await client.close()


@pytest.mark.parametrize("tls", [None, TlsConfig(insecure_skip_verify=True)])
async def test_a_server_with_a_huge_chain_of_certificates_is_an_error(tls: TlsConfig | None, tmp_path: Path) -> None:
    """OpenSSL reads at most 100 KiB of certificates of a peer, whether they are verified or not."""
    authority = Authority("of a source")
    pair = authority.server("localhost")
    (tmp_path / "chain").write_bytes(pair.certificate + authority.certificate * 400)
    (tmp_path / "key").write_bytes(pair.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "chain", tmp_path / "key")
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
    client = HttpClient(url, folder=tmp_path, user_agent="tas")
    session = await client.session(HttpConfig(tls_config=tls))
    with pytest.raises(aiohttp.ClientConnectorError, match=r"(?i)excessive message size"):
        await session.get(url)
    await client.close()
    server.close()


async def test_no_cookie_of_a_server_is_kept_or_sent_back(tmp_path: Path) -> None:
    asked: list[str] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        asked.append(request.headers.get("Cookie", ""))
        return web.Response(headers={"Set-Cookie": f"c{len(asked)}={'x' * 4000}"})

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://localhost:{runner.addresses[0][1]}"
    client = HttpClient(url, folder=tmp_path, user_agent="tas")
    session = await client.session(HttpConfig())
    for _ in range(2):
        async with session.get(url) as answered:
            assert "Set-Cookie" in answered.headers
    assert (asked, len(session.cookie_jar)) == (["", ""], 0)
    await client.close()
    await runner.cleanup()


@pytest.mark.parametrize("answer", [b"", b"\x16\x03\x03\x3f\xff\x02"], ids=["never", "byte by byte"])
def test_a_server_that_never_ends_its_handshake_is_an_error_in_time_and_keeps_no_connection(
    answer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the event loop of `tas run`; each byte is news, and still the time of the whole handshake counts."""
    monkeypatch.setattr(http_client, "CONNECT_SECONDS", 0.2)

    async def body() -> int:
        opened, sent = 0, list[int]()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal opened
            opened += 1
            count, gone = 0, asyncio.create_task(reader.read())
            while not gone.done():
                if answer:
                    writer.write(answer[count : count + 1] or b"\x01")
                    count += 1
                await asyncio.wait([gone], timeout=0.02)
            writer.close()
            sent.append(count)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = HttpClient(url, folder=tmp_path, user_agent="tas")
        session = await client.session(HttpConfig(tls_config=TlsConfig(insecure_skip_verify=True)))
        try:
            while len(sent) < 3:  # on a busy machine the time can end before a connection is opened
                with pytest.raises(aiohttp.ServerTimeoutError):
                    await session.get(url)
                await eventually(lambda: len(sent) == opened)
        finally:
            await client.close()
            server.close()
        assert max(sent) < 500, "50 bytes a second, and the limit of the loop itself is a minute"
        return 0

    assert run_to_end(body()) == 0


@pytest.mark.parametrize(
    ("named", "has"),
    [
        ("ca_file", "nothing"),
        ("cert_file", "nothing"),
        ("key_file", "nothing"),
        ("key_file", "another key"),
        ("key_file", "a password"),
    ],
)
async def test_files_of_tls_that_cannot_be_used_are_an_error_that_names_them(
    named: str, has: str, tmp_path: Path
) -> None:
    """OpenSSL asks on the terminal for the password of an encrypted key, if nobody gives one: the thread would wait."""
    authority = Authority("of a source")
    pair = authority.client("tas")
    encrypted = serialization.load_pem_private_key(pair.key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    content = {"nothing": b"", "another key": authority.client("another").key, "a password": encrypted}[has]
    tls = TlsConfig(ca_file="ca", cert_file="chain", key_file="key")
    (tmp_path / "ca").write_bytes(authority.certificate)
    (tmp_path / "chain").write_bytes(pair.certificate)
    (tmp_path / "key").write_bytes(pair.key)
    client = HttpClient("https://source.example", folder=tmp_path, user_agent="tas")
    await client.session(HttpConfig(tls_config=tls))
    (tmp_path / getattr(tls, named)).unlink()
    (tmp_path / getattr(tls, named)).write_bytes(content)
    names = "ca: must have certificates" if named == "ca_file" else "chain and key: must be a certificate and its"
    with pytest.raises(http_client.HttpConfigError, match=f"^{names}"):
        await client.session(HttpConfig(tls_config=tls))
    await client.close()


async def test_a_certificate_that_has_expired_is_an_error_that_says_so(tmp_path: Path) -> None:
    authority = Authority("of a source")
    pair = authority.server("localhost", lives=dt.timedelta(hours=-1))
    (tmp_path / "ca").write_bytes(authority.certificate)
    (tmp_path / "chain").write_bytes(pair.certificate)
    (tmp_path / "key").write_bytes(pair.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "chain", tmp_path / "key")
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
    client = HttpClient(url, folder=tmp_path, user_agent="tas")
    session = await client.session(HttpConfig(tls_config=TlsConfig(ca_file="ca")))
    with pytest.raises(aiohttp.ClientConnectorCertificateError, match="certificate has expired"):
        await session.get(url, headers={"Authorization": "Bearer secret"})
    await client.close()
    server.close()
    assert asked in ([], [b""]), "nothing was sent, and no credentials"
