"""A new worker is a class, a function and an entry in the registry, as CONTRIBUTING.md says."""

import json
import sys
from pathlib import Path

import pytest

from bus.buckets import NODES
from bus.buckets import WORKERS as PROCESSES
from bus.connection import Bus
from bus.rights.access import Access
from bus.rights.roles import ROLES, Rights, Role
from cli.workers.registry import WORKERS, WorkerSpec
from tests.contract.test_workers import missing
from tests.integration.bus.closed import Closed
from tests.integration.cli.tas import Tas
from tests.integration.servers import eventually

ROOT = Path(__file__).parents[3]

TOY = """
import asyncio

from bus.buckets import NODES
from bus.errors import BusError
from bus.rights import roles
from cli.workers.registry import WORKERS, WorkerSpec


class Toy:
    name = "toy"

    def __init__(self, bus):
        self._bus = bus
        self._problem = "not yet read"

    def unready(self):
        return self._problem

    async def run(self):
        await self._bus.wait_connected()
        try:
            await self._bus.get(NODES, "node-1.facts")
            self._problem = None
        except BusError as error:
            self._problem = str(error)
        await asyncio.Event().wait()


async def toy(context):
    return Toy(await context.connect("toy"))


WORKERS["toy"] = WorkerSpec(name="toy", help="Play.", port=9040, build=toy, settings=("stale_after",))
roles.WORKERS["toy"] = roles.Rights(reads=(NODES,))

from cli import main

main()
"""


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program `tas` with the entry of the toy; the test knows its role, for the server."""
    rights = Rights(reads=(NODES,), writes=(PROCESSES.subject("toy.*"),))
    monkeypatch.setitem(ROLES, "toy", Role(who="tas run toy", rights=rights, limits=ROLES["evaluate"].limits))
    path = tmp_path / "toy.py"
    path.write_text(TOY)
    return path


async def test_a_toy_worker_has_a_command_settings_a_port_and_rights(tas: Tas, entry: Path, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    closed = Closed(folder)  # after its role is known
    await closed.server.start()
    try:
        tas.command, tas.forks = (sys.executable, str(entry)), False
        tas.environment["PYTHONPATH"] = str(ROOT)
        listed = await tas.process("run", "--help")
        assert "  toy " in listed.out
        shown = await tas.process("run", "toy", "--help")
        assert all(text in " ".join(shown.out.split()) for text in ("Play.", "127.0.0.1:9040", "--stale-after"))
        assert "--breaker" not in shown.out
        access = Access(credentials=closed.user("keeper"))
        async with Bus.connect(closed.server.url, name="keeper", access=access) as keeper:
            await keeper.wait_connected()
            arguments = ("run", "toy", "--bus", closed.server.url, "--health-listen", "127.0.0.1:0")
            async with tas.running(*arguments, "--bus-credentials", str(closed.user("toy"))) as granted:
                await granted.ready()
                assert json.loads((await granted.health("/readyz"))[1])["workers"] == {"toy": None}
                assert await granted.end() == 0
            assert closed.violations() == []
            async with tas.running(*arguments, "--bus-credentials", str(closed.user("node"))) as refused:

                async def is_refused() -> bool:
                    status, text = await refused.health("/readyz")
                    return status == 503 and "tas-node" in text

                await eventually(is_refused)
    finally:
        await closed.server.stop()


def test_what_the_toy_still_lacks_is_named() -> None:
    spec = WorkerSpec(
        name="toy", help="Play.", port=9040, build=WORKERS["labels"].build, needs_kubernetes=True, listens="toy"
    )
    assert list(missing(spec)) == [
        "bus/rights/roles.py: the rights of toy in WORKERS",
        "bus/rights/roles.py: the role of toy in ROLES",
        "docs/reference/commands.md: tas run toy (make docs)",
        "docs/reference/accounts.md: the account of toy, or that it needs none",
        "Procfile: toy",
        "deploy/chart/values.yaml: processes.toy",
        "deploy/chart/values.schema.json: toy",
        "deploy/chart/templates/_helpers.tpl: toy",
        "tas/diagnosis/rights.py: the rights of tas-toy in ACCOUNTS",
        "deploy/rbac/toy.yaml",
    ]
