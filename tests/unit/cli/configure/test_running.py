"""Which files a running scheduler has not read: with a real process that has the name and the flags of one."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from cli.configure.verify import files_not_read


@contextmanager
def scheduler(*flags: str, name: str = "kube-scheduler") -> Iterator[float]:
    """A process that ends with its input; gives when it began."""
    words = [name, "-c", "import sys; sys.stdin.read()", *flags]
    with subprocess.Popen(words, executable=sys.executable, stdin=subprocess.PIPE) as process:
        yield psutil.Process(process.pid).create_time()


def written(path: Path, at: float) -> Path:
    path.write_text("")
    os.utime(path, (at, at))
    return path


@pytest.mark.parametrize("form", [("--config={}",), ("-config={}",), ("--config", "{}")])
def test_a_file_that_is_newer_than_a_scheduler_with_this_configuration_is_named(
    tmp_path: Path, form: tuple[str, ...]
) -> None:
    config, authorities = tmp_path / "config.yaml", tmp_path / "ca.crt"
    with scheduler(*(word.format(config) for word in form)) as began:
        written(config, began - 60)
        assert files_not_read(config, [written(authorities, began - 60), tmp_path / "missing"]) == []
        (found,) = files_not_read(config, [written(authorities, began + 60)])
        assert found.startswith(
            f"{authorities}: is newer than the running scheduler, which reads it only when it starts"
        )
        assert len(files_not_read(written(config, began + 60), [authorities])) == 2


def test_a_process_of_another_name_or_with_another_configuration_says_nothing(tmp_path: Path) -> None:
    config = written(tmp_path / "config.yaml", time.time() + 60)
    with scheduler(f"--config={config}", name="scheduler"), scheduler(f"--config={config}.other"), scheduler():
        assert files_not_read(config, []) == []
    assert files_not_read(config, []) == []
