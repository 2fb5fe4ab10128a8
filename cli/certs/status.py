"""`tas certs status`: the certificates in a folder, and what is wrong with them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
from cryptography import x509

from cli.as_json import JSON_OPTION, print_json
from cli.certs.flags import before, directory, errors_shown
from cli.certs.folder import AUTHORITIES, LEAVES, certificates_at, key_findings, mode_findings
from cli.output import echo
from tas.certificates.findings import authority_findings, issuer_of, leaf_findings
from tas.certificates.forms import alternative_names
from tas.errors import line_of
from tas.values.nouns import counted
from workers.http.tls_files import TlsError

EXIT_FINDINGS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """A certificate as status shows it; without `certificate`: it cannot be read."""

    file: str
    certificate: x509.Certificate | None
    issuer: x509.Certificate | None
    key: str
    findings: tuple[str, ...]


@errors_shown
def _status(*, directory: Path, before: int, as_json: bool) -> int:
    now = datetime.now(UTC)
    if not directory.is_dir():
        raise click.ClickException(f"{directory}: is no directory")
    states = list(_states(directory, now, timedelta(days=before)))
    if not states:
        raise click.ClickException(f"{directory}: has no ca.crt, tls.crt or client.crt")
    if as_json:
        print_json([_as_json(state, now) for state in states])
    else:
        for state in states:
            _print(state, now)
        for state in states:
            for finding in state.findings:
                echo(f"{state.file}: {finding}", err=True)
    return EXIT_FINDINGS if any(state.findings for state in states) else 0


status = click.Command(
    "status",
    callback=_status,
    params=[directory(), before(), JSON_OPTION],
    help="""Show each certificate in DIR, and what is wrong with it.

    DIR may contain only some of the files, as on a node or in a Secret.

    Exit codes: 0 all is well; 1 DIR has no certificates; 2 usage; 3 a certificate is due, or something is wrong.
    """,
)


def _states(directory: Path, now: datetime, within: timedelta) -> Iterator[_State]:
    """First the authorities, then the extender and the scheduler; only what is there."""
    authorities: list[x509.Certificate] = []
    path = directory / AUTHORITIES
    if path.exists():
        try:
            authorities = certificates_at(path)
        except TlsError as error:
            yield _unreadable(AUTHORITIES, error)
    yield from _authority_states(authorities, directory / "ca.key", now, within)
    for name, purpose in LEAVES.items():
        certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
        if not certificate.exists() and not key.exists():
            continue
        try:
            chain = certificates_at(certificate)
        except TlsError as error:
            yield _unreadable(certificate.name, error)
            continue
        shown, problems = _key_state(chain, key)
        found = (*leaf_findings(chain, authorities, purpose, now=now, within=within), *problems, *mode_findings(key))
        issuer = issuer_of(chain, authorities)
        yield _State(file=certificate.name, certificate=chain[0], issuer=issuer, key=shown, findings=found)


def _authority_states(
    authorities: Sequence[x509.Certificate], key_file: Path, now: datetime, within: timedelta
) -> Iterator[_State]:
    """The authorities of ca.crt. The key of one of them may be in the folder."""
    keys = [_key_state([each], key_file) for each in authorities] if key_file.exists() else []
    matches = [word == "matches" for word, _ in keys]
    for number, each in enumerate(authorities):
        found = list(authority_findings(each, now=now, within=within))
        if keys and not any(matches) and number == 0:
            found += keys[0][1]
        found += mode_findings(key_file) if number == 0 else ()
        shown = "matches" if keys and matches[number] else ""
        yield _State(file=AUTHORITIES, certificate=each, issuer=None, key=shown, findings=tuple(found))


def _unreadable(file: str, error: TlsError) -> _State:
    return _State(file=file, certificate=None, issuer=None, key="", findings=(str(error),))


def _key_state(chain: Sequence[x509.Certificate], key: Path) -> tuple[str, tuple[str, ...]]:
    """A word for the key of a certificate, and findings."""
    if not key.exists():
        return "missing", (f"{key.name} is missing",)
    try:
        problems = tuple(key_findings(chain, key))
    except TlsError as error:
        return "unreadable", (str(error),)
    return ("another" if problems else "matches"), problems


def _as_json(state: _State, now: datetime) -> dict[str, object]:
    found: dict[str, object] = {"file": state.file, "key": state.key, "findings": state.findings}
    if (certificate := state.certificate) is None:
        return found
    return found | {
        "subject": certificate.subject.rfc4514_string(),
        "names": list(alternative_names(certificate)),
        "issuer": certificate.issuer.rfc4514_string(),
        "signed_by": None if state.issuer is None else state.issuer.subject.rfc4514_string(),
        "expires": certificate.not_valid_after_utc.isoformat(),
        "days_left": (certificate.not_valid_after_utc - now).days,
    }


def _print(state: _State, now: datetime) -> None:
    echo(state.file)
    if (certificate := state.certificate) is None:
        echo("  unreadable")
        return
    echo(f"  subject  {line_of(certificate.subject.rfc4514_string())}")
    if names := alternative_names(certificate):
        echo(f"  names    {line_of(', '.join(names))}")
    if state.file != AUTHORITIES:
        trust = "in ca.crt" if state.issuer is not None else "not in ca.crt"
        echo(f"  issuer   {line_of(certificate.issuer.rfc4514_string())} ({trust})")
    expires = certificate.not_valid_after_utc
    echo(f"  expires  {expires:%Y-%m-%d}, in {counted((expires - now).days, 'day')}")
    if state.key:
        echo(f"  key      {state.key}")
