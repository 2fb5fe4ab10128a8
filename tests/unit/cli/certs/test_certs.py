"""`tas certs`: the files, what renew replaces, what status finds, and the Secret."""

import base64
import json
import shutil
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from cryptography import x509

from cli import cli
from cli.certs.folder import create_authority, signer_of, steps_of_authority
from cli.configure.files import write_all
from tests.certificates import Authority

FILES = ("ca.crt", "ca.key", "client.crt", "client.key", "tls.crt", "tls.key")


def tas(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["certs", *map(str, words)], standalone_mode=False)


def code(result: Result) -> int:
    """The exit code, as `cli.main` sets it."""
    if result.exception is not None:
        assert hasattr(result.exception, "exit_code"), result.exception
        return int(result.exception.exit_code)
    return int(result.return_value or 0)


def message(result: Result) -> str:
    assert result.exception is not None
    return str(getattr(result.exception, "message", result.exception))


def done(*words: str | Path) -> Result:
    result = tas(*words)
    assert code(result) == 0, (result.output, result.exception)
    return result


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def changed(folder: Path, before: dict[str, bytes]) -> set[str]:
    after = content(folder)
    assert after.keys() == before.keys()
    return {name for name in after if after[name] != before[name]}


@pytest.fixture(scope="module")
def created(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    done("init", folder)
    return folder


@pytest.fixture
def folder(created: Path, tmp_path: Path) -> Path:
    """The files of `tas certs init`, with their modes."""
    return shutil.copytree(created, tmp_path / "certs")


class TestInit:
    def test_keys_are_only_for_their_owner(self, folder: Path) -> None:
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        assert modes == {name: 0o600 if name.endswith(".key") else 0o644 for name in FILES}

    def test_nothing_is_found_in_the_files(self, folder: Path) -> None:
        result = tas("status", folder)
        assert (code(result), result.stderr) == (0, "")
        assert result.stdout.count("key      matches") == 3

    def test_existing_files_are_replaced_only_with_force(self, folder: Path) -> None:
        (folder / "tls.key").chmod(0o644)
        (folder / "client.key").unlink()
        before = content(folder)
        result = tas("init", folder)
        assert code(result) == 1
        assert "tls.key" in message(result)
        assert "client.key" not in message(result)
        assert content(folder) == before

        done("init", folder, "--force")
        assert all(content(folder)[name] != before[name] for name in before)
        assert stat.S_IMODE((folder / "tls.key").stat().st_mode) == 0o600
        assert code(tas("status", folder)) == 0

    def test_names_and_lives_can_be_chosen(self, tmp_path: Path) -> None:
        names = ("--server-name", "tas.example", "--server-name", "10.1.2.3", "--client-name", "scheduler")
        done("init", tmp_path, *names, "--days", "40", "--ca-days", "50")
        states = json.loads(done("status", tmp_path, "--json").stdout)
        assert [(each["file"], each["names"], each["days_left"]) for each in states] == [
            ("ca.crt", [], 49),
            ("tls.crt", ["tas.example", "10.1.2.3"], 39),
            ("client.crt", [], 39),
        ]
        assert states[2]["subject"] == "CN=scheduler"
        assert states[1]["signed_by"] == states[0]["subject"]

    def test_the_key_of_the_authority_may_be_elsewhere(self, tmp_path: Path) -> None:
        key = tmp_path / "safe" / "ca.key"
        folder = tmp_path / "certs"
        done("init", folder, "--ca-key", key)
        assert set(content(folder)) == set(FILES) - {"ca.key"}
        assert code(tas("status", folder)) == 0
        result = tas("renew", folder, "--force")
        assert (code(result), "give --ca-key" in message(result)) == (1, True)
        done("renew", folder, "--force", "--ca-key", key)
        assert code(tas("status", folder)) == 0

    @pytest.mark.parametrize(
        ("flags", "words"),
        [
            (("--server-name", "a:9001"), "name = 'a:9001': must be a DNS name or an address"),
            (("--client-name", "x" * 65), "must have 1 to 64"),
            (("--days", "0"), "days = 0"),
            (("--ca-days", "-1"), "days = -1"),
            (("--namespace", "No"), "--namespace No"),
        ],
    )
    def test_invalid_values_create_nothing(self, tmp_path: Path, flags: tuple[str, ...], words: str) -> None:
        folder = tmp_path / "certs"
        result = tas("init", folder, *flags)
        assert code(result) in (1, 2)
        assert words in message(result)
        assert not folder.exists()


class TestSecret:
    def test_it_has_the_keys_of_the_original(self, tmp_path: Path) -> None:
        result = done("init", tmp_path, "--secret")
        secret = yaml.safe_load(result.stdout)
        data = {name: base64.b64decode(value) for name, value in secret.pop("data").items()}
        assert secret == {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "extender-secret", "namespace": "telemetry-aware-scheduling"},
            "type": "kubernetes.io/tls",
        }
        assert data == {name: (tmp_path / name).read_bytes() for name in ("tls.crt", "tls.key", "ca.crt")}
        assert f"created: {tmp_path / 'ca.key'}" in result.stderr

    def test_renew_prints_that_of_the_current_files(self, folder: Path) -> None:
        before = content(folder)
        secret = yaml.safe_load(done("renew", folder, "--secret", "--namespace", "default").stdout)
        assert secret["metadata"]["namespace"] == "default"
        assert base64.b64decode(secret["data"]["tls.key"]) == before["tls.key"]
        assert changed(folder, before) == set()

    @pytest.mark.parametrize("step", ["--new-ca", "--drop-old-ca"])
    def test_a_key_of_another_certificate_gives_no_secret_and_changes_nothing(self, folder: Path, step: str) -> None:
        if step == "--drop-old-ca":
            done("renew", folder, "--new-ca")
            done("renew", folder, "--force")
        (folder / "tls.key").write_bytes((folder / "client.key").read_bytes())
        before = content(folder)
        result = tas("renew", folder, step, "--secret")
        assert (code(result), result.stdout) == (1, "")
        assert "tls.crt: tls.key is not its key" in message(result)
        assert changed(folder, before) == set()


