"""The files of a process on the bus, and what it says when it is refused."""

from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from bus.errors import AccessError
from bus.rights.access import Access, Loaded, refusal
from tests.certificates import Authority


def test_without_files_nothing_is_shown() -> None:
    assert Access().load() == Loaded()


@pytest.mark.parametrize("content", ["", " \n", "two words", "zwölf", "a\x07b", "a\nb"])
def test_a_token_that_no_server_can_have_is_refused_and_not_repeated(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(AccessError, match=f"^{file}: must be one line") as caught:
        Access(token=file).load()
    assert content.strip() not in str(caught.value) or not content.strip()


def test_the_secrets_of_a_process_are_not_in_its_repr(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter2\n")
    loaded = Access(token=tmp_path / "token").load()
    assert loaded.options["token"] == "hunter2"
    assert "hunter2" not in repr(loaded)


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file.pem"
    file.write_text("nothing")
    for access in (Access(cacert=file), Access(cert=file)):
        with pytest.raises(AccessError, match=f"^{file}: must"):
            access.load()


def test_a_token_that_was_found_counts_as_one_that_was_given(tmp_path: Path) -> None:
    """Else each look at the files would find a change, and begin a new connection."""
    token = tmp_path / "token"
    token.write_text("found")
    access = Access(find_token=lambda: token)
    assert access.load().contents == access.read()
    assert access.read().token == b"found"


@pytest.mark.parametrize(
    ("error", "loaded", "access", "expected"),
    [
        ("Authorization Violation", Loaded(user="the user a", expires=5.0), Access(), "the user a expired 5 s ago"),
        (
            "Authorization Violation",
            Loaded(user="the user a", expires=11.0),
            Access(credentials=Path("f")),
            "does not accept the user a: it",
        ),
        ("User Authentication Expired", Loaded(user="the token in f"), Access(), "does not accept the token in f"),
        ("Authorization Violation", Loaded(), Access(), "demands credentials, and none are given"),
        ("SSL: TLSV13_ALERT_CERTIFICATE_EXPIRED", Loaded(), Access(cert=Path("c")), "the certificate in c has expired"),
        ("SSL: TLSV1_ALERT_UNKNOWN_CA", Loaded(), Access(cert=Path("c")), "issuer of the certificate in c"),
        ("nats: 'maximum connections exceeded'", Loaded(), Access(), "as its max_connections allows"),
        ("nats: 'maximum account active connections exceeded'", Loaded(), Access(), "as its JWT allows"),
        ("Connect call failed", Loaded(), Access(), "Connect call failed"),
    ],
)
def test_a_refusal_says_who_was_refused_and_what_to_do(
    error: str, loaded: Loaded, access: Access, expected: str
) -> None:
    text = refusal(Exception(error), loaded, access, address_has_user=False, now=10.0)
    assert text.startswith(error)
    assert expected in text


def test_it_is_known_when_a_certificate_that_is_shown_expires(tmp_path: Path) -> None:
    """Of several in the file, when the first of them does."""
    authority = Authority("of the bus")
    pair = authority.client("tas", lives=timedelta(days=9))
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    cert.write_bytes(pair.certificate)
    key.write_bytes(pair.key)
    access = Access(cert=cert, key=key)
    assert access.load().dates == {"bus-cert": end_of(pair.certificate)}
    cert.write_bytes(pair.certificate + authority.certificate)
    assert access.load().dates == {"bus-cert": end_of(authority.certificate)}
    assert Loaded(expires=5.0, certificate_expires=9.0).dates == {"bus": 5.0, "bus-cert": 9.0}


def end_of(certificate: bytes) -> float:
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp()
