"""What the commands of `tas bus` do with the files of the folder of an operator, whoever has written these."""

import base64
import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bus.rights.credentials import credentials_text
from bus.rights.jwt import claims_of, user_jwt
from bus.rights.nkeys import Nkey, NkeyKind
from bus.rights.operator import Keys, jwt_in
from bus.rights.roles import PUBLISHERS, tags_of
from bus.servers import BusServer, Varz
from cli.rights.folder import OperatorFolder, Until, _Earlier, _key, _password, _read_json
from cli.rights.servers import problem_of
from workers.roles import ROLES

NOW = 1767225605.0
WORKER = "labels"


def _made(kind: NkeyKind, name: str) -> Nkey:
    """The same key in each run, so that a finding can be repeated."""
    return Nkey(kind, Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest()))


_ACCOUNTS = {name: _made(NkeyKind.ACCOUNT, name) for name in ("system", "account", "publishers", WORKER, *PUBLISHERS)}
_USER = _made(NkeyKind.USER, "user")
KEYS = Keys(
    operator=_made(NkeyKind.OPERATOR, "operator"),
    system=_ACCOUNTS["system"],
    account=_ACCOUNTS["account"],
    publishers=_ACCOUNTS["publishers"],
    roles={role: _ACCOUNTS[role] for role in (WORKER, *PUBLISHERS)},
)
AUTH = KEYS.server_configuration(ROLES, revoked={}, now=NOW)
ACCOUNT = jwt_in(AUTH, KEYS.account)
USERS = tuple(
    user_jwt(
        KEYS.roles[role],
        _USER.public,
        account=account.public,
        name=f"tas-{role}",
        permissions=None,
        tags=tags_of(ROLES[role], f"tas-{role}", sources=("machine",)),
        now=NOW,
        expires=NOW + 5,
    )
    for role, account in ((WORKER, KEYS.account), (PUBLISHERS[0], KEYS.publishers))
)
CREDENTIALS = tuple(credentials_text(jwt, _USER).encode() for jwt in USERS)
SEED = KEYS.account.seed.encode()
PUBLIC = _USER.public
FOLDER = OperatorFolder(path=Path(), keys=KEYS, found=True, cluster_password="")


def claims(jwt: str) -> bytes:
    """The JSON in a JWT."""
    return json.dumps(claims_of(jwt)).encode()


def jwt_of(body: bytes) -> str:
    """A JWT with this JSON, which nobody has signed."""
    return f"e30.{base64.urlsafe_b64encode(body).decode().rstrip('=')}.e30"


def read_auth(data: bytes) -> object:
    """auth.conf: by which keys servers know users, what `init` writes in its place, and what `check` says of it."""
    text = data.decode(errors="replace")
    found = KEYS.signers_in(text), KEYS.has_other_account(text), KEYS.takes_earlier(text)
    server = BusServer(Varz("a"), ACCOUNT, jwt_in(AUTH, KEYS.publishers))
    problem = problem_of(server, jwt_in(text, KEYS.account), jwt_in(text, KEYS.publishers), {"a": [PUBLIC]})
    return found, problem, _written(text)


def read_account(data: bytes) -> object:
    """auth.conf with these claims of the account with the streams."""
    return read_auth(AUTH.replace(ACCOUNT, jwt_of(data)).encode())


def configuration_of(data: bytes) -> str:
    """auth.conf that is written in place of one with these claims of the account with the streams."""
    return _written(AUTH.replace(ACCOUNT, jwt_of(data)))


def _written(before: str) -> str:
    return KEYS.server_configuration(ROLES, revoked={}, now=NOW, before=before)


def read_credentials(data: bytes) -> object:
    """The credentials of a user, and which tags it gets with new ones."""
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "users" / "a.creds"
        file.parent.mkdir()
        file.write_bytes(data)
        folder = replace(FOLDER, path=Path(name))
        return [
            (folder.is_earlier(each), each.role and tags_of(ROLES[each.role], each.claims.name, sources=sources))
            for each in folder.users()
            for sources in [each.claims.values("source")]
        ]


def read_user(data: bytes) -> object:
    """The credentials of a user with these claims."""
    return read_credentials(credentials_text(jwt_of(data), _USER).encode())


def read_issued(file: Path) -> Mapping[str, object]:
    """issued.json."""
    return _read_json(file, dict[str, list[str]])


def read_revoked(file: Path) -> object:
    """revoked.json, and the configuration of servers with it."""
    return KEYS.server_configuration(ROLES, revoked=_read_json(file, dict[str, Until]), now=NOW)


def read_earlier(file: Path) -> object:
    """earlier.json."""
    return _read_json(file, _Earlier)


def read_key(file: Path) -> Nkey:
    """A file of keys/."""
    return _key(file, NkeyKind.ACCOUNT)


def read_password(file: Path) -> str:
    """cluster.password."""
    return _password(file)
