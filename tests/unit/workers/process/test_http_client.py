"""The TLS of clients of sources and sinks."""

import asyncio
import ssl
from pathlib import Path

import aiohttp
import pytest

from tas.values.http_config import HttpConfig, TlsConfig
from tests.certificates import Authority
from workers.process.http_client import HttpClient
from workers.process.http_protocol import BoundedConnector


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
