"""A client of TLS 1.3 that asks for new keys as often as it likes: no library offers this."""

import asyncio
import hashlib
import hmac
import ssl
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

APPLICATION_DATA, HANDSHAKE = 23, 22
KEY_UPDATE = b"\x18\x00\x00\x01\x00"
"""The message of RFC 8446, 4.6.3, which asks for no answer."""

KEY_UPDATE_WITH_ANSWER = KEY_UPDATE[:-1] + b"\x01"
CIPHER = "TLS_AES_256_GCM_SHA384"
TAG_BYTES, IV_BYTES, KEY_BYTES = 16, 12, 32


def _expanded(secret: bytes, label: bytes, length: int) -> bytes:
    """`HKDF-Expand-Label` of RFC 8446, 7.1, without a context, for at most 48 bytes."""
    name = b"tls13 " + label
    info = length.to_bytes(2, "big") + bytes([len(name)]) + name + b"\x00"
    return hmac.new(secret, info + b"\x01", hashlib.sha384).digest()[:length]


class KeyUpdater:
    """Makes the records that a client sends after its handshake. Nothing of the library counts any more."""

    def __init__(self, secret: bytes) -> None:
        """`secret`: the first traffic secret of the client."""
        self._use(secret)

    def _use(self, secret: bytes) -> None:
        self._secret = secret
        self._cipher = AESGCM(_expanded(secret, b"key", KEY_BYTES))
        self._iv = int.from_bytes(_expanded(secret, b"iv", IV_BYTES), "big")
        self._sequence = 0

    def record(self, kind: int, content: bytes) -> bytes:
        inner = content + bytes([kind])
        header = b"\x17\x03\x03" + (len(inner) + TAG_BYTES).to_bytes(2, "big")
        nonce = (self._iv ^ self._sequence).to_bytes(IV_BYTES, "big")
        self._sequence += 1
        return header + self._cipher.encrypt(nonce, inner, header)

    def key_update(self, message: bytes = KEY_UPDATE) -> bytes:
        """A record that begins new keys, which the next records have."""
        record = self.record(HANDSHAKE, message)
        self._use(_expanded(self._secret, b"traffic upd", 48))
        return record


async def connected(
    host: str, port: int, context: ssl.SSLContext, log: Path
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, KeyUpdater]:
    """A connection after its handshake: bytes are read and written as they are on the wire."""
    context.keylog_filename = str(log)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=host)
    reader, writer = await asyncio.open_connection(host, port)
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            writer.write(outgoing.read())
            incoming.write(await reader.read(1 << 16))
        else:
            break
    writer.write(outgoing.read())
    cipher = tls.cipher()
    assert cipher is not None
    assert cipher[0] == CIPHER
    lines = (await asyncio.to_thread(log.read_text)).splitlines()
    secrets = dict(line.split()[::2] for line in lines if not line.startswith("#"))
    return reader, writer, KeyUpdater(bytes.fromhex(secrets["CLIENT_TRAFFIC_SECRET_0"]))
