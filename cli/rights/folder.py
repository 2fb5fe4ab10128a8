"""The folder of the operator of a closed bus: its keys, and the credentials of its users.

```
keys/             the seeds of the operator, of its accounts, and of each role: they can do everything
users/            NAME.creds of each user
issued.json       the public keys of all credentials that were made, by the name of the user: so all can be revoked
revoked.json      the public keys whose credentials do not count any more
earlier.json      that servers refuse credentials of an earlier version; a version that does not know the file leaves it
auth.conf         the part of the server's configuration that trusts the operator: nothing in it is secret
cluster.password  what the servers of a cluster show to each other: whoever knows it can join as a server
```
"""

import re
import secrets
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from bus.errors import AccessError
from bus.records.codec import UNREADABLE
from bus.rights.credentials import parse_credentials
from bus.rights.nkeys import Nkey, NkeyError, NkeyKind
from bus.rights.operator import Keys, UserClaims, user_claims
from bus.rights.roles import PUBLISHERS, tags_of
from cli.configure.files import FilesError, Step, stored, write_all
from cli.output import echo
from workers.roles import ROLES

AUTH = "auth.conf"
CLUSTER = "cluster.password"
ISSUED, REVOKED, EARLIER = "issued.json", "revoked.json", "earlier.json"
_ROLE = "role-"

_PASSWORD = re.compile(r"[a-z][a-z0-9]{23,127}")
"""What is one word in the URL of a route and in the configuration of NATS, and too long to guess."""

MAX_JWT_BYTES = 3584
"""Of the 4 KiB of a line that a server takes, the rest is for what else a client says when it connects."""

Until = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""Seconds since 1970, as a server reads them."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user in the folder. `role` is empty if its signing key is not in the folder."""

    file: Path
    claims: UserClaims
    role: str


class _Earlier(msgspec.Struct):
    """What was decided about credentials of an earlier version."""

    refused: bool = False


