"""A new worker is a folder and its line in `workers/names.py`, as CONTRIBUTING.md says."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import workers
from bus.connection import Bus
from bus.rights.access import Access
from bus.rights.roles import of_process
from tests.contract.test_workers import missing
from tests.integration.bus.closed import Closed
from tests.integration.cli.tas import Tas
from tests.integration.servers import eventually
from workers.names import NAMES
from workers.registry import WORKERS
from workers.roles import ROLES

ROOT = Path(__file__).parents[3]

SPEC = '''
"""The worker that plays."""

from bus.buckets import NODES
from bus.rights.roles import Rights
from workers.spec import WorkerSpec


async def _build(context):
    from workers.toy.worker import Toy

    return Toy(await context.bus())


SPEC = WorkerSpec(
    name="toy",
    help="Play.",
    port=9040,
    build=_build,
    rights=Rights(reads=(NODES,)),
    settings=("stale_after",),
)
'''

WORKER = """
import asyncio

from bus.buckets import NODES
from bus.errors import BusError


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
"""

TAS = """
import sys

import workers
from workers.names import NAMES

workers.__path__.append(sys.argv.pop(1))
NAMES.append("toy")

from cli import main

main()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the folder of the toy is; this process knows it, too."""
    toy = tmp_path / "workers" / "toy"
    toy.mkdir(parents=True)
    (toy / "__init__.py").write_text(SPEC)
    (toy / "worker.py").write_text(WORKER)
    (tmp_path / "entry.py").write_text(TAS)
    monkeypatch.setattr(workers, "__path__", [*workers.__path__, str(toy.parent)])
    monkeypatch.setattr("workers.registry.NAMES", [*NAMES, "toy"])
    monkeypatch.delitem(sys.modules, "workers.toy", raising=False)
    monkeypatch.setitem(ROLES, "toy", of_process("toy", {"toy": WORKERS["toy"].rights}))
    return toy.parent


async def test_a_toy_worker_has_a_command_settings_a_port_and_rights(tas: Tas, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    closed = Closed(tmp_path / "closed")  # after its role is known
    await closed.server.start()
    try:
        tas.command, tas.forks = (sys.executable, str(tmp_path / "entry.py"), str(folder)), False
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


def test_what_the_toy_still_lacks_is_named(folder: Path) -> None:
    assert folder.exists()
    spec = replace(WORKERS["toy"], needs_kubernetes=True, listens="toy")
    assert list(missing(spec)) == [
        "tas/diagnosis/processes.py: what is lost without toy",
        "docs/reference/commands.md: tas run toy (make docs)",
        "docs/reference/accounts.md: the account of toy, or that it needs none",
        "Procfile: toy",
        "deploy/chart/values.yaml: processes.toy",
        "deploy/chart/values.schema.json: toy",
        "workers/toy/__init__.py: the rights of tas-toy in account",
        "deploy/rbac/toy.yaml",
        "deploy/chart/files/rbac/toy.yaml",
    ]
