"""The certificates with which the scheduler and the extender know each other."""

import hashlib
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509

from workers.process.tls import TlsError, TlsFiles, certificates_of

SOON = timedelta(days=30)


def checked(files: TlsFiles, now: datetime, *, allow_ca_key: bool) -> tuple[dict[str, bytes], list[str]]:
    """The contents of the files by their names in the folder of certificates, and notices for people.

    Raises TlsError if a file cannot be read or used, has expired, or is the authority of the cluster.
    """
    contents = files.read()
    chain, authorities = certificates_of(contents, files)
    notices = _dates("--cert", files.cert, chain, now) + _dates("--cacert", files.cacert, authorities, now)
    if _is_authority(chain[0]):
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


def _dates(flag: str, path: Path, certificates: list[x509.Certificate], now: datetime) -> list[str]:
    notices: list[str] = []
    for each in certificates:
        name = each.subject.rfc4514_string()
        if each.not_valid_after_utc <= now:
            raise TlsError(f"{flag} {path}: {name} has expired: {each.not_valid_after_utc:%Y-%m-%d}")
        if each.not_valid_before_utc > now:
            raise TlsError(f"{flag} {path}: {name} is not valid before {each.not_valid_before_utc:%Y-%m-%d}")
        if each.not_valid_after_utc - now < SOON:
            notices.append(f"{flag} {path}: {name} expires on {each.not_valid_after_utc:%Y-%m-%d}")
    return notices


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False
