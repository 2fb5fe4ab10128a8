"""The archive of `tas support`: what is in it, and what is taken out of it."""

import asyncio
import dataclasses
import gzip
import io
import os
import platform
import re
import stat
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import aiohttp
import click
import msgspec

from bus.connection import Bus
from bus.errors import BusError
from cli.as_json import indented
from cli.doctor.bus_facts import BusRead
from cli.doctor.examination import examined
from cli.doctor.options import Options
from cli.doctor.probes import REQUEST_SECONDS
from cli.doctor.requests import requested
from cli.output import echo, echo_line
from cli.status.status import overview_of
from tas.diagnosis.finding import Missing
from tas.diagnosis.redaction import Redactor
from tas.policy.manifest import policy_spec
from workers.http.body import whole_body
from workers.process.version import product_version
from workers.registry import with_commands
from workers.settings import Settings, flag

MAX_FILE_BYTES = 2 << 20
"""The most bytes of one file of the archive. Of a log the end counts, of all else the beginning."""

MAX_FILES = 64
MAX_SECRET_BYTES = 64 << 10
LOOPBACK = "127.0.0.1"

SECRET_FILES = ("bus_credentials", "bus_token", "bus_key", "remote_write_token", "remote_write_key", "key")
"""The settings with files of which each line is a secret."""

OF_SECRETS = ("TOKEN", "PASSWORD", "PASSWD", "SECRET", "KEY", "CREDENTIAL")
"""Words in the names of variables whose values are secrets."""


_USER = re.compile(r"//([^/\s]*)@")


class Collected(NamedTuple):
    """The files of the archive by name, and what could not be had, each with the reason."""

    files: dict[str, bytes]
    lacking: dict[str, str]


async def write_archive(
    settings: Settings, read: BusRead, bus: Bus | None, path: Path, logs: Sequence[Path], *, simulated: bool = False
) -> int:
    """Writes the archive, and prints what is in it; returns the exit code. Raises ClickException.

    `simulated`: the cluster of the bus is that of `tas up`.
    """
    collected = await _collected(settings, read, bus, logs, simulated=simulated)
    redactor = Redactor(await asyncio.to_thread(lambda: list(_secrets(settings, os.environ))))
    files = {
        redactor.redacted(name): redactor.redacted(data.decode(errors="replace")).encode(errors="replace")
        for name, data in collected.files.items()
    }
    lacking = {name: redactor.redacted(reason) for name, reason in collected.lacking.items()}
    lacking |= dict.fromkeys(list(files)[MAX_FILES - 1 :], f"an archive has at most {MAX_FILES} files")
    files = dict(list(files.items())[: MAX_FILES - 1])
    for name, data in files.items():
        if len(data) > MAX_FILE_BYTES:
            lacking[name] = f"all but the first {MAX_FILE_BYTES:,} of its {len(data):,} bytes"
    files = {name: data[:MAX_FILE_BYTES] for name, data in files.items()}
    files["lacking.json"] = _json(lacking)[:MAX_FILE_BYTES]
    try:
        await asyncio.to_thread(_write, path, files)
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror or error}") from error
    echo(f"{path}: read it before you send it")
    for name, data in sorted(files.items()):
        echo_line(f"  {name:24} {len(data):>9,} bytes")
    for name, reason in sorted(lacking.items()):
        echo_line(f"  without {name}: {reason}")
    return 0


async def _collected(
    settings: Settings, read: BusRead, bus: Bus | None, logs: Sequence[Path], *, simulated: bool
) -> Collected:
    files = {"about.json": _json(_about()), "settings.json": _json(_settings(settings))}
    lacking: dict[str, str] = {}
    files["status.json"] = _json(msgspec.to_builtins(overview_of(settings, read, "")))
    try:
        findings = await examined(settings, Options(), read, bus, simulated=simulated)
        files["doctor.json"] = _json([msgspec.to_builtins(each) for each in findings])
    except (BusError, click.ClickException) as error:
        lacking["doctor.json"] = str(error)
    if isinstance(read.stored, Missing):
        lacking |= dict.fromkeys(("sources.json", "policies.json"), read.stored.reason)
    else:
        files["sources.json"] = _json({name: msgspec.to_builtins(each) for name, each in read.stored.sources.items()})
        files["policies.json"] = _json(
            [
                {
                    "policy": str(each.policy.key),
                    "problems": [str(problem) for problem in each.problems],
                    "spec": policy_spec(each.policy),
                }
                for each in read.stored.policies
            ]
        )
    await _add_health(settings, files, lacking)
    for number, log in enumerate(logs, start=1):
        try:
            files[f"logs/{number}-{log.name}"] = await asyncio.to_thread(_end_of, log)
        except OSError as error:
            lacking[f"logs/{number}"] = f"{log}: {error.strerror or error}"
    if settings.kubeconfig is not None:
        from cli.support_logs import logs_of_pods  # here: the client of the API server is much to load

        of_pods = await logs_of_pods(settings.kubeconfig if isinstance(settings.kubeconfig, Path) else None)
        files |= of_pods.files
        lacking |= of_pods.lacking
    elif not logs:
        lacking["logs"] = f"give {flag('kubeconfig')} FILE of a cluster, or {flag('log')} FILE for each process"
    return Collected(files, lacking)


