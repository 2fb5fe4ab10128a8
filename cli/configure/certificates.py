"""The certificates with which the scheduler and the extender know each other."""

import hashlib
from datetime import datetime

from cryptography import x509

from tas.certificates.findings import SOON, date_problem, expires_soon, is_authority, name_of
from workers.process.tls import TlsError, TlsFiles, certificates_of


def checked(files: TlsFiles, now: datetime, *, allow_ca_key: bool) -> tuple[dict[str, bytes], list[str]]:
    """The contents of the files by their names in the folder of certificates, and notices for people.

    Raises TlsError if a file cannot be read or used, has expired, or is the authority of the cluster.
    """
    contents = files.read()
    chain, authorities = certificates_of(contents, files)
    notices = _dates(files.shown("cert"), chain, now) + _dates(files.shown("cacert"), authorities, now)
    if is_authority(chain[0]):
        reason = f"--key {files.key}: is the key of an authority: whoever reads the copy can sign for the cluster"
        if not allow_ca_key:
            raise TlsError(f"{reason}. Give a certificate of the scheduler with -cert and -key, or --allow-ca-key")
        notices.append(reason)
    cert, key, cacert = contents
    return {"client.crt": cert, "client.key": key, "ca.crt": cacert}, notices


def shown(name: str, content: bytes | None) -> str:
    """A file of the folder of certificates in a diff: a private key is never shown."""
    if content is None:
        return ""
    return f"sha256:{hashlib.sha256(content).hexdigest()}\n" if name.endswith(".key") else content.decode("latin-1")


def _dates(file: str, certificates: list[x509.Certificate], now: datetime) -> list[str]:
    notices: list[str] = []
    for each in certificates:
        name = f"{file}: {name_of(each)}"
        if (problem := date_problem(each, now)) is not None:
            raise TlsError(f"{name} {problem}")
        if (soon := expires_soon(each, now, SOON)) is not None:
            notices.append(f"{name} {soon}")
    return notices
