"""Finding the embedded server that this user runs."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.loading import load_settings
from workers.discovery import (
    announced,
    bus_access,
    bus_url,
    is_simulated,
    running_bus,
    runtime_directory,
    temporary_directory,
)

TOKEN = Path("/somewhere/token")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "tas"


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Another process, which ends when its input does."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        yield process


def test_a_server_is_found_while_it_is_announced(folder: Path) -> None:
    assert running_bus() is None
    with announced("nats://127.0.0.1:1", os.getpid(), TOKEN):
        assert running_bus() == "nats://127.0.0.1:1"
        assert not is_simulated("nats://127.0.0.1:1")
        assert folder.stat().st_mode & 0o777 == 0o700
    assert running_bus() is None
    assert not folder.exists()


def test_a_server_of_a_simulated_cluster_is_known_by_its_address() -> None:
    with announced("nats://127.0.0.1:1", os.getpid(), TOKEN, simulated=True):
        assert is_simulated("nats://127.0.0.1:1")
        assert not is_simulated("nats://127.0.0.1:2")


@pytest.mark.parametrize("method", ["lstat", "write_bytes"])
def test_a_server_is_announced_while_the_last_other_one_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The other one removes the directory of both."""
    original = getattr(Path, method)
    removed: list[Path] = []

    def after_the_end(path: Path, *arguments: bytes) -> object:
        if not removed:
            folder.rmdir()
            removed.append(folder)
        return original(path, *arguments)

    monkeypatch.setattr(Path, method, after_the_end)
    with announced("nats://127.0.0.1:1", os.getpid(), TOKEN):
        assert removed == [folder]
        assert running_bus() == "nats://127.0.0.1:1"


def test_the_token_of_an_embedded_server_is_shown_to_it_alone_also_if_it_starts_later(
    folder: Path, tmp_path: Path
) -> None:
    token, mine = tmp_path / "token", tmp_path / "mine"
    token.write_text("0123456789abcdef")
    mine.write_text("fedcba9876543210")
    url, settings = "nats://127.0.0.1:1", load_settings("get", {})
    access = bus_access(settings, url)
    assert access.load().contents.token == b""
    with announced(url, os.getpid(), token):
        (file,) = folder.iterdir()
        assert "0123456789abcdef" not in file.read_text()
        assert bus_url(settings) == url
        assert access.load().contents.token == b"0123456789abcdef"
        for other in ("nats://127.0.0.1:2", "nats://other@127.0.0.1:1"):
            assert bus_access(settings, other).load().contents.token == b""
        given = load_settings("get", {"bus_token": str(mine)})
        assert bus_access(given, url).load().contents.token == b"fedcba9876543210"


def test_the_server_started_last_is_found(other: subprocess.Popen[bytes], folder: Path) -> None:
    with announced("nats://127.0.0.1:2", other.pid, TOKEN):
        with announced("nats://127.0.0.1:1", os.getpid(), TOKEN):
            assert running_bus() == "nats://127.0.0.1:2"
        assert folder.exists()
        assert running_bus() == "nats://127.0.0.1:2"
    assert not folder.exists()


def test_the_announcement_of_a_killed_server_does_not_count(other: subprocess.Popen[bytes], folder: Path) -> None:
    with announced("nats://127.0.0.1:2", other.pid, TOKEN):
        left = folder / f"bus-{other.pid}.json"
        text = left.read_text()
        other.communicate(b"")
        assert running_bus() is None
        assert not left.exists()
        # Now another process has the same id.
        left.write_text(text.replace(str(other.pid), str(os.getpid())))
        assert running_bus() is None


def test_an_unreadable_announcement_does_not_count(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / "bus-1.json").write_text("{")
    assert running_bus() is None
    assert not list(folder.iterdir())


def test_a_folder_that_other_users_may_write_does_not_count(folder: Path) -> None:
    with announced("nats://127.0.0.1:1", os.getpid(), TOKEN):
        folder.chmod(0o777)
        assert running_bus() is None
        folder.chmod(0o700)
        assert running_bus() == "nats://127.0.0.1:1"
    folder.mkdir()
    folder.chmod(0o777)
    with announced("nats://127.0.0.1:1", os.getpid(), TOKEN):
        assert not list(folder.iterdir())


def test_a_symbolic_link_as_the_folder_does_not_count(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    folder.symlink_to(elsewhere)
    with announced("nats://127.0.0.1:1", os.getpid(), TOKEN):
        assert not list(elsewhere.iterdir())
        assert running_bus() is None


def test_with_a_read_only_root_temporary_files_are_in_the_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc"])
    assert temporary_directory() == "/dev/shm"


def test_without_a_runtime_directory_each_user_has_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert runtime_directory().name == f"tas-{os.getuid()}"
