"""Bearer tokens (RFC 6750) of those who write to us."""

import hmac
import re
from collections.abc import Collection

_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")

MAX_TOKENS = 100


def parse_tokens(text: bytes) -> frozenset[bytes]:
    """The tokens in a file, one on each line; lines without a token are ignored.

    Raises ValueError with the reason, which quotes no token.
    """
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    tokens = {line: number for number, line in lines if line}
    if not tokens:
        raise ValueError("has no token")
    if len(tokens) > MAX_TOKENS:
        raise ValueError(f"{len(tokens)} tokens: must be at most {MAX_TOKENS}")
    for token, number in tokens.items():
        if _TOKEN.fullmatch(token) is None:
            raise ValueError(f"line {number}: a token consists of letters, digits and -._~+/, and may end with =")
    return frozenset(tokens)


def token_problem(header: str | None, tokens: Collection[bytes]) -> str | None:
    """Why the header `Authorization` of a request has none of the tokens; None if it has one.

    Takes the same time for each wrong token of one length. Quotes no part of the header.
    """
    if header is None:
        return "is missing: must be Bearer and a token"
    scheme, _, given = header.strip().partition(" ")
    if scheme.lower() != "bearer":
        return "must be Bearer and a token"
    sent = given.strip().encode(errors="surrogateescape")
    matches = [hmac.compare_digest(sent, token) for token in tokens]  # all of them, whichever matches
    return None if any(matches) else "an unknown token"
