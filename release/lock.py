"""Writes `requirements.txt`: the exact versions, with hashes, of the packages that a deployed worker needs.

The versions are those of `constraints.txt`. The hashes are those of the wheels for Linux on x86-64 and ARM, for every
supported Python: so the file serves every image. It contains no address of a package index.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
LOCK = ROOT / "requirements.txt"

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
ARCHITECTURES = ("x86_64", "aarch64")
GLIBCS = ("2_28", "2_17")
"""The oldest glibc of the wheels. Each is named, since pip takes `manylinux_2_28` literally, without older ones."""

HEADER = """\
# What a deployed worker needs, for an image: pip install --require-hashes --requirement requirements.txt
# `python release/lock.py` writes this file from constraints.txt.
"""


def dependencies() -> list[str]:
    """The dependencies without extras, as `pyproject.toml` names them."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [str(each) for each in project["dependencies"]]


def chosen(python: str, architecture: str) -> list[dict[str, Any]]:
    """What pip would install for a platform: one entry of its report for each package."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        platforms = [f"--platform=manylinux_{glibc}_{architecture}" for glibc in GLIBCS]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), "--target", folder, "--only-binary=:all:", "--implementation=cp"]
        command += [f"--python-version={python}", *platforms, f"--platform=manylinux2014_{architecture}"]
        command += ["--constraint", str(CONSTRAINTS), *dependencies()]
        subprocess.run(command, check=True)  # noqa: S603 - pip, with the arguments above
        entries: list[dict[str, Any]] = json.loads(report.read_bytes())["install"]
    return entries


def lock_text() -> str:
    """The text of the lock file. Raises CalledProcessError if pip finds no wheel for a platform."""
    hashes: defaultdict[str, set[str]] = defaultdict(set)
    for python in PYTHONS:
        for architecture in ARCHITECTURES:
            for entry in chosen(python, architecture):
                name = re.sub(r"[-_.]+", "-", entry["metadata"]["name"]).lower()
                hashes[f"{name}=={entry['metadata']['version']}"].add(
                    entry["download_info"]["archive_info"]["hashes"]["sha256"]
                )
    lines = [
        " \\\n    ".join([pinned, *(f"--hash=sha256:{digest}" for digest in sorted(digests))])
        for pinned, digests in sorted(hashes.items())
    ]
    return HEADER + "\n".join(lines) + "\n"


if __name__ == "__main__":
    LOCK.write_text(lock_text())
