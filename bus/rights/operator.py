"""An operator of a closed bus: its keys, the part of the server's configuration that trusts them, and its users.

In operator mode a server trusts an operator, which signs one account with all streams of the product, and one for
programs that only publish samples: the server writes its answers to any reply subject within the account of the user,
and that one has no stream. Each role of `bus.rights.roles` has a signing key of its account, whose users all have the
rights of the role: new rights need a new configuration of the server, and no new credentials.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bus.buckets import LEASES
from bus.rights.credentials import credentials_text
from bus.rights.jwt import Scope, account_jwt, claims_of, is_same_but_for_time, operator_jwt, user_jwt
from bus.rights.nkeys import Nkey, NkeyKind
from bus.rights.roles import INBOX, PUBLISHERS, Permissions, Role, published

NAME = "tas"
"""The name of the operator and of the account with the streams."""

PUBLISHER_CONNECTIONS = 50_000
"""A server takes 65,536 connections by default: so no credentials of a node keep the processes from connecting.

It is three programs on each of 16,000 nodes.
"""

LOOKS = tuple(f"$SYS.REQ.SERVER.PING.{what}" for what in ("VARZ", "ACCOUNTZ", "CONNZ"))
"""The questions to which each server answers a user of the system account."""

MENDS = (
    *(f"$JS.API.STREAM.{verb}.*" for verb in ("INFO", "UPDATE")),
    "$JS.API.CONSUMER.LIST.*",
    "$JS.API.CONSUMER.DELETE.*.*",
    *(f"$JS.API.STREAM.{verb}.{LEASES.stream}" for verb in ("MSG.GET", "PURGE")),
)
"""What changes the settings of streams, finds and deletes consumers, and removes leases: no role has these rights.

