"""Keys of NATS and their JWTs, in the forms of the server's own tools."""

import base64

import pytest

from bus.errors import AccessError
from bus.rights.credentials import credentials_text, parse_credentials
from bus.rights.jwt import Scope, account_jwt, claims_of, operator_jwt, user_jwt
from bus.rights.nkeys import Nkey, NkeyError, NkeyKind, is_signed_by, kind_of
from bus.rights.roles import Limits, Permissions

# A pair that docs.nats.io publishes as an example (nkey authentication).
DOCUMENTED = (
    "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY",
    "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4",
)


def test_a_documented_seed_has_its_documented_public_key() -> None:
    key = Nkey.of_seed(DOCUMENTED[0])
    assert (key.seed, key.public, key.kind) == (*DOCUMENTED, NkeyKind.USER)
    assert kind_of(DOCUMENTED[1]) is NkeyKind.USER


@pytest.mark.parametrize(
    ("kind", "seed", "public"), [("OPERATOR", "SO", "O"), ("ACCOUNT", "SA", "A"), ("USER", "SU", "U")]
)
def test_a_key_says_what_it_is_for(kind: str, seed: str, public: str) -> None:
    key = Nkey.new(NkeyKind[kind])
    assert key.seed.startswith(seed)
    assert key.public.startswith(public)
    assert Nkey.of_seed(key.seed).public == key.public
    signature = key.sign(b"text")
    assert is_signed_by(key.public, signature, b"text")
    assert not is_signed_by(key.public, signature, b"other text")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SU",
        "SUACSSL3",
        DOCUMENTED[0][:-1],
        DOCUMENTED[0].replace("SSL", "SSM"),
        DOCUMENTED[1],
        "ü",
        DOCUMENTED[0].lower(),
    ],
)
def test_what_is_no_seed_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(NkeyError) as caught:
        Nkey.of_seed(text)
    assert len(text) < 8 or text not in str(caught.value)


def test_a_public_key_is_no_seed_and_a_seed_no_public_key() -> None:
    with pytest.raises(NkeyError):
        kind_of(DOCUMENTED[0])


def signed(jwt: str, by: str) -> bool:
    text, _, signature = jwt.rpartition(".")
    return is_signed_by(by, base64.urlsafe_b64decode(signature + "=="), text.encode())


def test_each_jwt_is_signed_by_the_level_above_and_names_it() -> None:
    operator, account, signer, user = (Nkey.new(NkeyKind[kind]) for kind in ("OPERATOR", "ACCOUNT", "ACCOUNT", "USER"))
    of_operator = operator_jwt(operator, name="o", system_account=account.public, signing_keys=(), now=1.5)
    permissions = Permissions(publish=("a.>",), subscribe=())
    limits = Limits(subscriptions=7, message_bytes=99)
    scope = Scope(key=signer.public, role="agent", permissions=permissions, limits=limits)
    of_account = account_jwt(operator, account.public, name="a", signing_keys=(scope,), jetstream=True, now=1.5)
    of_user = user_jwt(
        signer,
        user.public,
        account=account.public,
        name="u",
        permissions=None,
        tags=("source:machine",),
        now=1.5,
        expires=99.9,
    )
    assert signed(of_operator, operator.public)
    assert signed(of_account, operator.public)
    assert signed(of_user, signer.public)
    assert not signed(of_user, account.public)
    assert claims_of(of_user) | {"jti": ""} == {
        "iat": 1,
        "iss": signer.public,
        "sub": user.public,
        "name": "u",
        "exp": 99,
        "jti": "",
        "nats": {"issuer_account": account.public, "tags": ["source:machine"], "type": "user", "version": 2},
    }
    (key,) = claims_of(of_account)["nats"]["signing_keys"]
    assert key["template"] == {
        "pub": {"allow": ["a.>"]},
        "sub": {"deny": [">"]},
        "subs": 7,
        "data": -1,
        "payload": 99,
    }, "an empty allow list would allow everything"


def test_a_credentials_file_of_another_key_damaged_or_empty_is_refused_with_its_name() -> None:
    account, user = Nkey.new(NkeyKind.ACCOUNT), Nkey.new(NkeyKind.USER)
    jwt = user_jwt(account, user.public, account=account.public, name="tas-x", permissions=None, now=0)
    found = parse_credentials(credentials_text(jwt, user).encode(), "f")
    assert (found.name, found.key.public, found.expires) == ("tas-x", user.public, 0)
    assert found.key.seed not in repr(found)
    crlf = credentials_text(jwt, user).replace("\n", "\r\n")
    assert parse_credentials(crlf.encode(), "f").jwt == jwt
    bad = {
        "": "must have the blocks",
        credentials_text(jwt, Nkey.new(NkeyKind.USER)): "must be the key of the user",
        credentials_text(jwt, account): "must be the key of the user",
        credentials_text("a.b", user): "NATS USER JWT: must be a JWT",
        credentials_text("a", user): "NATS USER JWT: must be a JWT",
        credentials_text(jwt, user).replace(user.seed, f"SX{user.seed[2:]}"): "USER NKEY SEED: must",
    }
    for text, expected in bad.items():
        with pytest.raises(AccessError, match=f"^f: .*{expected}") as caught:
            parse_credentials(text.encode(), "f")
        assert user.seed not in str(caught.value)