class NewUser(NamedTuple):
    """A user whose credentials are to be made."""

    role: str
    name: str
    tags: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFolder:
    """The contents of the folder.

    Attributes:
        found: Whether there was an operator.
        cluster_password: The password of the servers of a cluster.
        takes_earlier: Whether servers take credentials of an earlier version, too: from `tas bus init` of a folder of
            that version until its `--refuse-earlier`.
        lost: By role, the public key by which servers know its users, whose secret part is not in the folder.
        undone: Whether auth.conf takes them although this was ended: an earlier version has written the file.
        issued: The public keys of each name.
        revoked: Public keys, and until when what was made does not count, in seconds since 1970.
    """

    path: Path
    keys: Keys
    found: bool
    cluster_password: str = field(repr=False)
    takes_earlier: bool = False
    lost: Mapping[str, str] = field(default_factory=dict)
    undone: bool = False
    issued: Mapping[str, Sequence[str]] = field(default_factory=dict)
    revoked: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, *, replaces_lost: bool = False) -> "OperatorFolder":
        """Reads the folder; what it lacks is new, and not written yet.

        Raises FilesError, also if it lacks the key of a role that servers know, unless `replaces_lost`.
        """
        _check_private(path)
        seeds = {
            name: _key(file, NkeyKind.OPERATOR if name == "operator" else NkeyKind.ACCOUNT)
            for file in sorted((path / "keys").glob("*.seed"))
            if (name := file.stem) in ("operator", "system", "account", "publishers") or name.startswith(_ROLE)
        }
        missing = {"operator", "system", "account"} - seeds.keys()
        if not seeds:
            return cls(path=path, keys=Keys.new(ROLES), found=False, cluster_password=_password(path / CLUSTER))
        if missing:
            raise FilesError(f"{path / 'keys' / min(missing)}.seed: missing: without it no user of this operator works")
        keys = Keys(
            operator=seeds["operator"],
            system=seeds["system"],
            account=seeds["account"],
            publishers=seeds.get("publishers") or Nkey.new(NkeyKind.ACCOUNT),
            roles={role: seeds.get(_ROLE + role) or Nkey.new(NkeyKind.ACCOUNT) for role in ROLES},
        )
        folder = cls(
            path=path,
            keys=keys,
            found=True,
            cluster_password=_password(path / CLUSTER),
            issued=_read_json(path / ISSUED, dict[str, list[str]]),
            revoked=_read_json(path / REVOKED, dict[str, Until]),
        )
        auth = folder.auth
        if "publishers" not in seeds and (keys.has_other_account(auth) or folder.has_users_of_other_account()):
            raise FilesError(
                f"{path / 'keys' / 'publishers'}.seed: missing: without it servers refuse each user of the roles "
                f"{', '.join(PUBLISHERS)}: restore the file. If nobody has it: remove {AUTH} and the credentials of "
                f"these users, then tas bus init {path}, and make them again"
            )
        lost = {role: key for role, key in keys.signers_in(auth).items() if role in ROLES and _ROLE + role not in seeds}
        if lost and not replaces_lost:
            raise FilesError(
                f"{', '.join(str(path / 'keys' / f'{_ROLE}{role}.seed') for role in sorted(lost))}: missing: by such a "
                f"key servers know the users of a role: restore it. If nobody has it: tas bus init {path} "
                "--replace-lost makes another one, and new credentials of these users"
            )
        folder = replace(folder, lost=lost)
        takes = keys.takes_earlier(auth)
        if _read_json(path / EARLIER, _Earlier).refused:
            return replace(folder, undone=bool(takes))
        # Without the file: as long as a user is left for whom it would matter.
        return replace(folder, takes_earlier=bool(folder.earlier_users()) if takes is None else takes)

    @property
    def auth(self) -> str:
        """What auth.conf has; empty without the file. Raises FilesError."""
        found = stored(self.path / AUTH)
        return "" if found is None else found.content.decode(errors="replace")

    def has_users_of_other_account(self) -> bool:
        """Whether a user of a key of the folder is in an account that the folder has no key of. Raises FilesError."""
        known = {self.keys.account.public, self.keys.publishers.public}
        return any(user.role and user.claims.account not in known for user in self.users())

    @property
    def roles_by_key(self) -> dict[str, str]:
        """Each role by the public key that signs its users."""
        return {key.public: role for role, key in self.keys.roles.items()}

    def users(self) -> list[User]:
        """The users with a file, by name. Raises FilesError."""
        roles = self.roles_by_key
        found: list[User] = []
        for file in sorted((self.path / "users").glob("*.creds")):
            try:
                claims = user_claims(parse_credentials(file.read_bytes(), str(file)).jwt)
            except (AccessError, ValueError) as error:
                raise FilesError(str(error)) from error
            found.append(User(file=file, claims=claims, role=roles.get(claims.issuer, "")))
        return found

    def earlier_users(self) -> list[User]:
        """Those with credentials of an earlier version, which can do more harm. Raises FilesError.

        Programs that publish samples, in the account with the streams: by the answers of a server they can write to any
        bucket. Processes without names for consumers: they need to create as many as they like.
        """
        return [user for user in self.users() if self.is_earlier(user)]

    def lost_users(self) -> list[tuple[str, User]]:
        """The users of `lost` roles, with their role. Raises FilesError."""
        roles = {key: role for role, key in self.lost.items()}
        return [(role, user) for user in self.users() if (role := roles.get(user.claims.issuer))]

    def is_earlier(self, user: User) -> bool:
        """Whether the credentials of a user are of an earlier version."""
        if user.role in PUBLISHERS:
            return user.claims.account != self.keys.publishers.public
        if not user.role or not ROLES[user.role].workers:
            return False
        return bool(set(tags_of(ROLES[user.role], user.claims.name)) - set(user.claims.tags))

    def user_file(self, name: str) -> Path:
        """Where the credentials of a user are."""
        return self.path / "users" / f"{name}.creds"

    def steps(self, *, now: float, revoked: Mapping[str, int] | None = None) -> list[Step]:
        """The keys, and what servers need; nothing changes that is as it should be."""
        gone = self.revoked if revoked is None else revoked
        keys = {"operator": self.keys.operator, "system": self.keys.system, "account": self.keys.account}
        keys |= {"publishers": self.keys.publishers}
        keys |= {_ROLE + role: key for role, key in self.keys.roles.items()}
        auth = self.keys.server_configuration(
            ROLES,
            revoked=gone,
            now=now,
            before=self.auth,
            earlier=self.takes_earlier,
        )
        steps = [secret_step(self.path / "keys" / f"{name}.seed", f"{key.seed}\n") for name, key in keys.items()]
        if gone:
            steps.append(_json_step(self.path / REVOKED, gone))
        if not self.takes_earlier:
            steps.append(_json_step(self.path / EARLIER, _Earlier(refused=True)))
        return [
            *steps,
            secret_step(self.path / AUTH, auth),
            secret_step(self.path / CLUSTER, f"{self.cluster_password}\n"),
        ]

    def user_steps(self, users: Mapping[NewUser, float | None], *, now: float) -> list[Step]:
        """New credentials of users, each with its end in seconds since 1970. Their public keys are noted.

        Raises FilesError if no server would take them.
        """
        issued = {name: list(keys) for name, keys in self.issued.items()}
        steps: list[Step] = []
        for user, expires in users.items():
            text = self.keys.credentials(user.role, user.name, tags=user.tags, now=now, expires=expires)
            jwt = parse_credentials(text.encode(), user.name).jwt
            if len(jwt) > MAX_JWT_BYTES:
                raise FilesError(
                    f"{self.user_file(user.name)}: would have a JWT of {len(jwt)} bytes, and a server takes about "
                    f"{MAX_JWT_BYTES}: a user needs fewer or shorter names of sources; make several users"
                )
            public = user_claims(jwt).public
            issued.setdefault(user.name, []).append(public)
            steps.append(secret_step(self.user_file(user.name), text))
        return [_json_step(self.path / ISSUED, issued), *steps] if steps else []