Few subjects, since a server takes no credentials of more than 4 KiB.
"""

_LINE = re.compile(r"^ {0,2}(operator|[A-Z0-9]{56}): (\S+)$", re.MULTILINE)
"""Whose JWT it is, and the JWT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The secret keys of an operator.

    Attributes:
        account: Of the account with the streams.
        publishers: Of the account of the roles `PUBLISHERS`.
        roles: The signing key of each role.
    """

    operator: Nkey
    system: Nkey
    account: Nkey
    publishers: Nkey
    roles: Mapping[str, Nkey]

    @classmethod
    def new(cls, roles: Iterable[str]) -> "Keys":
        """Random keys."""
        return cls(
            operator=Nkey.new(NkeyKind.OPERATOR),
            system=Nkey.new(NkeyKind.ACCOUNT),
            account=Nkey.new(NkeyKind.ACCOUNT),
            publishers=Nkey.new(NkeyKind.ACCOUNT),
            roles={role: Nkey.new(NkeyKind.ACCOUNT) for role in roles},
        )

    def server_configuration(
        self,
        roles: Mapping[str, Role],
        *,
        revoked: Mapping[str, int],
        now: float,
        before: str = "",
        earlier: bool = False,
    ) -> str:
        """What a server must know of the operator: no part of this is secret.

        `revoked` has the public key of each user whose credentials made up to a time do not count. `before` is the
        configuration until now: of this stays what would only have a later time, since a server that runs does not
        take another operator. `earlier`: programs with credentials of an earlier version, and processes of that
        version, go on.
        """
        known = dict(_LINE.findall(before))

        def scopes(names: Iterable[str]) -> list[Scope]:
            return [
                Scope(
                    key=self.roles[name].public,
                    role=name,
                    permissions=(roles[name].earlier if earlier else roles[name].strict).permissions,
                    limits=roles[name].limits,
                )
                for name in names
            ]

        operator = operator_jwt(self.operator, name=NAME, system_account=self.system.public, signing_keys=(), now=now)
        account = account_jwt(
            self.operator,
            self.account.public,
            name=NAME,
            signing_keys=scopes(role for role in self.roles if earlier or role not in PUBLISHERS),
            jetstream=True,
            now=now,
            revoked=revoked,
            answers=tuple(published(earlier=earlier).values()),
        )
        publishers = account_jwt(
            self.operator,
            self.publishers.public,
            name=f"{NAME}-publishers",
            signing_keys=scopes(PUBLISHERS),
            jetstream=False,
            now=now,
            revoked=revoked,
            asks=self.account.public,
            asked=published(earlier=earlier),
            connections=PUBLISHER_CONNECTIONS,
        )
        system = account_jwt(
            self.operator, self.system.public, name="system", signing_keys=(), jetstream=False, now=now
        )
        return (
            "# Made by `tas bus init`. The server trusts this operator; its accounts have the rights of each role.\n"
            f"operator: {_kept(known.get('operator'), operator)}\n"
            f"system_account: {self.system.public}\n"
            "resolver: MEMORY\n"
            "resolver_preload {\n"
            f"  {self.account.public}: {_kept(known.get(self.account.public), account)}\n"
            f"  {self.publishers.public}: {_kept(known.get(self.publishers.public), publishers)}\n"
            f"  {self.system.public}: {_kept(known.get(self.system.public), system)}\n"
            "}\n"
        )

    def signers_in(self, configuration: str) -> dict[str, str]:
        """By role, the public key by whose signature what `server_configuration` made takes its users."""
        found: dict[str, str] = {}
        for account in (self.account, self.publishers):
            for each in _signing_keys(jwt_in(configuration, account)) or ():
                found[each["role"]] = each["key"]
        return found

    def has_other_account(self, configuration: str) -> bool:
        """Whether `server_configuration` made this for this operator with a key of publishers that is not here."""
        accounts = dict(_LINE.findall(configuration)).keys()
        known = {"operator", *(key.public for key in (self.account, self.publishers, self.system))}
        return self.account.public in accounts and bool(accounts - known)

    def takes_earlier(self, configuration: str) -> bool | None:
        """Whether a configuration takes credentials of an earlier version; None if it is not of this operator."""
        keys = _signing_keys(jwt_in(configuration, self.account))
        if keys is None:
            return None
        known = {each["key"] for each in keys}
        return any(self.roles[role].public in known for role in PUBLISHERS)

    def looker(self, name: str, *, now: float, expires: float) -> str:
        """The credentials file of a user of the system account, who may ask the servers about themselves."""
        return _new_user(self.system, self.system, name, LOOKS, now=now, expires=expires)

    def mender(self, name: str, *, now: float, expires: float) -> str:
        """The credentials file of a user of the account, who may change streams and delete consumers."""
        return _new_user(self.account, self.account, name, MENDS, now=now, expires=expires)

    def credentials(
        self, role: str, name: str, *, tags: Sequence[str] = (), now: float, expires: float | None = None
    ) -> str:
        """The credentials file of a new user of a role."""
        account = self.publishers if role in PUBLISHERS else self.account
        return _new_user(self.roles[role], account, name, tags=tags, now=now, expires=expires)


def _new_user(
    signer: Nkey,
    account: Nkey,
    name: str,
    publish: Sequence[str] | None = None,
    *,
    tags: Sequence[str] = (),
    now: float,
    expires: float | None,
) -> str:
    """The credentials file of a new user, who may `publish` to these subjects; None: with the rights of a role."""
    key = Nkey.new(NkeyKind.USER)
    rights = None if publish is None else Permissions(publish=tuple(publish), subscribe=(f"{INBOX}.{name}.>",))
    signed = user_jwt(
        signer, key.public, account=account.public, name=name, permissions=rights, tags=tags, now=now, expires=expires
    )
    return credentials_text(signed, key)


def jwt_in(configuration: str, account: Nkey) -> str:
    """The JWT of an account in what `server_configuration` made; empty if there is none that can be read."""
    found: str = dict(_LINE.findall(configuration)).get(account.public, "")
    try:
        return found if found and claims_of(found) else ""
    except ValueError:
        return ""


def _signing_keys(account: str) -> list[dict[str, str]] | None:
    """The signing keys with a role in the JWT of an account; None if this is no such JWT."""
    nats = claims_of(account).get("nats") if account else None
    if not isinstance(nats, dict):
        return None
    keys = nats.get("signing_keys")
    fields = ("role", "key")
    return [
        {field: each[field] for field in fields}
        for each in (keys if isinstance(keys, list) else ())
        if isinstance(each, dict) and all(isinstance(each.get(field), str) for field in fields)
    ]


def _kept(before: str | None, now: str) -> str:
    """The JWT from before, if the other one only has a later time."""
    try:
        return before if before is not None and is_same_but_for_time(before, now) else now
    except ValueError:
        return now


_LONGEST = 1 << 53
"""Seconds: more is without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserClaims:
    """What the JWT of a user says: who it is, in which account, and which key has signed it.

    `seconds` is how long it counts in all; None: without end.
    """

    name: str
    public: str
    issuer: str
    account: str
    tags: tuple[str, ...]
    seconds: float | None = None

    def values(self, kind: str) -> tuple[str, ...]:
        """The values of its tags `kind:VALUE`."""
        return tuple(each.partition(":")[2] for each in self.tags if each.startswith(f"{kind}:"))


def user_claims(jwt: str) -> UserClaims:
    """The claims of a user. Raises ValueError."""
    claims = claims_of(jwt)
    nats = claims.get("nats")
    of_nats = nats if isinstance(nats, dict) else {}
    tags, issuer = of_nats.get("tags"), str(claims.get("iss", ""))
    made, end = claims.get("iat"), claims.get("exp")
    seconds = end - made if isinstance(made, int) and isinstance(end, int) else None
    return UserClaims(
        name=str(claims.get("name", "")),
        public=str(claims.get("sub", "")),
        issuer=issuer,
        account=str(of_nats.get("issuer_account", issuer)),
        tags=tuple(map(str, tags)) if isinstance(tags, list) else (),
        seconds=None if seconds is None or abs(seconds) > _LONGEST else float(seconds),
    )
