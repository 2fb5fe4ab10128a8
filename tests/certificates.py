"""A certificate authority for one test run: elliptic curve keys, valid for a day, nothing written to disk."""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BEGUN = dt.timedelta(days=-2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate and its private key, each as PEM."""

    certificate: bytes
    key: bytes


def private_key() -> ec.EllipticCurvePrivateKey:
    """A new P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The key as unencrypted PEM."""
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, plain)


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The public half of the key as PEM."""
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(encoding, form)


class Authority:
    """Signs certificates for servers and clients."""

    def __init__(self, name: str, *, begins: dt.timedelta = BEGUN, lives: dt.timedelta = dt.timedelta(days=1)) -> None:
        self._key = private_key()
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            self._builder(self._name, self._key, lives, begins)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM)

    def server(
        self,
        name: str,
        *,
        dns: Sequence[str] = ("localhost",),
        ips: Sequence[str] = ("127.0.0.1",),
        lives: dt.timedelta = dt.timedelta(days=1),
        begins: dt.timedelta = BEGUN,
        is_client: bool = False,
    ) -> Pair:
        """For a server reached under these names and addresses; with `is_client` also as a client of its peers.

        Valid from `begins` from now on.
        """
        addresses = [x509.IPAddress(ipaddress.ip_address(ip)) for ip in ips]
        names = x509.SubjectAlternativeName([*map(x509.DNSName, dns), *addresses])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if is_client else [])]
        return self._issue(subject, usages, names, lives, begins)

    def client(
        self,
        user: str,
        *,
        groups: Sequence[str] = (),
        names: Sequence[x509.GeneralName] = (),
        lives: dt.timedelta = dt.timedelta(days=1),
    ) -> Pair:
        """For a Kubernetes user: the common name is the user, each organization a group; `lives` from now on."""
        parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, user)])
        alternative = x509.SubjectAlternativeName(names) if names else None
        return self._issue(subject, [ExtendedKeyUsageOID.CLIENT_AUTH], alternative, lives)

    def _issue(
        self,
        subject: x509.Name,
        usages: Sequence[x509.ObjectIdentifier],
        names: x509.SubjectAlternativeName | None,
        lives: dt.timedelta,
        begins: dt.timedelta = BEGUN,
    ) -> Pair:
        key = private_key()
        builder = self._builder(subject, key, lives, begins).add_extension(
            x509.ExtendedKeyUsage(usages), critical=False
        )
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Pair(certificate=certificate.public_bytes(serialization.Encoding.PEM), key=private_pem(key))

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        lives: dt.timedelta = dt.timedelta(days=1),
        begins: dt.timedelta = BEGUN,
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins)
            .not_valid_after(now + lives)
            # Strict verifiers, Python 3.13's default among them, insist on both identifiers.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
