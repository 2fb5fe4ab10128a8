"""New certificates, complete but for the signature: an authority of its own, and what it signs.

The forms are those that Go, OpenSSL and Python accept: names of servers as alternative names, and both identifiers of
keys.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tas.errors import InvalidInputError

AUTHORITY_DAYS = 3650
LEAF_DAYS = 365

MAX_DAYS = 36500

BACKDATED = timedelta(minutes=5)
"""A new certificate is already valid for a machine whose clock is behind by this time."""

SERVER_NAMES = (
    "tas-service.telemetry-aware-scheduling.svc.cluster.local",
    "tas-service.telemetry-aware-scheduling.svc",
    "tas-service.telemetry-aware-scheduling",
    "localhost",
    "127.0.0.1",
)
"""Of the extender: the Service of the original under each of its names, and this machine."""

SERVER_SUBJECT = "tas-extender"
CLIENT_NAME = "system:kube-scheduler"


class Purpose(StrEnum):
    """What a certificate is for."""

    AUTHORITY = "authority"
    SERVER = "server"
    CLIENT = "client"


USAGES = {Purpose.SERVER: ExtendedKeyUsageOID.SERVER_AUTH, Purpose.CLIENT: ExtendedKeyUsageOID.CLIENT_AUTH}


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A certificate for a server or a client.

    Attributes:
        name: The common name. Of a client this is the name for `--client-names`.
        names: DNS names and addresses: the alternative names, of which a server has at least one.
    """

    purpose: Purpose
    name: str
    names: tuple[str, ...] = ()
    days: int = LEAF_DAYS

    def __post_init__(self) -> None:
        if self.purpose is Purpose.SERVER and not self.names:
            raise InvalidInputError("certificate", "names", self.names, "a server needs at least one")
        for name in self.names:
            _alternative(name)
        _check_common_name(self.name)
        _check_days(self.days)


def new_authority(
    key: ec.EllipticCurvePublicKey, *, now: datetime, serial: int, days: int = AUTHORITY_DAYS
) -> x509.CertificateBuilder:
    """A certificate of an authority, which it must sign itself. Its name contains `now`, so each has its own.

    It can sign no other authority. Raises InvalidInputError.
    """
    _check_days(days)
    name = _name(f"tas-ca {now:%Y-%m-%dT%H:%M:%SZ}")
    return (
        _builder(name, name, key, x509.AuthorityKeyIdentifier.from_issuer_public_key(key), serial)
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
    )


def new_leaf(
    leaf: Leaf, key: ec.EllipticCurvePublicKey, authority: x509.Certificate, *, now: datetime, serial: int
) -> x509.CertificateBuilder:
    """A certificate that `authority` must sign; it expires no later than `authority`."""
    builder = (
        _builder(_name(leaf.name), authority.subject, key, _key_identifier(authority), serial)
        .not_valid_before(max(now - BACKDATED, authority.not_valid_before_utc))
        .not_valid_after(min(now + timedelta(days=leaf.days), authority.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([USAGES[leaf.purpose]]), critical=False)
    )
    if leaf.names:
        alternative = x509.SubjectAlternativeName([_alternative(name) for name in leaf.names])
        builder = builder.add_extension(alternative, critical=False)
    return builder


def leaf_of(certificate: x509.Certificate, purpose: Purpose, *, days: int) -> Leaf:
    """A new certificate with the names of an existing one. Raises InvalidInputError if it has others than ours."""
    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    name = str(common[0].value) if common else ""
    return Leaf(purpose=purpose, name=name, names=tuple(alternative_names(certificate)), days=days)


def has_names_of(certificate: x509.Certificate, leaf: Leaf) -> bool:
    """Whether a certificate has the names of `leaf`, in any order."""
    return certificate.subject == _name(leaf.name) and set(alternative_names(certificate)) == set(leaf.names)


def alternative_names(certificate: x509.Certificate) -> Sequence[str]:
    """Each alternative name as text."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return [str(each.value) for each in found]


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: x509.AuthorityKeyIdentifier,
    serial: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(issuer_key, critical=False)
    )


def _key_identifier(authority: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """The identifier by which verifiers find the authority among several."""
    try:
        own = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        own = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(name: str) -> x509.GeneralName:
    """Raises InvalidInputError."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    if not (name.isascii() and name.isprintable() and 0 < len(name) <= 253) or set(name) & set(" /:@,"):
        raise InvalidInputError("certificate", "name", name, "must be a DNS name or an address, without a port")
    return x509.DNSName(name)


def _check_common_name(name: str) -> None:
    if not (name.isprintable() and 0 < len(name) <= 64):  # RFC 5280, ub-common-name
        raise InvalidInputError("certificate", "name", name, "must have 1 to 64 printable characters")


def _check_days(days: int) -> None:
    if not 1 <= days <= MAX_DAYS:
        raise InvalidInputError("certificate", "days", days, f"must be from 1 to {MAX_DAYS}")