def _about() -> dict[str, object]:
    return {
        "version": product_version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _settings(settings: Settings) -> dict[str, str]:
    """The settings of this command, and the variables of the environment: those of other processes are not known."""
    shown = {field.name: str(getattr(settings, field.name)) for field in dataclasses.fields(settings)}
    return shown | {name: value for name, value in sorted(os.environ.items()) if name.startswith("TAS_")}


async def _add_health(settings: Settings, files: dict[str, bytes], lacking: dict[str, str]) -> None:
    """What processes on this machine say at their health ports, by default and by `--extender-health`."""
    addresses = {str(settings.extender_health.near): "extender-health"}
    for spec in with_commands():
        if spec.port is not None:
            addresses.setdefault(f"{LOOPBACK}:{spec.port}", spec.name)
    reached = 0
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:

        async def fetched(address: str, path: str) -> bytes:
            async with session.get(f"http://{address}{path}", raise_for_status=path != "/readyz") as response:
                return await whole_body(response, max_bytes=8 * MAX_FILE_BYTES)

        for address, name in addresses.items():
            for path, file in (("/readyz", "readyz.json"), ("/metrics", "metrics.txt"), ("/version", "version.json")):
                found = await requested(fetched(address, path))
                if isinstance(found, Missing):
                    break
                reached += path == "/metrics"
                files[f"{name}/{file}"] = found
    if not reached:
        lacking["metrics"] = (
            "no health port answers on this machine: give --extender-health HOST:PORT, or run it in a pod"
        )


def _secrets(settings: Settings, environment: Mapping[str, str]) -> Iterator[str]:
    """Each line of the files with secrets, and the values of variables with such names. Blocks."""
    for name in SECRET_FILES:
        path = getattr(settings, name)
        if isinstance(path, Path):
            yield from _lines_of(path)
    for name, value in environment.items():
        yield from (each for user in _USER.findall(value) for each in (user, *user.split(":", 1)))
        if any(word in name.upper() for word in OF_SECRETS):
            yield value
            yield from _lines_of(Path(value))
    yield from (each for user in _USER.findall(settings.bus or "") for each in (user, *user.split(":", 1)))


def _lines_of(path: Path) -> Iterator[str]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return
        with path.open("rb") as file:
            text = file.read(MAX_SECRET_BYTES).decode(errors="replace")
    except (OSError, ValueError):  # a value that is no path
        return
    yield from (line.strip() for line in text.splitlines() if not line.startswith("-----"))


def _end_of(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - MAX_FILE_BYTES // 2))
        return file.read(MAX_FILE_BYTES // 2)


def _write(path: Path, files: Mapping[str, bytes]) -> None:
    """Writes a new archive that only this user can read, all of it or none. Raises OSError, also if the file exists."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(f"tas-support/{name}")
            member.size, member.mode = len(data), 0o600
            archive.addfile(member, io.BytesIO(data))
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))  # nobody else has this name from now on
    beside: str | None = None
    try:
        # Beside it: half of an archive, as on a full disk, would look like a whole one.
        descriptor, beside = tempfile.mkstemp(prefix="tas-support.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(buffer.getvalue())
            file.flush()
            os.fsync(descriptor)
        Path(beside).replace(path)
    except BaseException:
        for each in (path, *([] if beside is None else [Path(beside)])):
            each.unlink(missing_ok=True)
        raise


def _json(value: object) -> bytes:
    return indented(value) + b"\n"
