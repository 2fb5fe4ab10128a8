"""New certificates have what verifiers require, and each fault of a certificate is found."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509 import verification
from cryptography.x509.oid import NameOID

from tas.certificates.findings import (
    authority_findings,
    can_live_longer,
    is_key_of,
    is_signed_by,
    issuer_of,
    leaf_findings,
    signer_problem,
)
from tas.certificates.forms import (
    CLIENT_NAME,
    SERVER_NAMES,
    SERVER_SUBJECT,
    Leaf,
    Purpose,
    alternative_names,
    has_names_of,
    leaf_of,
    new_authority,
    new_leaf,
)
from tas.errors import InvalidInputError

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
SERVER = Leaf(purpose=Purpose.SERVER, name=SERVER_SUBJECT, names=SERVER_NAMES)
CLIENT = Leaf(purpose=Purpose.CLIENT, name=CLIENT_NAME)
KEY = ec.generate_private_key(ec.SECP256R1())


class Authority:
    def __init__(self, now: datetime = NOW, days: int = 3650) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self.sign(new_authority(self.key.public_key(), now=now, serial=1, days=days))

    def sign(self, unsigned: x509.CertificateBuilder) -> x509.Certificate:
        return unsigned.sign(self.key, hashes.SHA256())

    def leaf(self, leaf: Leaf, now: datetime = NOW) -> x509.Certificate:
        return self.sign(new_leaf(leaf, KEY.public_key(), self.certificate, now=now, serial=2))


AUTHORITY = Authority()
OTHER = Authority()


def findings(
    certificate: x509.Certificate,
    purpose: Purpose = Purpose.SERVER,
    now: datetime = NOW,
    authority: Authority = AUTHORITY,
) -> list[str]:
    return list(leaf_findings([certificate], [authority.certificate], purpose, now=now))


def named(common: str, *, ca: bool) -> x509.Certificate:
    """A certificate that this product does not create."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(AUTHORITY.certificate.subject)
        .public_key(KEY.public_key())
        .serial_number(3)
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + 365 * DAY)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )
    return AUTHORITY.sign(builder)


@pytest.mark.parametrize(
    ("leaf", "purpose"), [(SERVER, Purpose.SERVER), (CLIENT, Purpose.CLIENT)], ids=["server", "client"]
)
def test_nothing_is_found_in_new_certificates(leaf: Leaf, purpose: Purpose) -> None:
    assert list(authority_findings(AUTHORITY.certificate, now=NOW)) == []
    certificate = AUTHORITY.leaf(leaf)
    assert findings(certificate, purpose) == []
    assert is_key_of(KEY, certificate)
    assert has_names_of(certificate, leaf)
    assert leaf_of(certificate, purpose, days=leaf.days) == leaf


def test_a_strict_verifier_accepts_each_name_of_a_server() -> None:
    """The verifier of the library follows the rules of the CA/Browser Forum, as browsers do."""
    certificate = AUTHORITY.leaf(SERVER)
    verifier = verification.PolicyBuilder().store(verification.Store([AUTHORITY.certificate])).time(NOW)
    for name in SERVER_NAMES:
        subject: x509.IPAddress | x509.DNSName
        subject = x509.IPAddress(ip_address(name)) if name[0].isdigit() else x509.DNSName(name)
        chain = verifier.build_server_verifier(subject).verify(certificate, [])
        assert chain == [certificate, AUTHORITY.certificate]


def test_lives_of_new_certificates() -> None:
    leaf = AUTHORITY.leaf(SERVER)
    assert leaf.not_valid_after_utc == NOW + 365 * DAY
    assert NOW - timedelta(hours=1) < leaf.not_valid_before_utc < NOW
    assert AUTHORITY.certificate.not_valid_after_utc == NOW + 3650 * DAY


def test_a_leaf_expires_no_later_than_its_authority() -> None:
    short = Authority(days=40)
    assert short.leaf(SERVER).not_valid_after_utc == short.certificate.not_valid_after_utc
    assert not can_live_longer(short.leaf(SERVER), short.certificate)
    assert can_live_longer(short.leaf(SERVER), AUTHORITY.certificate)


def test_an_authority_signs_no_other_authority() -> None:
    constraints = AUTHORITY.certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)


@pytest.mark.parametrize(
    ("days", "found"),
    [
        (-1, ["is not valid before 2026-06-01"]),
        (0, []),
        (334, []),
        (335, []),
        (336, ["expires on 2027-06-01, in 29 days"]),
        (365, ["has expired: 2027-06-01"]),
    ],
)
def test_dates_are_found(days: int, found: list[str]) -> None:
    assert findings(AUTHORITY.leaf(SERVER), now=NOW + days * DAY) == found


def test_an_authority_that_expires_is_found() -> None:
    (found,) = authority_findings(AUTHORITY.certificate, now=NOW + 3640 * DAY)
    assert found.endswith("' expires on 2036-05-29, in 10 days")


