"""Packages for a child process, in a folder for its PYTHONPATH."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def install(project: Path, folder: Path) -> Path:
    """Installs a project with pip, without network, into a folder, and returns that folder."""
    source = folder / "source"
    shutil.copytree(project, source)  # so that files of the build do not stay in the project
    site = folder / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--target", str(site), str(source)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return site


def write_package(folder: Path, code: str, *, group: str = "tas.extenders", **targets: str) -> Path:
    """Installs a package with the module `own` and these entry points into a folder, and returns the folder."""
    info = folder / "own-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points(targets, group))
    (folder / "own.py").write_text(dedent(code))
    return folder


def entry_points(targets: Mapping[str, str], group: str = "tas.extenders") -> str:
    """The text of `entry_points.txt`."""
    return "\n".join([f"[{group}]", *(f"{name} = {target}" for name, target in targets.items())]) + "\n"
