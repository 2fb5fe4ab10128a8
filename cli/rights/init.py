"""`tas bus init`, `user` and `secrets`: the operator of a closed bus, and its users."""

import time
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import click

from bus.rights.roles import MOST_USERS, tags_of
from bus.subjects import token
from cli.certs.flags import errors_shown
from cli.configure.files import FilesError, Step, stored
from cli.output import echo
from cli.rights.folder import AUTH, CLUSTER, NewUser, OperatorFolder, User, existing, make_private, write
from tas.certificates.secret import NAMESPACE
from tas.errors import InvalidInputError
from tas.values.names import is_dns_label, is_source_name, is_subdomain
from workers.roles import ROLES
from workers.samples.source_spec import SourceKind

NEW_USERS = (*(role for role, each in ROLES.items() if each.workers), "reader", "operator")
"""The roles that have one user `tas-ROLE` from the beginning."""

SEPARATE = frozenset(role for role, each in ROLES.items() if each.workers) - {"all", "policies"}
"""The roles of processes that run beside each other in a cluster: who needs another one asks for it."""

DEFAULT_SOURCES = tuple(sorted(kind.value for kind in SourceKind))
"""The names of sources of which no other name is given."""

DAY = 86400


def _directory() -> click.Argument:
    return click.Argument(["directory"], metavar="DIR", type=click.Path(path_type=Path, file_okay=False))


def _sources(default: str) -> click.Option:
    return click.Option(
        ["--source", "sources"], multiple=True, metavar="NAME",
        help=f"A source in whose name the user publishes samples; may be given several times. [default: {default}]",
    )  # fmt: skip


def _days() -> click.Option:
    return click.Option(
        ["--days"], type=click.IntRange(min=1, max=36500), metavar="NUMBER",
        help="How many days new credentials are valid. [default: until they are revoked]",
    )  # fmt: skip


@errors_shown
def _init(
    *,
    directory: Path,
    sources: tuple[str, ...],
    days: int | None,
    renew_earlier: bool,
    refuse_earlier: bool,
    replace_lost: bool,
) -> int:
    """Create the keys of a closed bus, and credentials for each process.

    DIR gets the keys of the operator and of each role (keys/), the credentials of one user for each process and for
    people who read or operate (users/), auth.conf, which the configuration of nats-server includes, and
    cluster.password, by which the servers of a cluster know each other. A second run changes nothing, except that new
    roles of a new version get their users, and auth.conf their rights. Only the owner can read DIR. Keep it where no
    server and no process can read it: its keys can do everything.

    Credentials that an earlier version has made go on working, and may do more than new ones, until --refuse-earlier:
    docs/how-to/close-the-bus.md, Credentials of an earlier version.
    """
    folder, now = OperatorFolder.open(directory, replaces_lost=replace_lost), time.time()
    earlier = folder.earlier_users()
    if refuse_earlier and earlier:
        of_users = ", ".join(each.claims.name for each in earlier)
        raise FilesError(
            f"{directory / 'users'}: has credentials of an earlier version, of {of_users}: tas bus init {directory} "
            "--renew-earlier makes new ones; give these to their programs first"
        )
    if refuse_earlier:
        folder = replace(folder, takes_earlier=False)
    names = source_names(sources or DEFAULT_SOURCES)
    users = [
        NewUser(role, f"tas-{role}", tags_of(ROLES[role], f"tas-{role}", sources=names if _has_sources(role) else ()))
        for role in NEW_USERS
        if not folder.user_file(f"tas-{role}").exists()
    ]
    make_private(directory)
    ends: dict[NewUser, float | None] = dict.fromkeys(users, _end(days, now))
    lost = folder.lost_users()
    renewed = [*lost, *((user.role, user) for user in (earlier if renew_earlier else ()))]
    for role, user in renewed:
        tags = tags_of(ROLES[role], user.claims.name, sources=user.claims.values("source"))
        seconds = user.claims.seconds
        kept = None if seconds is None else now + seconds
        ends[NewUser(role, user.claims.name, tags)] = kept if days is None else _end(days, now)
    write([*folder.steps(now=now), *folder.user_steps(ends, now=now)])
    if folder.lost:
        roles, names_of = ", ".join(sorted(folder.lost)), ", ".join(user.claims.name for _, user in lost)
        echo(
            f"The keys of {roles} were lost and are other ones now: give {directory / AUTH} to each nats-server, and "
            f"the new credentials to {names_of or 'their users'}. Users without a file in {directory} are refused then"
        )
    if folder.undone:
        echo(
            f"{directory / AUTH} took credentials of an earlier version again, since such a version has written it; it "
            "refuses them now: give it to each nats-server"
        )
    if refuse_earlier:
        echo(
            f"After a reload servers refuse who still shows old credentials. This command sees only {directory}: not "
            "the files of programs, the Secrets in Kubernetes, or credentials that were made elsewhere"
        )
    echo(f"Include {directory / AUTH} in the configuration of nats-server: docs/how-to/close-the-bus.md")
    return 0


