"""An operator of a closed bus: its keys, the part of the server's configuration that trusts them, and its users.

In operator mode a server trusts an operator, which signs one account with all streams of the product. Each role of
`bus.rights.roles` has a signing key of that account, whose users all have the rights of the role: new rights need a new
configuration of the server, and no new credentials.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bus.rights.credentials import credentials_text
from bus.rights.jwt import Scope, account_jwt, claims_of, is_same_but_for_time, operator_jwt, user_jwt
from bus.rights.nkeys import Nkey, NkeyKind
from bus.rights.roles import INBOX, ROLES, Permissions

NAME = "tas"
"""The name of the operator and of the account with the streams."""

LOOKS = ("$SYS.REQ.SERVER.PING.VARZ", "$SYS.REQ.SERVER.PING.ACCOUNTZ")
"""The questions to which each server answers a user of the system account."""

MENDS = (
    *(f"$JS.API.STREAM.{verb}.*" for verb in ("INFO", "UPDATE")),
    "$JS.API.CONSUMER.LIST.*",
    "$JS.API.CONSUMER.DELETE.*.*",
)
"""What changes the settings of streams, and finds and deletes consumers: no role has these rights.

Few subjects, since a server takes no credentials of more than 4 KiB.
"""

_LINE = re.compile(r"^ {0,2}(operator|[A-Z0-9]{56}): (\S+)$", re.MULTILINE)
"""Whose JWT it is, and the JWT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The secret keys of an operator. `roles` are the signing keys of the account."""

    operator: Nkey
    system: Nkey
    account: Nkey
    roles: Mapping[str, Nkey]

    @classmethod
    def new(cls) -> "Keys":
        """Random keys."""
        return cls(
            operator=Nkey.new(NkeyKind.OPERATOR),
            system=Nkey.new(NkeyKind.ACCOUNT),
            account=Nkey.new(NkeyKind.ACCOUNT),
            roles={role: Nkey.new(NkeyKind.ACCOUNT) for role in ROLES},
        )

    def server_configuration(self, *, revoked: Mapping[str, int], now: float, before: str = "") -> str:
        """What a server must know of the operator: no part of this is secret.

        `revoked` has the public key of each user whose credentials made up to a time do not count. `before` is the
        configuration until now: of this stays what would only have a later time, since a server that runs does not
        take another operator.
        """
        known = dict(_LINE.findall(before))
        scopes = [
            Scope(key=key.public, role=role, permissions=ROLES[role].rights.permissions, limits=ROLES[role].limits)
            for role, key in self.roles.items()
        ]
        operator = operator_jwt(self.operator, name=NAME, system_account=self.system.public, signing_keys=(), now=now)
        account = account_jwt(
            self.operator,
            self.account.public,
            name=NAME,
            signing_keys=scopes,
            jetstream=True,
            now=now,
            revoked=revoked,
        )
        system = account_jwt(
            self.operator, self.system.public, name="system", signing_keys=(), jetstream=False, now=now
        )
        return (
            "# Made by `tas bus init`. The server trusts this operator; its account has the rights of each role.\n"
            f"operator: {_kept(known.get('operator'), operator)}\n"
            f"system_account: {self.system.public}\n"
            "resolver: MEMORY\n"
            "resolver_preload {\n"
            f"  {self.account.public}: {_kept(known.get(self.account.public), account)}\n"
            f"  {self.system.public}: {_kept(known.get(self.system.public), system)}\n"
            "}\n"
        )

    def account_in(self, configuration: str) -> str:
        """The JWT of the account in what `server_configuration` made; empty if there is none."""
        found: dict[str, str] = dict(_LINE.findall(configuration))
        return found.get(self.account.public, "")

    def looker(self, name: str, *, now: float, expires: float) -> str:
        """The credentials file of a user of the system account, who may ask the servers about themselves."""
        key = Nkey.new(NkeyKind.USER)
        jwt = user_jwt(
            self.system,
            key.public,
            account=self.system.public,
            name=name,
            permissions=Permissions(publish=LOOKS, subscribe=(f"{INBOX}.{name}.>",)),
            now=now,
            expires=expires,
        )
        return credentials_text(jwt, key)

    def mender(self, name: str, *, now: float, expires: float) -> str:
        """The credentials file of a user of the account, who may change streams and delete consumers."""
        key = Nkey.new(NkeyKind.USER)
        jwt = user_jwt(
            self.account,
            key.public,
            account=self.account.public,
            name=name,
            permissions=Permissions(publish=MENDS, subscribe=(f"{INBOX}.{name}.>",)),
            now=now,
            expires=expires,
        )
        return credentials_text(jwt, key)

    def credentials(
        self, role: str, name: str, *, tags: Sequence[str] = (), now: float, expires: float | None = None
    ) -> str:
        """The credentials file of a new user of a role."""
        key = Nkey.new(NkeyKind.USER)
        jwt = user_jwt(
            self.roles[role],
            key.public,
            account=self.account.public,
            name=name,
            permissions=None,
            tags=tags,
            now=now,
            expires=expires,
        )
        return credentials_text(jwt, key)


def _kept(before: str | None, now: str) -> str:
    """The JWT from before, if the other one only has a later time."""
    try:
        return before if before is not None and is_same_but_for_time(before, now) else now
    except ValueError:
        return now


@dataclass(frozen=True, slots=True, kw_only=True)
class UserClaims:
    """What the JWT of a user says: who it is, and which key has signed it."""

    name: str
    public: str
    issuer: str
    tags: tuple[str, ...]


def user_claims(jwt: str) -> UserClaims:
    """The claims of a user. Raises ValueError."""
    claims = claims_of(jwt)
    nats = claims.get("nats")
    tags = nats.get("tags") if isinstance(nats, dict) else None
    return UserClaims(
        name=str(claims.get("name", "")),
        public=str(claims.get("sub", "")),
        issuer=str(claims.get("iss", "")),
        tags=tuple(map(str, tags)) if isinstance(tags, list) else (),
    )
