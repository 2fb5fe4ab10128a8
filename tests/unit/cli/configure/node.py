"""A control plane node for the tests of `tas configure`: its files, below a folder."""

import stat
from collections.abc import Mapping
from pathlib import Path

from click.testing import CliRunner, Result

from cli import cli
from tests.certificates import Authority, Pair
from tests.unit.tas.configuring.samples import KUBEADM

AUTHORITY = Authority("tas")
CLIENT = AUTHORITY.client("system:kube-scheduler")


class Node:
    """The files of a control plane node, below a folder of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = folder / "manifests" / "kube-scheduler.yaml"
        self.config = folder / "etc" / "scheduler-config.yaml"
        self.certs = folder / "certs"
        for made in (self.manifest.parent, self.config.parent, folder / "pki", folder / "backups"):
            made.mkdir()
        self.manifest.write_text(KUBEADM)
        self.manifest.chmod(0o600)
        self.pki(CLIENT)

    def pki(self, pair: Pair, authority: bytes = AUTHORITY.certificate) -> None:
        for name, content in (("c.crt", pair.certificate), ("c.key", pair.key), ("ca.crt", authority)):
            (self.folder / "pki" / name).write_bytes(content)

    @property
    def flags(self) -> dict[str, str]:
        return {
            "-m": str(self.manifest),
            "-d": str(self.config.parent),
            "-b": str(self.folder / "backups"),
            "-cert": str(self.folder / "pki" / "c.crt"),
            "-key": str(self.folder / "pki" / "c.key"),
            "--cacert": str(self.folder / "pki" / "ca.crt"),
            "-cert-dir": str(self.certs),
        }

    def configure(self, *more: str) -> Result:
        return tas("configure", *(word for pair in self.flags.items() for word in pair), *more)

    def verify(self, *more: str, files_only: bool = True) -> Result:
        flags = [word for name, value in self.flags.items() if name != "-b" for word in (name, value)]
        return tas("configure", "verify", *flags, *(["--files-only"] if files_only else []), *more)

    def revert(self, *more: str) -> Result:
        return tas("configure", "revert", "-b", self.flags["-b"], *more)

    def state(self) -> Mapping[str, tuple[bytes, int]]:
        """Each file below the folder, its content and mode."""
        return {
            str(path): (path.read_bytes() if path.is_file() else b"", path.lstat().st_mode)
            for path in self.folder.rglob("*")
        }

    def files(self) -> Mapping[str, tuple[bytes, int]]:
        """The state of what the scheduler uses."""
        used = (str(self.manifest.parent), str(self.config.parent), str(self.certs) + "/")
        return {path: found for path, found in self.state().items() if path.startswith(used)}

    def backups(self) -> list[Path]:
        return sorted((self.folder / "backups").iterdir())


def tas(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="tas", standalone_mode=False)


def code(result: Result) -> int:
    if isinstance(result.exception, Exception):
        assert hasattr(result.exception, "exit_code"), result.exception
        return int(result.exception.exit_code)
    return int(result.return_value)


def message(result: Result) -> str:
    return str(result.exception)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
