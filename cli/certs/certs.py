"""`tas certs`: an authority of its own, and the certificates of the extender and of the scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
from cryptography import x509

from cli.certs.flags import before, directory, errors_shown
from cli.certs.folder import (
    AUTHORITIES,
    LEAVES,
    Signer,
    certificates_at,
    create_authority,
    key_findings,
    mode_findings,
    signer_of,
    step_of_authorities,
    steps_of_authority,
    steps_of_leaf,
)
from cli.certs.status import status
from cli.configure.files import Step, write_all
from cli.output import echo
from tas.certificates.findings import authority_findings, can_live_longer, issuer_of, leaf_findings, name_of
from tas.certificates.forms import (
    AUTHORITY_DAYS,
    CLIENT_NAME,
    LEAF_DAYS,
    SERVER_NAMES,
    SERVER_SUBJECT,
    Leaf,
    Purpose,
    has_names_of,
    leaf_of,
)
from tas.certificates.secret import NAMESPACE, secret_manifest
from tas.errors import InvalidInputError
from tas.values.names import is_dns_label
from workers.http.tls_files import TlsError


@click.group("certs", no_args_is_help=True)
def certs() -> None:
    """Create, renew and check certificates of extender and scheduler.

    DIR contains ca.crt, tls.crt and tls.key (the extender's), client.crt and client.key (the scheduler's), and ca.key.
    Neither the extender nor the scheduler needs ca.key: keep it elsewhere, and name it by --ca-key.
    """


def _leaf_options() -> list[click.Option]:
    return [
        click.Option(
            ["--server-name", "server_names"], multiple=True, metavar="NAME",
            help="A name or address by which the scheduler reaches the extender; may be given several times. "
            f"[default: {', '.join(SERVER_NAMES)}; renew: those of tls.crt]",
        ),
        click.Option(
            ["--client-name"], metavar="NAME",
            help="The name of the scheduler, for --client-names of the extender. "
            f"[default: {CLIENT_NAME}; renew: that of client.crt]",
        ),
        click.Option(
            ["--days"], type=int, metavar="NUMBER", default=LEAF_DAYS, show_default=True,
            help="How long the certificates of extender and scheduler are valid.",
        ),
        click.Option(
            ["--ca-days"], type=int, metavar="NUMBER", default=AUTHORITY_DAYS, show_default=True,
            help="How long a new authority is valid.",
        ),
        click.Option(
            ["--ca-key"], type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
            help="The key of the authority. [default: DIR/ca.key]",
        ),
        click.Option(["--secret"], is_flag=True, help="Print the Secret of the extender, for kubectl apply -f -."),
        click.Option(
            ["--namespace"], metavar="NAME", default=NAMESPACE, show_default=True, help="The namespace of the Secret."
        ),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run of init or renew."""

    directory: Path
    server_names: tuple[str, ...]
    client_name: str | None
    days: int
    ca_days: int
    ca_key: Path | None
    secret: bool
    namespace: str
    now: datetime

    @property
    def authorities(self) -> Path:
        return self.directory / AUTHORITIES

    @property
    def key_file(self) -> Path:
        return self.directory / "ca.key" if self.ca_key is None else self.ca_key

    def say(self, text: str) -> None:
        """A line for a person; standard output is for the Secret, if one is printed."""
        echo(text, err=self.secret)

    def leaf(self, name: str, chain: Sequence[x509.Certificate] | None) -> Leaf:
        """The certificate `name` as the flags say, else with the names that it has.

        Raises InvalidInputError for the flags, and TlsError for names that no new certificate can have.
        """
        purpose = LEAVES[name]
        given = bool(self.server_names if purpose is Purpose.SERVER else self.client_name)
        if chain is not None and not given:
            try:
                return leaf_of(chain[0], purpose, days=self.days)
            except InvalidInputError as error:
                flag = "--server-name" if purpose is Purpose.SERVER else "--client-name"
                raise TlsError(f"{self.directory / name}.crt: {error}; give {flag}") from error
        if purpose is Purpose.SERVER:
            names = self.server_names or SERVER_NAMES
            return Leaf(purpose=purpose, name=SERVER_SUBJECT, names=names, days=self.days)
        return Leaf(purpose=purpose, name=self.client_name or CLIENT_NAME, days=self.days)

    def write(self, steps: Sequence[Step]) -> None:
        """Writes files, and names them."""
        write_all(steps)
        for step in steps:
            self.say(f"{'created' if step.before is None else 'replaced'}: {step.path}")

    def end(self) -> int:
        """Prints the Secret, if it is wanted."""
        if self.secret:
            files = {name: self.directory / name for name in ("tls.crt", "tls.key", AUTHORITIES)}
            echo(secret_manifest({name: path.read_bytes() for name, path in files.items()}, self.namespace), nl=False)
        return 0


def _run_of(**given: Any) -> _Run:
    if not is_dns_label(given["namespace"]):
        raise click.UsageError(f"--namespace {given['namespace']}: must be lower case letters, digits and dashes")
    return _Run(now=datetime.now(UTC).replace(microsecond=0), **given)


@errors_shown
def _init(*, force: bool, **given: Any) -> int:
    run = _run_of(**given)
    leaves = {name: run.leaf(name, None) for name in LEAVES}
    signer = create_authority(run.now, run.ca_days)
    steps = steps_of_authority(run.authorities, run.key_file, signer, [])
    for name, leaf in leaves.items():
        steps += steps_of_leaf(run.directory, name, leaf, signer, run.now)
    existing = [str(step.path) for step in steps if step.before is not None]
    if existing and not force:
        raise click.ClickException(f"{', '.join(existing)}: exists; --force replaces all files, also the authority")
    run.write(steps)
    return run.end()


