"""Certificates and keys in files and in handshakes, read with cryptography."""

import re
from collections.abc import Iterable
from math import inf

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID

from tas.certificates.findings import is_key_of, is_signed_by
from tas.errors import shortened
from workers.http.tls_files import TlsError, TlsFiles

MAX_NAMED_BYTES = 8 << 10
"""The largest refused certificate that is read: the names of a larger one take milliseconds."""

_LINK = re.compile(r" See https://\S+ for more details\.")


def certificates_of(
    contents: tuple[bytes, bytes, bytes], files: TlsFiles
) -> tuple[list[x509.Certificate], list[x509.Certificate]]:
    """The chain, leaf first, and the authorities in the contents of the files.

    Raises TlsError if a file has no certificates, or the key is not that of the leaf.
    """
    chain = certificates_in(contents[0], files.shown("cert"))
    authorities = [] if files.cacert is None else certificates_in(contents[2], files.shown("cacert"))
    key = key_in(contents[1], files.shown("key"))
    try:
        fits = is_key_of(key, chain[0])
    except (UnsupportedAlgorithm, ValueError) as error:  # the library reads the key of a certificate only when asked
        raise TlsError(f"{files.shown('cert')}: has a key that is unreadable: {error}") from error
    if not fits:
        raise TlsError(f"{files.shown('key')}: is not the key of {files.shown('cert')}")
    return chain, authorities


def certificates_in(text: bytes, file: str) -> list[x509.Certificate]:
    """The certificates of a PEM file, at least one. `file` names it in messages. Raises TlsError."""
    try:
        return x509.load_pem_x509_certificates(text)
    except ValueError as error:
        raise TlsError(f"{file}: no certificates in PEM: {_of_library(error)}") from error


def key_in(text: bytes, file: str) -> PrivateKeyTypes:
    """The unencrypted private key of a PEM file. `file` names it in messages. Raises TlsError."""
    try:
        return load_pem_private_key(text, password=None)
    except TypeError as error:
        raise TlsError(f"{file}: is encrypted: must be unencrypted") from error
    except Exception as error:  # errors of the library and of OpenSSL: all mean that this is no key
        raise TlsError(f"{file}: no private key in PEM: {_of_library(error)}") from error


def _of_library(error: Exception) -> str:
    """The text of an error without the link to a page about programming with the library."""
    return _LINK.sub("", str(error))


def der_of(certificate: x509.Certificate) -> bytes:
    """The certificate as DER."""
    return certificate.public_bytes(Encoding.DER)


def last_expiry(certificates: Iterable[x509.Certificate]) -> float:
    """When the last of these certificates expires, in seconds since 1970; infinite without any."""
    return max((certificate.not_valid_after_utc.timestamp() for certificate in certificates), default=inf)


def starts_of(certificates: Iterable[x509.Certificate]) -> list[float]:
    """From when each of these certificates is valid, in seconds since 1970."""
    return [certificate.not_valid_before_utc.timestamp() for certificate in certificates]


def names_in(der: bytes) -> str:
    """The names in an untrusted certificate, shortened for the log; "" if none can be read."""
    if len(der) > MAX_NAMED_BYTES:
        return f"a certificate of {len(der)} bytes"
    try:
        certificate = x509.load_der_x509_certificate(der)
        names = [str(part.value) for part in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        alternative = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names += [str(name.value) for name in alternative]
    except x509.ExtensionNotFound:
        pass
    except Exception:  # noqa: BLE001 - for the log alone; the content is untrusted
        return ""
    return shortened(", ".join(dict.fromkeys(names))) if names else ""


def is_signed_by_one(der: bytes, authorities: Iterable[bytes]) -> bool:
    """Whether one of these authorities itself has signed an untrusted certificate. All as DER."""
    if len(der) > MAX_NAMED_BYTES:
        return False
    try:
        certificate = x509.load_der_x509_certificate(der)
        return any(is_signed_by(certificate, x509.load_der_x509_certificate(each)) for each in authorities)
    except Exception:  # noqa: BLE001 - the content is untrusted, and the library has errors of several kinds
        return False
