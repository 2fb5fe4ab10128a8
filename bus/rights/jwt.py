"""The JWTs of a NATS server in operator mode: an operator signs accounts, an account signs users (JWT version 2)."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from bus.records.codec import UNREADABLE
from bus.rights.nkeys import Nkey, NkeyKind
from bus.rights.roles import Limits, Permissions

_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}
_UNLIMITED = -1

ANSWER_SECONDS = 5
"""So long a server remembers to whom an answer for another account belongs. A client waits for less."""

_ONE_ANSWER = {"response_type": "Singleton", "response_threshold": ANSWER_SECONDS * 10**9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A signing key whose users all have the same template of permissions and limits.

    In `permissions` the server replaces `{{name()}}` by the name of the user, and `{{tag(x)}}` by its tags `x:VALUE`.
    """

    key: str
    role: str
    permissions: Permissions
    limits: Limits


def operator_jwt(operator: Nkey, *, name: str, system_account: str, signing_keys: Sequence[str], now: float) -> str:
    """The JWT of an operator, signed by itself. Public keys in `signing_keys` may sign accounts."""
    nats = {"signing_keys": list(signing_keys), "system_account": system_account, "type": "operator", "version": 2}
    return _jwt(operator, operator.public, name, nats, now=now)


def account_jwt(
    signer: Nkey,
    account: str,
    *,
    name: str,
    signing_keys: Sequence[str | Scope],
    jetstream: bool,
    now: float,
    revoked: Mapping[str, int] | None = None,
    answers: Sequence[str] = (),
    asks: str = "",
    asked: Mapping[str, str] | None = None,
    connections: int = _UNLIMITED,
) -> str:
    """The JWT of an account, signed by an operator. The `signing_keys` may sign users.

    `revoked` has the public key of each user whose JWTs up to a time (seconds since 1970) do not count. `answers` are
    subjects on which other accounts may send requests to this one. `asks` is another account, and `asked` has such
    subjects of it by the subjects here. `connections` is how many all users may have at once, on all servers together.
    """
    storage = _UNLIMITED if jetstream else 0
    limits = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "leaf", "streams", "consumer"), _UNLIMITED)
    keys: list[str | dict[str, Any]] = [
        each
        if isinstance(each, str)
        else {
            "kind": "user_scope",
            "key": each.key,
            "role": each.role,
            "template": _claims(each.permissions, each.limits),
        }
        for each in signing_keys
    ]
    nats: dict[str, Any] = {
        "limits": {**limits, "conn": connections, "wildcards": True, "mem_storage": storage, "disk_storage": storage},
        "signing_keys": keys,
        "type": "account",
        "version": 2,
    }
    if revoked:
        nats["revocations"] = dict(revoked)
    if answers:
        nats["exports"] = [{**_service(each), **_ONE_ANSWER} for each in answers]
    if asked:
        nats["imports"] = [
            {**_service(there), "account": asks} | ({} if here == there else {"local_subject": here})
            for here, there in asked.items()
        ]
    return _jwt(signer, account, name, nats, now=now)


def user_jwt(
    signer: Nkey,
    user: str,
    *,
    account: str,
    name: str,
    permissions: Permissions | None,
    now: float,
    tags: Sequence[str] = (),
    expires: float | None = None,
) -> str:
    """The JWT of a user of an account. Without `permissions` the user has those of the scope of the signing key."""
    nats: dict[str, Any] = {"type": "user", "version": 2}
    if signer.public != account:
        nats["issuer_account"] = account
    if tags:
        nats["tags"] = list(tags)
    if permissions is not None:
        nats |= _claims(permissions, None)
    return _jwt(signer, user, name, nats, now=now, expires=expires)


def claims_of(jwt: str) -> dict[str, Any]:
    """What a JWT says, whoever signed it. Raises ValueError."""
    try:
        body = jwt.split(".")[1]
        return msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=dict[str, Any])
    except (IndexError, *UNREADABLE) as error:
        raise ValueError("must be a JWT of three parts") from error


def is_same_but_for_time(first: str, second: str) -> bool:
    """Whether two JWTs mean the same, except when they were made. Raises ValueError."""
    try:
        one, other = (_unordered({**claims_of(each), "iat": 0, "jti": ""}) for each in (first, second))
        return bool(one == other)
    except RecursionError as error:
        raise ValueError("must not be nested so deep") from error


def _unordered(value: Any) -> Any:
    """With each list in one order: for a server the order of keys, subjects and tags has no meaning."""
    if isinstance(value, dict):
        return {name: _unordered(each) for name, each in value.items()}
    if isinstance(value, list):
        return sorted(map(_unordered, value), key=partial(msgspec.json.encode, order="sorted"))
    return value


def _claims(permissions: Permissions, limits: Limits | None) -> dict[str, Any]:
    """As the JWT of a user, or a template, has them. No server counts `data`."""
    subscriptions = _UNLIMITED if limits is None else limits.subscriptions
    payload = _UNLIMITED if limits is None or limits.message_bytes is None else limits.message_bytes
    publish = _only(permissions.publish)
    if permissions.publish and permissions.denied:
        publish["deny"] = list(permissions.denied)
    of_claims = {"subs": subscriptions, "data": _UNLIMITED, "payload": payload}
    return {**of_claims, "pub": publish, "sub": _only(permissions.subscribe)}


def _service(subject: str) -> dict[str, str]:
    """Requests to a subject, between two accounts."""
    return {"name": subject, "subject": subject, "type": "service"}


def _only(subjects: Sequence[str]) -> dict[str, list[str]]:
    # Without any allowed subject everything would be allowed.
    return {"allow": list(subjects)} if subjects else {"deny": [">"]}


def _jwt(
    signer: Nkey, subject: str, name: str, nats: Mapping[str, Any], *, now: float, expires: float | None = None
) -> str:
    assert signer.kind in (NkeyKind.OPERATOR, NkeyKind.ACCOUNT), "only operators and accounts sign"
    claims: dict[str, Any] = {"iat": int(now), "iss": signer.public, "name": name, "sub": subject, "nats": nats}
    if expires is not None:
        claims["exp"] = int(expires)
    digest = hashlib.new("sha512_256", msgspec.json.encode(claims, order="sorted")).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    text = ".".join(map(_base64, (msgspec.json.encode(_HEADER), msgspec.json.encode(claims, order="sorted"))))
    return f"{text}.{_base64(signer.sign(text.encode()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
