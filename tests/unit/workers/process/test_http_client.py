"""The TLS of clients of sources and sinks."""

import ssl
from pathlib import Path

import pytest

from tas.values.http_config import HttpConfig, TlsConfig
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
