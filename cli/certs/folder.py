"""A folder with certificates and keys, under the names that the product uses everywhere."""

import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from cli.configure.files import Step, stored
from tas.certificates.findings import is_key_of, signer_problem
from tas.certificates.forms import Leaf, Purpose, new_authority, new_leaf
from workers.http.tls_files import TlsError
from workers.http.x509 import certificates_in, key_in

AUTHORITIES = "ca.crt"
LEAVES = {"tls": Purpose.SERVER, "client": Purpose.CLIENT}
"""The names of the extender's and the scheduler's files, without `.crt` and `.key`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """An authority with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def certificates_at(path: Path) -> list[x509.Certificate]:
    """The certificates in a file. Raises TlsError, also for a certificate of which a part cannot be read."""
    certificates = certificates_in(_content(path), str(path))
    try:
        for each in certificates:  # the library reads these parts only when they are used
            each.subject, each.issuer, each.extensions, each.public_key()
    except Exception as error:  # errors of the library of several kinds
        raise TlsError(f"{path}: no valid certificate: {error}") from error
    return certificates


def key_at(path: Path) -> PrivateKeyTypes:
    """The key in a file. Raises TlsError."""
    return key_in(_content(path), str(path))


def key_findings(chain: Sequence[x509.Certificate], key: Path) -> Iterator[str]:
    """What is wrong with the key of a certificate. Raises TlsError if it cannot be read."""
    if not key.exists():
        yield f"{key.name} is missing"
    elif not is_key_of(key_at(key), chain[0]):
        yield f"{key.name} is not its key"


def mode_findings(key: Path) -> Iterator[str]:
    """Whether everybody on the machine can read a key. A link is that of a mounted Secret, inside of a pod."""
    if key.exists() and not key.is_symlink() and (mode := stat.S_IMODE(key.stat().st_mode)) & stat.S_IROTH:
        yield f"every user of this machine can read {key.name} (mode {mode:o})"


def signer_of(authorities: Path, key_file: Path, now: datetime) -> Signer:
    """The authority in a file whose key is in the other file. Raises TlsError."""
    certificates = certificates_at(authorities)
    if not key_file.exists():
        raise TlsError(f"{key_file}: missing: it signs new certificates; if it is elsewhere, give --ca-key")
    key = key_at(key_file)
    certificate = next((each for each in certificates if is_key_of(key, each)), None)
    if certificate is None:
        raise TlsError(f"{key_file}: is not the key of a certificate in {authorities}")
    if (problem := signer_problem(key, certificate, now)) is not None:
        raise TlsError(f"{authorities}: {problem}")
    assert isinstance(key, ec.EllipticCurvePrivateKey), "checked by signer_problem"
    return Signer(certificate=certificate, key=key)


def create_authority(now: datetime, days: int) -> Signer:
    """A new authority with a new key. Raises InvalidInputError."""
    key = ec.generate_private_key(ec.SECP256R1())
    unsigned = new_authority(key.public_key(), now=now, serial=x509.random_serial_number(), days=days)
    return Signer(certificate=unsigned.sign(key, hashes.SHA256()), key=key)


def steps_of_authority(
    authorities: Path, key_file: Path, signer: Signer, others: Sequence[x509.Certificate]
) -> list[Step]:
    """The files of an authority; `others` are trusted as well.

    The key is last: until then the key of the old authority is there, which `ca.crt` still contains.
    """
    return [_step(authorities, pem([signer.certificate, *others])), _key_step(key_file, signer.key)]


def steps_of_leaf(folder: Path, name: str, leaf: Leaf, signer: Signer, now: datetime) -> list[Step]:
    """The files of a new certificate with a new key."""
    key = ec.generate_private_key(ec.SECP256R1())
    unsigned = new_leaf(leaf, key.public_key(), signer.certificate, now=now, serial=x509.random_serial_number())
    certificate = unsigned.sign(signer.key, hashes.SHA256())
    return [_key_step(folder / f"{name}.key", key), _step(folder / f"{name}.crt", pem([certificate]))]


def step_of_authorities(authorities: Path, certificates: Sequence[x509.Certificate]) -> Step:
    """The file of trusted authorities alone."""
    return _step(authorities, pem(certificates))


def pem(certificates: Sequence[x509.Certificate]) -> bytes:
    """A PEM file of certificates."""
    return b"".join(each.public_bytes(Encoding.PEM) for each in certificates)


def _key_step(path: Path, key: ec.EllipticCurvePrivateKey) -> Step:
    return _step(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), mode=0o600)


def _step(path: Path, content: bytes, mode: int = 0o644) -> Step:
    before = stored(path)
    owner = None if before is None else before.owner  # with an owner, also an existing file gets the mode
    return Step(path=path, before=before, content=content, mode=mode, owner=owner)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsError(f"{path}: {error.strerror}") from error
