"""Signatures of HTTP requests in the form of Standard Webhooks: HMAC-SHA256 over id, time and body (facts.md V1).

No other header is signed, so that all that counts of an event must be in the body.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable

from tas.events.event import Event

MIN_SECRET = 24
"""The fewest bytes of a secret."""

MAX_SECRET = 64
"""The most bytes of a secret."""

_PREFIX = "whsec_"


class SecretError(ValueError):
    """Text that is no secret. The message does not quote the text."""


def parse_secrets(text: str) -> tuple[bytes, ...]:
    """The secrets in a text: one for each word, `whsec_` and base64. The first is the newest.

    While a receiver changes its secret, a request has a signature of each. Raises SecretError.
    """
    secrets = tuple(map(_parse_secret, text.split()))
    if not secrets:
        raise SecretError("holds no secret")
    return secrets


def webhook_id(event: Event) -> str:
    """The id of the requests for an event, the same for each attempt, and different for all other events.

    A receiver splits the signed text at full stops, so the id has none; the id of an event may have some.
    """
    return f"evt_{hashlib.sha256(f'{event.source} {event.id}'.encode()).hexdigest()[:32]}"


def signature_headers(secrets: Iterable[bytes], *, identity: str, now: float, body: bytes) -> dict[str, str]:
    """The headers of one attempt. `identity` is a `webhook_id`, `now` is in seconds since 1970.

    The time is that of the attempt: a receiver refuses a request whose time is minutes away, and so a replay.
    """
    timestamp = str(int(now))
    content = b".".join((identity.encode(), timestamp.encode(), body))
    signatures = (base64.b64encode(hmac.new(secret, content, hashlib.sha256).digest()).decode() for secret in secrets)
    return {
        "webhook-id": identity,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def _parse_secret(word: str) -> bytes:
    if not word.startswith(_PREFIX):
        raise SecretError(f"a secret must begin with {_PREFIX}")
    try:
        secret = base64.b64decode(word.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise SecretError(f"a secret must be {_PREFIX} and base64") from None
    if not MIN_SECRET <= len(secret) <= MAX_SECRET:
        raise SecretError(f"a secret must have {MIN_SECRET} to {MAX_SECRET} bytes, not {len(secret)}")
    return secret
