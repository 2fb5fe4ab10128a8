"""The steps of `deploy/Containerfile` in a clean environment: there is no registry of images to build one from."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.installed import ROOT

from .product import environment
from .test_wheel import NOT_SOURCE

FILE = (ROOT / "deploy" / "Containerfile").read_text()
SECONDS = 600.0
"""Time limit of each step: pip installs and compiles all packages, on a busy machine."""


def runs(stage: str) -> list[str]:
    """The commands of the RUN steps of a stage."""
    return re.findall(r"^RUN (.+)$", stage, re.MULTILINE)


def stages() -> list[str]:
    return re.split(r"^(?=FROM )", FILE, flags=re.MULTILINE)[1:]


def test_the_last_stage_runs_as_nobody_and_has_no_pip() -> None:
    build, image = stages()
    assert re.search(r"^USER 65532:65532$", image, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["tas"\]$', image, re.MULTILINE)
    assert "--require-hashes" in build
    assert runs(image) == ["pip uninstall --yes pip"]
    assert not re.search(r"curl|wget|apt|http", "\n".join(runs(FILE)))


@pytest.mark.nightly
def test_its_steps_make_a_command_that_works(tmp_path: Path) -> None:
    """With another folder in place of /opt/tas, and pip of this environment."""
    build, _ = stages()
    source = shutil.copytree(ROOT, tmp_path / "src", symlinks=True, ignore=NOT_SOURCE)
    home = tmp_path / "opt"
    env = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    for command in runs(build):
        program, *arguments = shlex.split(command.replace("/opt/tas", str(home)))
        python = [sys.executable] if program == "python" else [sys.executable, "-m", program]
        done = subprocess.run(
            [*python, *arguments], cwd=source, env=env, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        output = done.stdout + done.stderr
        if done.returncode != 0 and re.search(r"Could not find a version|No matching distribution|connection", output):
            pytest.skip(f"no index of packages: {output[-200:]}")
        assert done.returncode == 0, (command, output)
    shutil.rmtree(source)
    done = subprocess.run(
        [home / "bin" / "tas", "--version"], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(home.glob("lib/python*/site-packages/pip"))
    # What pip itself writes: each file has been compiled, so a read-only root costs no time at the start.
    modules = next(home.glob("lib/python*/site-packages/tas"))
    assert list(modules.glob("__pycache__/*.pyc"))