class TestRenew:
    def test_what_is_not_due_stays(self, folder: Path) -> None:
        before = content(folder)
        result = done("renew", folder)
        assert result.stdout.count("not due: ") == 2
        assert changed(folder, before) == set()

    def test_what_expires_soon_is_renewed_with_its_names_and_a_new_key(self, tmp_path: Path) -> None:
        done("init", tmp_path, "--server-name", "tas.example", "--client-name", "scheduler", "--days", "20")
        before = content(tmp_path)
        assert code(tas("status", tmp_path)) == 3
        result = done("renew", tmp_path)
        assert f"due: {tmp_path / 'tls.crt'}: expires on " in result.stdout
        assert changed(tmp_path, before) == {"tls.crt", "tls.key", "client.crt", "client.key"}
        states = json.loads(done("status", tmp_path, "--json").stdout)
        assert [(each["subject"], each["names"]) for each in states[1:]] == [
            ("CN=tas-extender", ["tas.example"]),
            ("CN=scheduler", []),
        ]

    def test_other_names_are_a_reason(self, folder: Path) -> None:
        before = content(folder)
        done("renew", folder, "--client-name", "second-scheduler")
        assert changed(folder, before) == {"client.crt", "client.key"}
        before = content(folder)
        done("renew", folder, "--client-name", "second-scheduler")
        assert changed(folder, before) == set()

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda folder: (folder / "tls.crt").unlink(),
            lambda folder: (folder / "tls.key").unlink(),
            lambda folder: (folder / "tls.key").write_bytes((folder / "client.key").read_bytes()),
            lambda folder: (folder / "tls.crt").write_bytes(Authority("other").server("tas").certificate),
            lambda folder: (folder / "tls.key").chmod(0o604),
        ],
        ids=["no certificate", "no key", "another key", "another authority", "a key that others know"],
    )
    def test_what_status_finds_is_repaired(self, folder: Path, spoil: Callable[[Path], object]) -> None:
        spoil(folder)
        assert code(tas("status", folder)) == 3
        done("renew", folder)
        assert code(tas("status", folder)) == 0

    def test_names_that_no_certificate_can_have_need_a_flag(self, folder: Path) -> None:
        (folder / "tls.crt").write_bytes(Authority("other").certificate)  # as the original's documents do
        result = tas("renew", folder)
        assert code(result) == 1
        assert "tls.crt: certificate: names = (): a server needs at least one; give --server-name" in message(result)
        done("renew", folder, "--server-name", "tas.example")
        assert code(tas("status", folder)) == 0

    def test_an_authority_that_expires_soon_is_noted_and_gives_no_new_certificate(self, tmp_path: Path) -> None:
        done("init", tmp_path, "--ca-days", "20")
        before = content(tmp_path)
        result = done("renew", tmp_path)
        assert result.stdout.count(" with its authority, see --new-ca\n") == 2
        assert changed(tmp_path, before) == set()
        done("renew", tmp_path, "--new-ca")
        assert "due: " in done("renew", tmp_path).stdout
        assert changed(tmp_path, before) == set(FILES)
        assert f"note: {tmp_path / 'ca.crt'}: 'CN=tas-ca " in result.stderr
        assert "' expires on " in result.stderr

    @pytest.mark.parametrize(
        ("spoil", "words"),
        [
            (lambda folder: (folder / "ca.key").write_text("x"), "ca.key: no private key in PEM"),
            (lambda folder: (folder / "ca.crt").write_text("x"), "ca.crt: no certificates in PEM"),
            (lambda folder: (folder / "tls.crt").write_text("x"), "tls.crt: no certificates in PEM"),
            (lambda folder: (folder / "tls.key").write_text("x"), "tls.key: no private key in PEM"),
            (lambda folder: (folder / "ca.crt").unlink(), "ca.crt: No such file or directory"),
            (
                lambda folder: (folder / "ca.key").write_bytes((folder / "tls.key").read_bytes()),
                "ca.key: is not the key of a certificate in ",
            ),
            (
                lambda folder: (folder / "ca.crt").write_bytes(Authority("kubernetes").certificate),
                "ca.key: is not the key of a certificate in ",
            ),
        ],
    )
    def test_unreadable_files_are_named_and_nothing_changes(
        self, folder: Path, spoil: Callable[[Path], object], words: str
    ) -> None:
        spoil(folder)
        before = content(folder)
        result = tas("renew", folder)
        assert code(result) == 1
        assert words in message(result)
        assert content(folder) == before

    def test_an_authority_is_replaced_in_three_steps(self, folder: Path) -> None:
        old = certificate(folder / "ca.crt")
        before = content(folder)
        done("renew", folder, "--new-ca")
        assert changed(folder, before) == {"ca.crt", "ca.key"}
        new, also = x509.load_pem_x509_certificates((folder / "ca.crt").read_bytes())
        assert also == old
        assert code(tas("status", folder)) == 0

        before = content(folder)
        for too_early in ("--new-ca", "--drop-old-ca"):
            assert code(tas("renew", folder, too_early)) == 1
        done("renew", folder)  # a certificate of the old authority is not due for that
        assert changed(folder, before) == set()

        done("renew", folder, "--force")
        assert certificate(folder / "tls.crt").issuer == new.subject
        assert (folder / "ca.crt").read_bytes() == before["ca.crt"]

        done("renew", folder, "--drop-old-ca")
        assert x509.load_pem_x509_certificates((folder / "ca.crt").read_bytes()) == [new]
        assert code(tas("status", folder)) == 0
        before = content(folder)
        done("renew", folder, "--drop-old-ca")
        assert changed(folder, before) == set()

    def test_an_authority_that_was_written_only_in_part_is_not_lost(self, folder: Path) -> None:
        """The run was killed after the first file."""
        authorities, key = folder / "ca.crt", folder / "ca.key"
        old = certificate(authorities)
        now = datetime.now(UTC)
        steps = steps_of_authority(
            authorities, key, create_authority(now, 10), [signer_of(authorities, key, now).certificate]
        )
        write_all(steps[:1])
        assert len(x509.load_pem_x509_certificates(authorities.read_bytes())) == 2
        done("renew", folder, "--force")
        assert certificate(folder / "tls.crt").issuer == old.subject
        done("renew", folder, "--drop-old-ca")
        assert certificate(authorities) == old
        done("renew", folder, "--new-ca")

    def test_steps_are_taken_one_by_one(self, folder: Path) -> None:
        result = tas("renew", folder, "--force", "--new-ca")
        assert code(result) == 2
        assert "separate steps" in message(result)