certs.add_command(
    click.Command(
        "init",
        callback=_init,
        params=[
            directory(),
            *_leaf_options(),
            click.Option(["--force"], is_flag=True, help="Replace existing files, also the authority."),
        ],
        help="""Create an authority, and with it the certificates of the extender and of the scheduler.

        The authority is a new one, never that of the cluster. Keys are ECDSA P-256, and only the owner can read them.

        Exit codes: 0 done; 1 failed, every file is as before; 2 usage.
        """,
    )
)


@errors_shown
def _renew(*, force: bool, before: int, new_ca: bool, drop_old_ca: bool, **given: Any) -> int:
    if force + new_ca + drop_old_ca > 1:
        raise click.UsageError("--force, --new-ca and --drop-old-ca are separate steps")
    run = _run_of(**given)
    signer = signer_of(run.authorities, run.key_file, run.now)
    if run.secret and (new_ca or drop_old_ca):  # these steps do not mend a pair, and must fail before they write
        _check_pair(run.directory / "tls.crt", run.directory / "tls.key")
    if new_ca:
        _add_authority(run, signer)
    elif drop_old_ca:
        _drop_authorities(run, signer)
    else:
        _renew_leaves(run, signer, timedelta(days=before), force=force)
    return run.end()


certs.add_command(
    click.Command(
        "renew",
        callback=_renew,
        params=[
            directory(),
            before(),
            *_leaf_options(),
            click.Option(["--force"], is_flag=True, help="Renew certificates that are not due, too."),
            click.Option(["--new-ca"], is_flag=True, help="Create a new authority, and trust the old one as well."),
            click.Option(["--drop-old-ca"], is_flag=True, help="Trust only the authority of ca.key."),
        ],
        help="""Renew the certificates in DIR that are due, with new keys and the same names.

        Due is a certificate that is missing, expires soon, or in which status finds anything else. The authority stays.

        To replace the authority, run renew with --new-ca (ca.crt has both authorities), then with --force (the new one
        signs the certificates), then with --drop-old-ca. Distribute the files after each run.

        Exit codes: 0 done, or nothing to do; 1 failed, every file is as before; 2 usage.
        """,
    )
)


def _renew_leaves(run: _Run, signer: Signer, within: timedelta, *, force: bool) -> None:
    trusted = certificates_at(run.authorities)
    steps: list[Step] = []
    for name, purpose in LEAVES.items():
        certificate, key = run.directory / f"{name}.crt", run.directory / f"{name}.key"
        chain = certificates_at(certificate) if certificate.exists() else None
        leaf = run.leaf(name, chain)
        # A new one that expires at the same time would only cost a restart of the scheduler, in each daily run.
        has_limit = chain is not None and not can_live_longer(chain[0], signer.certificate)
        soon = timedelta(0) if has_limit else within
        reason = "--force is given" if force else None
        if chain is None:
            reason = "is missing"
        elif not force:
            problems = [*leaf_findings(chain, trusted, purpose, now=run.now, within=soon), *key_findings(chain, key)]
            problems += mode_findings(key)
            problems += [] if has_names_of(chain[0], leaf) else ["has other names"]
            reason = problems[0] if problems else None
        if chain is not None and reason is None:
            limit = " with its authority, see --new-ca" if has_limit else ""
            run.say(f"not due: {certificate}: expires on {chain[0].not_valid_after_utc:%Y-%m-%d}{limit}")
        else:
            run.say(f"due: {certificate}: {reason}")
            steps += steps_of_leaf(run.directory, name, leaf, signer, run.now)
    for authority in trusted:
        for finding in authority_findings(authority, now=run.now, within=within):
            echo(f"note: {run.authorities}: {finding}", err=True)
    for finding in mode_findings(run.key_file):
        echo(f"note: {run.key_file}: {finding}", err=True)
    run.write(steps)


def _add_authority(run: _Run, signer: Signer) -> None:
    trusted = certificates_at(run.authorities)
    if len(trusted) > 1:
        names = ", ".join(map(name_of, trusted))
        raise click.ClickException(f"{run.authorities}: has several authorities: {names}; --drop-old-ca ends this")
    new = create_authority(run.now, run.ca_days)
    run.write(steps_of_authority(run.authorities, run.key_file, new, [signer.certificate]))
    run.say(
        f"next: distribute {run.authorities} to extender and scheduler; then tas certs renew {run.directory} --force"
    )


def _drop_authorities(run: _Run, signer: Signer) -> None:
    others = [each for each in certificates_at(run.authorities) if each != signer.certificate]
    if not others:
        run.say(f"{run.authorities}: has only {name_of(signer.certificate)}")
        return
    for name in LEAVES:
        path = run.directory / f"{name}.crt"
        if path.exists() and issuer_of(certificates_at(path), [signer.certificate]) is None:
            raise click.ClickException(f"{path}: an authority to be dropped has signed it: renew it with --force first")
    run.write([step_of_authorities(run.authorities, [signer.certificate])])


def _check_pair(certificate: Path, key: Path) -> None:
    for problem in key_findings(certificates_at(certificate), key):
        raise TlsError(f"{certificate}: {problem}")


certs.add_command(status)
