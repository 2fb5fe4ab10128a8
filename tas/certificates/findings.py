"""What is wrong with certificates: each finding is one line for a person."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from tas.certificates.forms import USAGES, Purpose, alternative_names
from tas.errors import shortened
from tas.values.nouns import counted

SOON = timedelta(days=30)

CLUSTER_AUTHORITY = "kubernetes"
"""The common name of the authority that kubeadm creates for a cluster."""


def date_problem(certificate: x509.Certificate, now: datetime) -> str | None:
    """Why a certificate is not valid at `now`; None if it is valid."""
    if certificate.not_valid_after_utc <= now:
        return f"has expired: {certificate.not_valid_after_utc:%Y-%m-%d}"
    if certificate.not_valid_before_utc > now:
        return f"is not valid before {certificate.not_valid_before_utc:%Y-%m-%d}"
    return None


def expires_soon(certificate: x509.Certificate, now: datetime, within: timedelta) -> str | None:
    """When a valid certificate expires, if that is sooner than `within`."""
    left = certificate.not_valid_after_utc - now
    if left >= within:
        return None
    return f"expires on {certificate.not_valid_after_utc:%Y-%m-%d}, in {counted(left.days, 'day')}"


def first_expiry(certificates: Iterable[x509.Certificate]) -> float:
    """When the first of these certificates expires, in seconds since 1970."""
    return min(certificate.not_valid_after_utc.timestamp() for certificate in certificates)


def first_expiry_in(pem: bytes) -> float:
    """When the first certificate in PEM expires; 0 if that cannot be read, since OpenSSL reads more of them."""
    try:
        return first_expiry(x509.load_pem_x509_certificates(pem))
    except ValueError:
        return 0.0


def is_authority(certificate: x509.Certificate) -> bool:
    """Whether a certificate may sign others."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False


def is_cluster_authority(certificate: x509.Certificate) -> bool:
    """Whether the name of a certificate is that of the cluster's own authority."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return is_authority(certificate) and [each.value for each in names] == [CLUSTER_AUTHORITY]


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether `authority` itself has signed the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True


def issuer_of(chain: Sequence[x509.Certificate], authorities: Iterable[x509.Certificate]) -> x509.Certificate | None:
    """The authority that has signed the first certificate of a chain, also by the others of the chain; or None."""
    trusted = tuple(authorities)
    current, intermediates = chain[0], list(chain[1:])
    while True:
        for authority in trusted:
            if is_signed_by(current, authority):
                return authority
        following = next((each for each in intermediates if is_signed_by(current, each)), None)
        if following is None:
            return None
        intermediates.remove(following)
        current = following


def is_key_of(key: PrivateKeyTypes, certificate: x509.Certificate) -> bool:
    """Whether a private key is that of a certificate."""
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return key.public_key().public_bytes(*form) == certificate.public_key().public_bytes(*form)


def leaf_findings(
    chain: Sequence[x509.Certificate],
    authorities: Sequence[x509.Certificate],
    purpose: Purpose,
    *,
    now: datetime,
    within: timedelta = SOON,
) -> Iterator[str]:
    """What is wrong with the certificate of a server or client, the first of its chain.

    `within`: a certificate that expires sooner than that is a finding.
    """
    for certificate in chain:
        of = "" if certificate is chain[0] else f"its issuer {name_of(certificate)} "
        if (problem := date_problem(certificate, now) or expires_soon(certificate, now, within)) is not None:
            yield f"{of}{problem}"
    leaf = chain[0]
    if is_authority(leaf):
        yield "is the certificate of an authority: its key can sign for others"
    if not _is_for(leaf, purpose):
        yield f"is not for a {purpose} (extended key usage)"
    if purpose is Purpose.SERVER and not alternative_names(leaf):
        yield "has no alternative name: the scheduler does not read the common name"
    if issuer_of(chain, authorities) is None:
        yield f"is not signed by an authority in ca.crt, but by {shortened(leaf.issuer.rfc4514_string())}"


def authority_findings(certificate: x509.Certificate, *, now: datetime, within: timedelta = SOON) -> Iterator[str]:
    """What is wrong with the certificate of an authority."""
    if (problem := date_problem(certificate, now) or expires_soon(certificate, now, within)) is not None:
        yield f"{name_of(certificate)} {problem}"
    if not is_authority(certificate):
        yield f"{name_of(certificate)} is not the certificate of an authority"
    if is_cluster_authority(certificate):
        yield f"{name_of(certificate)} is the authority of the cluster, which signs for every kubelet: use your own"


def signer_problem(key: PrivateKeyTypes, authority: x509.Certificate, now: datetime) -> str | None:
    """Why an authority must not, or cannot, sign new certificates; None if it can."""
    if is_cluster_authority(authority):
        return "is the authority of the cluster: create one of your own with tas certs init"
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        return "has a key that is not ECDSA: create an authority with tas certs init"
    if not is_authority(authority):
        return "is not the certificate of an authority"
    problem = date_problem(authority, now)
    if problem is not None and authority.not_valid_before_utc > now:
        return f"{problem}: is the clock of this machine right?"
    return problem and f"{problem}: tas certs init --force creates a new authority"


def can_live_longer(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether a new certificate of `authority` may expire later than this one."""
    return leaf.not_valid_after_utc < authority.not_valid_after_utc


def name_of(certificate: x509.Certificate) -> str:
    """The subject for a person, shortened."""
    return shortened(certificate.subject.rfc4514_string())


def _is_for(certificate: x509.Certificate, purpose: Purpose) -> bool:
    try:
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True  # any purpose
    return USAGES[purpose] in usages