@errors_shown
def _user(
    *, directory: Path, role: str, name: str, sources: tuple[str, ...], days: int | None, renew: bool, many: bool
) -> int:
    """Create credentials for one more user, or new ones for a user.

    They are in DIR/users/NAME.creds. For the role `node`, NAME is the name of the node; for `subscriber`, that of the
    subscription. Old credentials of this name stay valid: revoke them first if they were stolen.
    """
    folder, now = existing(directory), time.time()
    publishes = _has_sources(role)
    if publishes and not sources and not ROLES[role].workers:
        raise InvalidInputError("user", "--source", "", f"must be given for the role {role}")
    if sources and not publishes:
        raise InvalidInputError("user", "--source", ",".join(sources), f"the role {role} names no source")
    user = _user_name(role, name)
    known = {each.claims.name: each for each in folder.users()}
    if user in known and not renew:
        raise FilesError(f"{known[user].file}: exists: --renew replaces it")
    if not many and user not in known:
        _check_number(role, [each.role for each in known.values()])
    tags = tags_of(ROLES[role], user, sources=source_names(sources or DEFAULT_SOURCES) if publishes else ())
    steps = folder.user_steps({NewUser(role, user, tags): _end(days, now)}, now=now)
    write_with_auth([*folder.steps(now=now), *steps], directory)
    return 0


def write_with_auth(steps: Sequence[Step], directory: Path) -> None:
    """Writes the files, and says what to do if auth.conf is another one than before. Raises FilesError."""
    write(steps)
    if any(step.changes for step in steps if step.path.name == AUTH):
        echo(
            f"{directory / AUTH} has changed: include it in the configuration of each nats-server, and let the server "
            "read it: nats-server --signal reload"
        )


@errors_shown
def _secrets(directory: Path, namespace: str, name: tuple[str, ...]) -> int:
    """Print Kubernetes Secrets with the credentials of users, for kubectl apply -f -.

    Without --user: the users of separate processes. Each Secret is called tas-bus-ROLE after the role of the user, or
    tas-bus-NAME for other names, with the key user.creds. The Secret tas-nats has auth.conf and
    cluster.password for the servers. No key of the operator is printed.
    """
    if not is_dns_label(namespace):
        raise InvalidInputError("Secret", "--namespace", namespace, "must be a DNS label")
    folder = existing(directory)
    for file in (directory / AUTH, directory / CLUSTER):
        if stored(file) is None:
            raise FilesError(f"{file}: is missing: tas bus init {directory} makes it")
    users = [each for each in folder.users() if not name or each.claims.name in name]
    if missing := set(name) - {each.claims.name for each in users}:
        raise InvalidInputError("user", "--user", min(missing), f"has no file in {directory / 'users'}")
    manifests = [
        _secret(secret_name(each), namespace, {"user.creds": each.file.read_bytes()})
        for each in users
        if name or (each.claims.name == f"tas-{each.role}" and each.role in SEPARATE)
    ]
    # Without the newline of the file: the server puts the password into URLs.
    servers = {AUTH: (directory / AUTH).read_bytes(), CLUSTER: folder.cluster_password.encode()}
    manifests.append(_secret("tas-nats", namespace, servers))
    echo("---\n".join(manifests), nl=False)
    return 0


