"""The scheduler that runs on this machine: since when, and which files it has not read."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from tas.configuring.restart import not_read

NAME = "kube-scheduler"


def files_not_read(config: Path, others: Iterable[Path]) -> list[str]:
    """Which of these files a running scheduler with this configuration has not read, and since when it runs.

    Nothing without such a process: within a container the processes of the machine are not visible.
    """
    started = min(_started_with(str(config)), default=None)
    if started is None:
        return []
    changed = {str(path): path.stat().st_mtime for path in (config, *others) if path.exists()}
    since = datetime.fromtimestamp(started, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return [
        f"{path}: is newer than the running scheduler, which reads it only when it starts, the last time at {since}: "
        "move the manifest out of its folder, and back after a minute"
        for path in not_read(started, changed)
    ]


def _started_with(config: str) -> Iterator[float]:
    """When each kube-scheduler with this configuration began, in seconds since 1970."""
    import psutil  # here: only this question needs it

    for process in psutil.process_iter(["cmdline", "create_time"]):
        words: list[str] = process.info["cmdline"] or [""]
        pairs = [*(word.partition("=")[::2] for word in words), *pairwise(words)]
        flags = {(name.lstrip("-"), value) for name, value in pairs if name.startswith("-")}
        if words[0].rpartition("/")[2] == NAME and ("config", config) in flags and process.info["create_time"]:
            yield process.info["create_time"]
