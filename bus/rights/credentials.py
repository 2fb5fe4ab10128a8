"""A credentials file (`.creds`), as every client of NATS reads it: the JWT of a user, and the seed of its key."""

import base64
import re
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from bus.errors import AccessError
from bus.rights.jwt import claims_of
from bus.rights.nkeys import Nkey, NkeyError, NkeyKind
from tas.errors import line_of

_MARK = re.compile(rb"-{3,}(BEGIN|END) ([^-]+)-{3,}")
"""The line before a block, and the line after it."""

_TEXT = re.compile(rb"[A-Za-z0-9_.=-]+")
_JWT, _SEED = "NATS USER JWT", "USER NKEY SEED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A user. `expires` is in seconds since 1970; 0: never."""

    jwt: str
    name: str
    expires: float
    key: Nkey = field(repr=False)

    def sign(self, nonce: str) -> bytes:
        """The signature of what the server sent, as nats-py sends it back."""
        return base64.b64encode(self.key.sign(nonce.encode()))


class _Claims(msgspec.Struct):
    sub: str
    name: str = ""
    exp: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0  # as a server reads it


def parse_credentials(data: bytes, file: str) -> Credentials:
    """The user in a credentials file; the server checks the signature of its JWT. Raises AccessError."""
    blocks = _blocks(data)
    jwt, seed = blocks.get(_JWT), blocks.get(_SEED)
    if jwt is None or seed is None:
        raise AccessError(f"{file}: must have the blocks {_JWT} and {_SEED}")
    try:
        claims = msgspec.convert(claims_of(jwt), _Claims)
    except (ValueError, msgspec.MsgspecError) as error:
        raise AccessError(f"{file}: {_JWT}: must be a JWT: {line_of(str(error))}") from error
    try:
        key = Nkey.of_seed(seed)
    except NkeyError as error:
        raise AccessError(f"{file}: {_SEED}: {error}") from error
    if key.kind is not NkeyKind.USER or claims.sub != key.public:
        raise AccessError(f"{file}: {_SEED}: must be the key of the user {line_of(claims.sub, 64)} of the JWT")
    return Credentials(jwt=jwt, name=line_of(claims.name or claims.sub, 64), expires=claims.exp, key=key)


def _blocks(data: bytes) -> dict[str, str]:
    """The text of each block with one line of text, by its name."""
    found: dict[str, str] = {}
    begun, texts = b"", list[bytes]()
    for line in map(bytes.strip, data.splitlines()):
        if (mark := _MARK.fullmatch(line)) is None:
            texts += [line] if line else []
            continue
        if mark[1] == b"END" and mark[2] == begun and len(texts) == 1 and _TEXT.fullmatch(texts[0]):
            found[begun.decode(errors="replace")] = texts[0].decode()
        begun, texts = mark[2] if mark[1] == b"BEGIN" else b"", []
    return found


def credentials_text(jwt: str, key: Nkey) -> str:
    """The contents of a credentials file."""
    return (
        f"-----BEGIN {_JWT}-----\n{jwt}\n------END {_JWT}------\n\n"
        f"-----BEGIN {_SEED}-----\n{key.seed}\n------END {_SEED}------\n"
    )
