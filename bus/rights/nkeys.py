"""Keys of NATS: an Ed25519 key as text that says what it is for, and what it signs.

A key is base32 of a prefix, 32 bytes and a CRC-16 (XMODEM), as the server and its tools read it. A *seed* is the secret
half, the other half is *public*: its first letter says what the key is for.
"""

import base64
import binascii
from dataclasses import dataclass
from enum import IntEnum

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_SEED = 18 << 3
"""The prefix of a seed: the letter S. The prefix of its kind follows."""


class NkeyKind(IntEnum):
    """What a key is for, by the prefix of its public half."""

    OPERATOR = 14 << 3
    ACCOUNT = 0
    USER = 20 << 3
    SERVER = 13 << 3


class NkeyError(ValueError):
    """A text is no key; the message never has the text, which may be a secret."""


@dataclass(frozen=True, slots=True)
class Nkey:
    """A key with its secret half."""

    kind: NkeyKind
    _key: Ed25519PrivateKey

    @classmethod
    def new(cls, kind: NkeyKind) -> "Nkey":
        """A random key."""
        return cls(kind, Ed25519PrivateKey.generate())

    @classmethod
    def of_seed(cls, text: str) -> "Nkey":
        """The key of a seed, such as `SUAM…`. Raises NkeyError."""
        raw = _decoded(text)
        if len(raw) != 34 or raw[0] & 0xF8 != _SEED:
            raise NkeyError("must be the seed of a key, which begins with S")
        prefix = ((raw[0] & 7) << 5) | ((raw[1] & 0xF8) >> 3)
        try:
            kind = NkeyKind(prefix)
        except ValueError:
            raise NkeyError("must be the seed of an operator, an account, a server or a user") from None
        return cls(kind, Ed25519PrivateKey.from_private_bytes(raw[2:]))

    @property
    def public(self) -> str:
        """The public half as text."""
        return _encoded(bytes([self.kind]), self._key.public_key().public_bytes_raw())

    @property
    def seed(self) -> str:
        """The secret half as text."""
        prefix = bytes([_SEED | (self.kind >> 5), (self.kind & 31) << 3])
        return _encoded(prefix, self._key.private_bytes_raw())

    def sign(self, data: bytes) -> bytes:
        """The signature of `data`."""
        return self._key.sign(data)


def kind_of(public: str) -> NkeyKind:
    """What a public key is for. Raises NkeyError."""
    raw = _decoded(public)
    try:
        if len(raw) == 33:
            return NkeyKind(raw[0])
    except ValueError:
        pass
    raise NkeyError("must be a public key of an operator, an account, a server or a user")


def is_signed_by(public: str, signature: bytes, data: bytes) -> bool:
    """Whether the key with this public half has signed `data`. Raises NkeyError."""
    kind_of(public)
    try:
        Ed25519PublicKey.from_public_bytes(_decoded(public)[1:]).verify(signature, data)
    except InvalidSignature:
        return False
    return True


def _encoded(prefix: bytes, key: bytes) -> str:
    raw = prefix + key
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    """The prefix and the key. Raises NkeyError."""
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except ValueError:
        raise NkeyError("must be base32 in capital letters") from None
    if len(raw) < 3 or binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        raise NkeyError("must end with its checksum: a character is wrong or missing")
    return raw[:-2]