@pytest.mark.parametrize(
    ("certificate", "purpose", "found"),
    [
        (lambda: OTHER.leaf(SERVER), Purpose.SERVER, "is not signed by an authority in ca.crt, but by 'CN=tas-ca 2026"),
        (lambda: AUTHORITY.leaf(SERVER), Purpose.CLIENT, "is not for a client (extended key usage)"),
        (lambda: AUTHORITY.leaf(CLIENT), Purpose.CLIENT, None),
        (lambda: named("tas", ca=False), Purpose.SERVER, "has no alternative name: the scheduler does not read the"),
        (lambda: named("tas", ca=False), Purpose.CLIENT, None),
        (lambda: named("tas", ca=True), Purpose.CLIENT, "is the certificate of an authority: its key can sign for"),
    ],
)
def test_each_fault_is_found(certificate: Callable[[], x509.Certificate], purpose: Purpose, found: str | None) -> None:
    all_found = findings(certificate(), purpose)
    assert [each[: len(found or "")] for each in all_found] == ([] if found is None else [found])


def test_the_authority_of_a_cluster_is_found_and_signs_nothing() -> None:
    cluster = named("kubernetes", ca=True)
    (found,) = authority_findings(cluster, now=NOW)
    assert "is the authority of the cluster" in found
    assert "is the authority of the cluster" in (signer_problem(KEY, cluster, NOW) or "")


@pytest.mark.parametrize(
    ("certificate", "days", "problem"),
    [
        (AUTHORITY.certificate, 0, None),
        (AUTHORITY.certificate, 4000, "has expired: 2036-05-29: tas certs init --force creates a new authority"),
        (AUTHORITY.certificate, -30, "is not valid before 2026-06-01: is the clock of this machine right?"),
        (AUTHORITY.leaf(CLIENT), 0, "is not the certificate of an authority"),
    ],
    ids=["valid", "expired", "the clock is behind", "leaf"],
)
def test_what_cannot_sign_is_named(certificate: x509.Certificate, days: int, problem: str | None) -> None:
    assert signer_problem(KEY, certificate, NOW + days * DAY) == problem


def test_a_key_of_another_kind_does_not_sign() -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    assert "is not ECDSA" in (signer_problem(key, AUTHORITY.certificate, NOW) or "")


def test_an_issuer_is_found_through_the_chain() -> None:
    middle = Authority()
    intermediate = AUTHORITY.sign(
        x509.CertificateBuilder()
        .subject_name(middle.certificate.subject)
        .issuer_name(AUTHORITY.certificate.subject)
        .public_key(middle.key.public_key())
        .serial_number(4)
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + 365 * DAY)
    )
    leaf = middle.leaf(SERVER)
    both = [OTHER.certificate, AUTHORITY.certificate]
    assert issuer_of([leaf, intermediate], both) == AUTHORITY.certificate
    assert issuer_of([leaf, intermediate], [OTHER.certificate]) is None
    assert issuer_of([leaf], both) is None
    assert is_signed_by(leaf, middle.certificate)


def test_of_two_authorities_with_one_name_the_signer_counts() -> None:
    assert AUTHORITY.certificate.subject == OTHER.certificate.subject
    certificate = OTHER.leaf(SERVER)
    both = [AUTHORITY.certificate, OTHER.certificate]
    assert issuer_of([certificate], both) == OTHER.certificate
    trusted = verification.PolicyBuilder().store(verification.Store(both)).time(NOW)
    verifier = trusted.build_server_verifier(x509.DNSName("localhost"))
    assert verifier.verify(certificate, [])[-1] == OTHER.certificate


def test_names_are_dns_names_and_addresses() -> None:
    names = ("tas.example", "10.0.0.7", "::1", "*.tas.example")
    certificate = AUTHORITY.leaf(Leaf(purpose=Purpose.SERVER, name="tas", names=names))
    assert alternative_names(certificate) == list(names)


@pytest.mark.parametrize(
    ("leaf", "words"),
    [
        ({"names": ()}, "a server needs at least one"),
        ({"names": ("a:9001",)}, "name = 'a:9001': must be a DNS name or an address, without a port"),
        ({"names": ("",)}, "name = ''"),
        ({"names": ("https://a",)}, "must be a DNS name"),
        ({"names": ("täs",)}, "must be a DNS name"),
        ({"name": ""}, "must have 1 to 64 printable characters"),
        ({"name": "x" * 65}, "must have 1 to 64 printable characters"),
        ({"days": 0}, "days = 0: must be from 1 to 36500"),
        ({"days": 10**9}, "must be from 1 to 36500"),
    ],
)
def test_what_no_certificate_can_have_is_an_error(leaf: dict[str, object], words: str) -> None:
    given: dict[str, object] = {"purpose": Purpose.SERVER, "name": "tas", "names": ("tas",), **leaf}
    with pytest.raises(InvalidInputError, match=words):
        Leaf(**given)  # type: ignore[arg-type]
