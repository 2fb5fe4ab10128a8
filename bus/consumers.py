"""Consumers on the server: which names a user may give to them, and why one cannot be had.

A user of a closed bus that reads streams has a few names for all its processes or commands together
(`bus.rights.roles`), so that nobody takes the places of others.
"""

import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from bus.errors import CONSUMER_EXISTS, BusError, ForbiddenError, NoPlaceError, UnavailableError
from bus.link import CALL_SECONDS, Link
from bus.subjects import OWN_RIGHTS
from tas.values.nouns import counted

MOST = 1000
"""How many consumers a server allows on a stream that has no `max_consumers`, unless its `default_max_consumers` is
another number (facts.md n45)."""

_RANDOM = secrets.SystemRandom()


class _Allowed(msgspec.Struct):
    allow: list[str] = []


class _Permitted(msgspec.Struct):
    publish: _Allowed = msgspec.field(default_factory=_Allowed)


class _Info(msgspec.Struct):
    permissions: _Permitted | None = None


class _Answer(msgspec.Struct):
    data: _Info = msgspec.field(default_factory=_Info)


async def create(
    link: Link, stream: str, config: Mapping[str, Any], *, prefix: str, filter_subject: str = ""
) -> tuple[str, dict[str, Any]]:
    """Creates an ephemeral consumer; returns its name and the answer of the server.

    With `prefix` and a random number as its name, or with one of the names that this user may give. `filter_subject`:
    the only one of the configuration, which the server then demands in the subject of the request.
    Raises BusError: CrowdedError if the stream has no place, NoPlaceError if all consumers of this user are in use.
    """
    names = names_of(await allowed_subjects(link), stream)
    token = secrets.token_hex(8)
    # Of two requests for one name with the same configuration, the server accepts both: the token tells them apart.
    own = {**config, "description": token}
    tried = (f"{prefix}-{token}",) if names is None else _RANDOM.sample(names, len(names))
    for name in tried:
        verb = f"CONSUMER.CREATE.{stream}.{name}" + (f".{filter_subject}" if filter_subject else "")
        body = {"stream_name": stream, "config": {**own, "name": name}, "action": "create"}
        try:
            return name, await link.api(verb, body, seconds=CALL_SECONDS)
        except BusError as error:
            if names is None or error.code != CONSUMER_EXISTS:
                raise
    raise NoPlaceError(
        f"{link.who} may have {counted(len(tried), 'consumer')} on {stream}, and none is free: "
        f"{', '.join(sorted(tried))}. End another command or process of this user, or make another user: tas bus user "
        "DIR ROLE NAME; credentials from before this version have one place: --renew gives them all"
    )


def names_of(allowed: Collection[str] | None, stream: str) -> Sequence[str] | None:
    """The names that a user may give to consumers of a stream; None: any, or it is not known."""
    if allowed is None:
        return None
    names = {name for each in (stream, "*") for name in _last_tokens(allowed, f"$JS.API.CONSUMER.CREATE.{each}.")}
    # Who may look at a consumer has a durable one of this name, such as that of `materialize`.
    durable = _last_tokens(allowed, f"$JS.API.CONSUMER.INFO.{stream}.")
    return None if not names or names & {"*", ">"} else sorted(names - durable) or sorted(names)


def _last_tokens(allowed: Collection[str], start: str) -> set[str]:
    """What follows in the subjects that begin so, if it is one token."""
    return {name for each in allowed if each.startswith(start) and "." not in (name := each.removeprefix(start))}


async def allowed_subjects(link: Link) -> Collection[str] | None:
    """The subjects to which the user of a connection may publish; None: any, or it is not known. Raises BusError."""
    if not link.loaded.name:
        return None
    if link.allowed is None:
        try:
            data = await link.request(OWN_RIGHTS, b"", seconds=CALL_SECONDS)
        except ForbiddenError:  # a user of other rights than ours: then it is not known which names it has
            return None
        try:
            found = msgspec.json.decode(data, type=_Answer).data.permissions
        except msgspec.MsgspecError as error:
            raise UnavailableError(f"{OWN_RIGHTS}: invalid answer {data[:200]!r}") from error
        link.allowed = () if found is None else tuple(found.publish.allow)
    return link.allowed
