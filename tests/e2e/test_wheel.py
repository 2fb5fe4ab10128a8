"""The wheel in an environment that has only what a deployed worker needs. No network, no cluster."""

import importlib.metadata
import re
import shutil
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from bus.server import find_binary
from tests.installed import ROOT

from .processes import free_ports, running, until
from .product import environment, is_ready

SECONDS = 120.0
"""Time limit of each command, on a busy machine."""

NOT_SOURCE = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "bench-results", "build", "dist", "tests")


def succeeds(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Built from the source distribution of a copy, so that files of the build do not stay in the project."""
    source = shutil.copytree(ROOT, tmp_path / "source", symlinks=True, ignore=NOT_SOURCE)
    succeeds(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path / "dist", source)
    assert len(list((tmp_path / "dist").glob("*.tar.gz"))) == 1
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    return wheel


@pytest.fixture
def commands(wheel: Path, tmp_path: Path) -> Path:
    """The folder of the commands of an environment with the wheel and the packages of `requirements.txt`."""
    home = tmp_path / "environment"
    venv.create(home, symlinks=True)
    (site,) = home.glob("lib/python3*/site-packages")
    for name in re.findall(r"^([\w.-]+)==", (ROOT / "requirements.txt").read_text(), re.MULTILINE):
        link(name, site)
    # pip fails if the wheel needs a package that is not there.
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", home / "bin" / "python"]
    succeeds(*pip, "install", "--quiet", "--no-index", wheel)
    return home / "bin"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def link(name: str, site: Path) -> None:
    """Links a package of this environment into another one."""
    installed = importlib.metadata.distribution(name)
    for entry in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
        if not (site / entry).is_symlink():  # several packages have a file LICENSE here
            (site / entry).symlink_to(str(installed.locate_file(entry)))


async def test_the_wheel_works_in_an_environment_without_extras(commands: Path, tmp_path: Path) -> None:
    env = environment(tmp_path) | {"PATH": str((await find_binary()).parent)}

    def tas(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command: list[str | Path] = [commands / "tas", *arguments]
        return subprocess.run(
            command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False
        )

    files = tmp_path / "files"
    assert tas("files", "--to", files).returncode == 0
    repository = contents(ROOT / "deploy") | {
        Path("docs", path): content for path, content in contents(ROOT / "docs").items()
    }
    written = contents(files)
    assert written.keys() == repository.keys()
    changed = {path for path, content in written.items() if content != repository[path]}
    assert {path.suffix for path in changed} == {".md"}  # their links lead to the written files
    (crd,) = (ROOT / "deploy" / "crd").iterdir()
    assert tas("crd").stdout == crd.read_text()
    assert tas("policy", "lint", files / "policies").returncode == 0

    for live in ("up", "top", "demo", "get"):
        refused = tas(live)
        assert refused.returncode == 1
        assert refused.stderr == "Error: the package rich is not installed: pip install 'tas-on-nats[try]'\n"

    bus, listen, health = free_ports(3)
    command: list[str | Path] = [
        *(commands / "tas", "run", "all", "--embedded-port", str(bus), "--store", tmp_path / "store"),
        *("--policies", files / "policies"),
        *("--listen", f"127.0.0.1:{listen}", "--health-listen", f"127.0.0.1:{health}"),
    ]
    with running("tas", command, folder=tmp_path, env=env, death_signal=signal.SIGTERM) as process:
        until(lambda: is_ready(process, health), "tas is ready")
        published = tas("publish", "node-1", "health_metric=2", "--bus", f"nats://127.0.0.1:{bus}")
        assert published.returncode == 0, published.stderr