def secret_step(path: Path, text: str) -> Step:
    """A file that only its owner can read."""
    before = stored(path)
    return Step(
        path=path, before=before, content=text.encode(), mode=0o600, owner=None if before is None else before.owner
    )


def make_private(path: Path) -> None:
    """Creates the folder and those in it that are missing, only for its owner. Raises FilesError."""
    try:
        for folder in (path, path / "keys", path / "users"):
            folder.mkdir(mode=0o700, parents=folder is path, exist_ok=True)
    except OSError as error:
        raise FilesError(f"{path}: {error.strerror}") from error


def existing(path: Path) -> OperatorFolder:
    """The folder. Raises FilesError if it has no keys."""
    folder = OperatorFolder.open(path)
    if not folder.found:
        raise FilesError(f"{path}: has no keys: tas bus init {path} makes them")
    make_private(path)
    return folder


def write(steps: Sequence[Step]) -> None:
    """Writes the files, and prints which have changed. Raises FilesError."""
    write_all(steps)
    for step in steps:
        if step.changes:
            done = "removed" if step.content is None else "created" if step.before is None else "replaced"
            echo(f"{done}: {step.path}")


def _check_private(path: Path) -> None:
    for folder in (path, path / "keys", path / "users"):
        if not folder.exists():
            continue
        if not folder.is_dir():
            raise FilesError(f"{folder}: is no folder")
        mode = stat.S_IMODE(folder.stat().st_mode)
        if mode & 0o077:
            raise FilesError(f"{folder}: mode is {mode:o}, must be 700: chmod 700 {folder}")


def _key(file: Path, kind: NkeyKind) -> Nkey:
    found = stored(file)
    try:
        key = Nkey.of_seed(b"".join([] if found is None else [found.content]).decode("ascii", "replace").strip())
    except NkeyError as error:
        raise FilesError(f"{file}: {error}") from error
    if key.kind is not kind:
        # Servers that read an auth.conf made with such a key do not start.
        raise FilesError(
            f"{file}: is a seed of the kind {key.kind.name.lower()}: must be of the kind {kind.name.lower()}"
        )
    return key


def _password(file: Path) -> str:
    """The password in the file; a new one if there is no file. Raises FilesError."""
    if (found := stored(file)) is None:
        return "c" + secrets.token_hex(24)
    text = found.content.decode("ascii", "replace").strip()
    if not _PASSWORD.fullmatch(text):
        raise FilesError(f"{file}: must be 24 to 128 characters a-z and 0-9, the first a letter")
    return text


def _json_step(path: Path, value: object) -> Step:
    return secret_step(path, msgspec.json.encode(value, order="sorted").decode() + "\n")


def _read_json(file: Path, kind: type[T]) -> T:
    found = stored(file)
    try:
        return msgspec.json.decode(b"{}" if found is None else found.content, type=kind)
    except UNREADABLE as error:
        raise FilesError(f"{file}: must be as `tas bus` has written it: {error}") from error
