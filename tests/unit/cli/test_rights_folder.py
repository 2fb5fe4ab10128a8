"""The folder of the operator of a closed bus: which password of a cluster it has, and who gets to see it."""

from pathlib import Path

import pytest

from cli.configure.files import FilesError
from cli.rights.folder import CLUSTER, OperatorFolder, make_private, write


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
