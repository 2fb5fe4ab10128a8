"""The folder of the operator of a closed bus: which password of a cluster it has, and who gets to see it."""

import json
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from bus.rights.jwt import claims_of
from bus.rights.nkeys import Nkey, NkeyKind
from cli.configure.files import FilesError
from cli.rights.folder import CLUSTER, ISSUED, OperatorFolder, make_private, write
from tests.fuzz import rights


def opened(folder: Path, password: str | None = None) -> OperatorFolder:
    """The folder with this password, and no keys yet."""
    folder.chmod(0o700)
    if password is not None:
        (folder / CLUSTER).write_text(f"{password}\n")
    return OperatorFolder.open(folder)


def test_a_new_password_of_a_cluster_is_too_long_to_guess_and_may_be_stored(tmp_path: Path) -> None:
    """24 random bytes as 48 characters, after a letter: a word of digits alone would be a number for NATS."""
    first, second = (opened(tmp_path).cluster_password for _ in range(2))
    assert first != second
    for made in (first, second):
        assert (made[0], len(made)) == ("c", 1 + 2 * 24)
        assert len(set(made)) > 5
        assert opened(tmp_path, made).cluster_password == made


@pytest.mark.parametrize("length", [24, 128])
def test_a_password_of_the_operators_own_may_be_as_short_and_as_long_as_the_message_says(
    tmp_path: Path, length: int
) -> None:
    password = "a" + "0z" * 64
    assert opened(tmp_path, password[:length]).cluster_password == password[:length]


@pytest.mark.parametrize("password", ["a" * 23, "a" * 129, "0" * 24, "A" * 24, "a" * 24 + "\nb"])
def test_any_other_is_refused_and_not_shown(tmp_path: Path, password: str) -> None:
    with pytest.raises(FilesError, match="must be 24 to 128 characters a-z and 0-9, the first a letter") as raised:
        opened(tmp_path, password)
    assert password[:24] not in str(raised.value).replace(str(tmp_path), "")


def test_the_password_is_in_no_text_of_the_folder(tmp_path: Path) -> None:
    """Such a text is in the trace of an error."""
    folder = opened(tmp_path)
    assert folder.cluster_password not in repr(folder)
    for key in (folder.keys.operator, folder.keys.system, folder.keys.account):
        assert key.seed not in repr(folder)


def test_each_lost_key_of_a_role_is_named_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "operator"
    make_private(folder)
    write(OperatorFolder.open(folder).steps(now=0.0))
    keys = [folder / "keys" / f"role-{role}.seed" for role in ("labels", "reader")]
    for key in keys:
        key.unlink()
    with pytest.raises(FilesError) as raised:
        OperatorFolder.open(folder)
    assert str(raised.value).startswith(f"{keys[0]}, {keys[1]}: missing: by such a key")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder with an operator."""
    folder = tmp_path / "operator"
    make_private(folder)
    write(OperatorFolder.open(folder).steps(now=0.0))
    return folder


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("operator", NkeyKind.ACCOUNT, "is a seed of the kind account: must be of the kind operator"),
        ("account", NkeyKind.USER, "is a seed of the kind user: must be of the kind account"),
        ("role-labels", NkeyKind.OPERATOR, "is a seed of the kind operator: must be of the kind account"),
    ],
)
def test_a_key_of_another_kind_is_named_before_servers_get_what_it_signs(
    made: Path, name: str, kind: NkeyKind, words: str
) -> None:
    """They would not start with such an auth.conf."""
    file = made / "keys" / f"{name}.seed"
    file.write_text(f"{Nkey.new(kind).seed}\n")
    with pytest.raises(FilesError) as raised:
        OperatorFolder.open(made)
    assert str(raised.value) == f"{file}: {words}"


@pytest.mark.parametrize("content", [b'{"a": ["\xff"]}', b'{"a": "b"}', b"[" * 100_000, b""])
def test_a_damaged_file_is_an_error_that_names_it(made: Path, content: bytes) -> None:
    (made / ISSUED).write_bytes(content)
    with pytest.raises(FilesError, match=f"^{made / ISSUED}: must be as `tas bus` has written it"):
        OperatorFolder.open(made)


@pytest.mark.parametrize(
    ("name", "content"),
    [("earlier.json", b'{"a": ' + b"[" * 100_000), ("revoked.json", b'{"U": 1e30}'), ("revoked.json", b'{"U": -1}')],
)
def test_a_value_that_no_server_reads_is_an_error(made: Path, name: str, content: bytes) -> None:
    (made / name).write_bytes(content)
    with pytest.raises(FilesError, match=f"^{made / name}: must be"):
        OperatorFolder.open(made)


@pytest.mark.parametrize(
    "changed",
    [
        {"signing_keys": 5},
        {"signing_keys": [{"key": ["a"], "role": "labels"}, 5, {"key": None}]},
        {"revocations": [1]},
    ],
)
def test_claims_in_auth_conf_that_no_version_has_written_are_written_anew(changed: dict[str, object]) -> None:
    account = json.loads(rights.claims(rights.ACCOUNT))
    odd = json.dumps(account | {"nats": account["nats"] | changed}).encode()
    assert rights.ACCOUNT in rights.configuration_of(odd)
    assert rights.read_account(odd), "nor do they end what else is read in the file"


def test_claims_in_auth_conf_that_are_nested_too_deep_are_written_anew() -> None:
    """Also at the depths that can just be read, and not be compared."""

    def odd(depth: int) -> bytes:
        return b'{"nats": {"signing_keys": ' + b"[" * depth + b"]" * depth + b"}}"

    def is_read(depth: int) -> bool:
        with suppress(ValueError):
            return bool(claims_of(rights.jwt_of(odd(depth))))
        return False

    least = next(depth for depth in range(1, sys.getrecursionlimit()) if not is_read(depth))
    for depth in (*range(least - 10, least - 3), 100_000):
        assert rights.ACCOUNT in rights.configuration_of(odd(depth))


def test_a_user_whose_times_no_server_reads_is_an_error_that_names_the_file() -> None:
    claims = json.loads(rights.claims(rights.USERS[0]))
    for odd in ({"exp": 10**400}, {"exp": -1}, {"exp": 1.5}):
        with pytest.raises(FilesError, match=r"a\.creds: NATS USER JWT: must be a JWT"):
            rights.read_user(json.dumps(claims | odd).encode())
    assert rights.read_user(json.dumps(claims | {"iat": -(10**400)}).encode())