def secret_name(user: User) -> str:
    """The Secret of a user. Raises FilesError for a name that no Secret can have: the file may be of somebody else."""
    name = user.claims.name
    found = f"tas-bus-{user.role}" if name == f"tas-{user.role}" else f"tas-bus-{name.replace('_', '.').lower()}"
    if not is_subdomain(found):
        raise FilesError(f"{user.file}: the name of the user, {name!r}, must be a DNS name: a-z, 0-9, - and .")
    return found


def _secret(name: str, namespace: str, files: dict[str, bytes]) -> str:
    data = "".join(f"  {key}: {b64encode(content).decode()}\n" for key, content in files.items())
    metadata = f"metadata:\n  name: {name}\n  namespace: {namespace}\n"
    return f"apiVersion: v1\nkind: Secret\n{metadata}type: Opaque\ndata:\n{data}"


def source_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names, if each can be one of a source. Raises InvalidInputError."""
    for each in names:
        if not is_source_name(each):
            raise InvalidInputError("user", "--source", each, "must be of a-z, 0-9 and -, at most 63")
    return tuple(names)


def _check_number(role: str, known: Sequence[str]) -> None:
    """Raises InvalidInputError if so many users could take the consumers that processes need."""
    for roles, most in MOST_USERS.items():
        if role in roles and sum(each in roles for each in known) >= most:
            text = f"{most} users of the roles {', '.join(roles)} could take the consumers of processes, of which a "
            text += "server gives 1,000 to a stream: raise its default_max_consumers, then --many"
            raise InvalidInputError("user", "ROLE", role, text)


def _has_sources(role: str) -> bool:
    return any("{{tag(source)}}" in subject for subject in ROLES[role].rights.writes)


def _user_name(role: str, name: str) -> str:
    """The name as one token: that of a node has `_` for `.`. Raises InvalidInputError."""
    if not is_subdomain(name):
        raise InvalidInputError("user", "NAME", name, "must be a DNS name: a-z, 0-9, - and .")
    if role == "node":
        return token(name)
    if "." in name:
        raise InvalidInputError("user", "NAME", name, "only the name of a node may have dots")
    return name


def _end(days: int | None, now: float) -> float | None:
    return None if days is None else now + days * DAY


init = click.Command(
    "init",
    callback=_init,
    params=[
        _directory(),
        _sources(", ".join(DEFAULT_SOURCES)),
        _days(),
        click.Option(
            ["--renew-earlier"], is_flag=True,
            help="Replace all credentials in DIR that an earlier version has made; they stay valid.",
        ),
        click.Option(
            ["--refuse-earlier"], is_flag=True,
            help="Let servers refuse credentials that an earlier version has made, once none is left in DIR.",
        ),
        click.Option(
            ["--replace-lost"], is_flag=True,
            help="Make other keys for roles whose keys/role-ROLE.seed is lost, and new credentials of their users.",
        ),
    ],
    help=_init.__doc__,
)  # fmt: skip

user = click.Command(
    "user",
    callback=_user,
    params=[
        _directory(),
        click.Argument(["role"], metavar="ROLE", type=click.Choice(sorted(ROLES))),
        click.Argument(["name"], metavar="NAME"),
        _sources("as for init, for a process"),
        _days(),
        click.Option(["--renew"], is_flag=True, help="Replace the credentials of this user."),
        click.Option(
            ["--many"],
            is_flag=True,
            help="Allow more than 50 people, or 300 subscribers (docs/background/bus-rights.md#people).",
        ),
    ],
    help=f"{_user.__doc__}\n\n    ROLE is one of: {', '.join(sorted(ROLES))}.",
)

secrets = click.Command(
    "secrets",
    callback=_secrets,
    params=[
        _directory(),
        click.Option(
            ["--namespace"], metavar="NAME", default=NAMESPACE, show_default=True, help="The namespace of the Secrets."
        ),
        click.Option(
            ["--user", "name"], multiple=True, metavar="NAME",
            help="Only this user; may be given several times. [default: each process that runs beside others]",
        ),
    ],
    help=_secrets.__doc__,
)  # fmt: skip
