"""The certificates with which the scheduler and the extender know each other."""

import hashlib
import re
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256

from tas.certificates.findings import SOON, date_problem, expires_soon, is_authority, name_of
from workers.http.tls_files import TlsError, TlsFiles
from workers.http.x509 import certificates_of

_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")


def checked(files: TlsFiles, now: datetime, *, allow_ca_key: bool, looking: bool) -> tuple[dict[str, bytes], list[str]]:
    """The contents of the files by their names in the folder of certificates, and notices for people.

    `looking`: nothing will be written, so that the key of an authority is a notice, the first.

    Raises TlsError if a file cannot be read or used, has expired, or is the authority of the cluster.
    """
    contents = files.read()
    chain, authorities = certificates_of(contents, files)
    for name, content in (("cert", contents[0]), ("cacert", contents[2])):
        # These copies are readable for all users, and are shown in a diff.
        if _PRIVATE_KEY.search(content):
            raise TlsError(f"{files.shown(name)}: has a private key, too: give a file with certificates only")
    notices = _dates(files.shown("cert"), chain, now) + _dates(files.shown("cacert"), authorities, now)
    if is_authority(chain[0]):
        reason = f"--key {files.key}: is the key of an authority: whoever reads the copy can sign for the cluster"
        remedy = "Give a certificate of the scheduler with -cert and -key (tas certs init makes one), or --allow-ca-key"
        if not allow_ca_key and not looking:
            raise TlsError(f"{reason}. {remedy}")
        notices.insert(0, reason if allow_ca_key else f"{reason}, so this is only shown. {remedy}")
    cert, key, cacert = contents
    return {"client.crt": cert, "client.key": key, "ca.crt": cacert}, notices


_KEY_DATA = re.compile(r"""(["']?keyData["']?\s*:\s*)(?!\s)("[^"]*"|'[^']*'|[|>][^\n]*(?:\n[ ]+\S+)+|[^\s,}]+)""")
"""The base64 of a private key in a configuration, after its name."""


def shown(name: str, content: bytes | None) -> str:
    """A file in a diff: of a private key only its fingerprint, of a certificate one line."""
    if content is None:
        return ""
    if name.endswith(".key") or _PRIVATE_KEY.search(content):
        return f"sha256:{hashlib.sha256(content).hexdigest()}\n"
    if name.endswith(".crt") and (lines := _folded(content)):
        return lines
    text = content.decode("utf-8", "replace")
    return _KEY_DATA.sub(lambda found: f"{found[1]}sha256:{hashlib.sha256(found[2].encode()).hexdigest()}", text)


def _folded(content: bytes) -> str:
    """A line for each certificate of a file; empty if it has none that can be read."""
    try:
        found = x509.load_pem_x509_certificates(content)
    except ValueError:
        return ""
    return "".join(
        f"{name_of(each)}, expires {each.not_valid_after_utc:%Y-%m-%d}, sha256:{each.fingerprint(SHA256()).hex()}\n"
        for each in found
    )


def _dates(file: str, certificates: list[x509.Certificate], now: datetime) -> list[str]:
    notices: list[str] = []
    for each in certificates:
        name = f"{file}: {name_of(each)}"
        if (problem := date_problem(each, now)) is not None:
            raise TlsError(f"{name} {problem}")
        if (soon := expires_soon(each, now, SOON)) is not None:
            notices.append(f"{name} {soon}")
    return notices