def unreadable(folder: Path) -> None:
    """Also for root."""
    (folder / "client.key").unlink()
    (folder / "client.key").mkdir()


class TestStatus:
    @pytest.mark.parametrize(
        ("spoil", "words"),
        [
            (lambda folder: (folder / "client.crt").write_text("x"), "client.crt: no certificates in PEM"),
            (lambda folder: (folder / "client.crt").unlink(), "client.crt: No such file or directory"),
            (lambda folder: (folder / "client.key").unlink(), "client.crt: client.key is missing"),
            (lambda folder: (folder / "client.key").write_text("x"), "client.key: no private key in PEM"),
            (unreadable, "client.key: Is a directory"),
            (
                lambda folder: (folder / "client.key").write_bytes((folder / "tls.key").read_bytes()),
                "client.crt: client.key is not its key",
            ),
            (
                lambda folder: (folder / "ca.key").write_bytes((folder / "tls.key").read_bytes()),
                "ca.crt: ca.key is not its key",
            ),
            (
                lambda folder: (folder / "ca.crt").write_bytes(Authority("kubernetes").certificate),
                "ca.crt: 'CN=kubernetes' is the authority of the cluster",
            ),
            (lambda folder: (folder / "ca.crt").unlink(), "tls.crt: is not signed by an authority in ca.crt, but by "),
            (lambda folder: (folder / "ca.crt").write_text("x"), "ca.crt: no certificates in PEM"),
            (
                lambda folder: (folder / "client.key").chmod(0o644),
                "client.crt: every user of this machine can read client.key (mode 644)",
            ),
            (
                lambda folder: (folder / "ca.key").chmod(0o644),
                "ca.crt: every user of this machine can read ca.key (mode 644)",
            ),
        ],
    )
    def test_each_fault_is_found_and_the_other_files_are_shown(
        self, folder: Path, spoil: Callable[[Path], object], words: str
    ) -> None:
        spoil(folder)
        result = tas("status", folder)
        assert code(result) == 3
        assert words in result.stderr
        assert "tls.crt\n  subject  CN=tas-extender" in result.stdout

    def test_a_folder_may_have_only_the_files_of_one_side(self, folder: Path) -> None:
        for name in ("ca.key", "tls.crt", "tls.key"):  # as in the folder of the scheduler
            (folder / name).unlink()
        result = done("status", folder)
        assert "tls.crt" not in result.stdout

    def test_a_secret_mounted_by_the_kubelet_is_read_through_its_links(self, folder: Path, tmp_path: Path) -> None:
        (folder / "tls.key").chmod(0o644)  # as the kubelet does
        mounted = tmp_path / "mounted"
        mounted.mkdir()
        (mounted / "..data").symlink_to(folder)
        for name in ("tls.crt", "tls.key", "ca.crt"):
            (mounted / name).symlink_to(f"..data/{name}")
        done("status", mounted)

    def test_a_folder_without_certificates_is_an_error(self, tmp_path: Path) -> None:
        for path in (tmp_path, tmp_path / "missing"):
            assert code(tas("status", path)) == 1
