"""`tas run` with extensions that are installed as separate packages."""

import asyncio
import json
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.installed import EXAMPLES, ROOT, install, write_package
from tests.integration.cli.tas import FREE, Running, Tas
from tests.integration.servers import eventually

LISTEN = (*FREE, "--log-format", "json")
POD = {"metadata": {"name": "p", "namespace": "default", "labels": {"example.com/needs-mbps": "50"}}}
NODES = ["node-1", "node-2", "node-3"]


@asynccontextmanager
async def everything(tas: Tas, site: Path, folder: Path, *flags: str) -> AsyncIterator[Running]:
    """`tas run all`, ready, with the packages of `site`."""
    policies = folder / "policies"
    policies.mkdir()
    command = ("run", "all", "--policies", str(policies), *LISTEN, *flags)
    async with tas.running(*command, PYTHONPATH=str(site), LOG_LEVEL="trace") as running:
        await running.ready()
        yield running


async def ask(running: Running, path: str, body: object = None) -> tuple[int, Any]:
    """The status and the body of the extender's answer at `path`."""
    address = "/".join((await running.logged("extender_listening"))["url"].split("/")[:3])
    body = {"Pod": POD, "Nodes": None, "NodeNames": NODES} if body is None else body
    async with aiohttp.ClientSession() as session, session.post(address + path, json=body) as reply:
        return reply.status, await reply.json()


async def mounted(running: Running) -> dict[str, Any]:
    """The extensions that the health port reports, by name."""
    _, text = await running.health("/extensions")
    return {each["name"]: each for each in json.loads(text)}


async def test_the_installed_example_answers_from_published_samples(tas: Tas, tmp_path: Path) -> None:
    site = install(EXAMPLES / "bandwidth", tmp_path / "installed")
    async with everything(tas, site, tmp_path) as running:
        for node, free in (("node-1", 40), ("node-2", 200), ("node-3", 100)):
            done = await tas(
                "publish", node, f"net_free_mbps={free}", "--bus", (await running.logged("bus_started"))["bus"]
            )
            assert done.code == 0, done.err

        async def rejects_node_1() -> bool:
            status, filtered = await ask(running, "/bandwidth/filter")
            assert status == 200
            passed: list[str] = filtered["NodeNames"]
            return passed == ["node-2", "node-3"]

        await eventually(rejects_node_1)
        _, filtered = await ask(running, "/bandwidth/filter")
        assert filtered["FailedAndUnresolvableNodes"] == {"node-1": "Too little net_free_mbps"}
        _, scores = await ask(running, "/bandwidth/prioritize")
        assert {host["Host"]: host["Score"] for host in scores} == {"node-1": 10, "node-2": 2, "node-3": 5}
        victims = {"Pods": [{"UID": "u"}], "NumPDBViolations": 0}
        preemption = {"Pod": POD, "NodeNameToMetaVictims": dict.fromkeys(NODES, victims)}
        _, offered = await ask(running, "/bandwidth/preempt", preemption)
        assert offered == {"NodeNameToMetaVictims": {"node-2": victims, "node-3": victims}}
        assert (await ask(running, "/scheduler/filter"))[1]["NodeNames"] == NODES  # telemetry has no opinion

        reported = (await mounted(running))["bandwidth"]
        assert (reported["path"], reported["problem"], reported["package"]) == (
            "/bandwidth",
            None,
            "tas-bandwidth 0.1.0",
        )
        assert sorted(reported["verbs"]) == ["filter", "preempt", "prioritize"]
        line = await running.logged("request_answered", path="/bandwidth")
        assert (line["logger"], line["verb"], line["pod"]) == ("extender", "filter", "default/p")
        line = await running.logged("extension_mounted")
        assert (line["extension"], line["package"]) == ("bandwidth", "tas-bandwidth 0.1.0")


def test_no_example_is_a_dependency_of_the_project() -> None:
    names = {tomllib.loads(path.read_text())["project"]["name"] for path in EXAMPLES.glob("*/pyproject.toml")}

    assert "tas-bandwidth" in names
    needed = " ".join(distribution("tas-on-nats").requires or ()) + (ROOT / "constraints.txt").read_text()
    assert not [name for name in names if name in needed]


def test_the_documented_example_is_the_one_that_runs() -> None:
    code = (EXAMPLES / "bandwidth" / "tas_bandwidth.py").read_text()
    page = (ROOT / "docs" / "how-to" / "extensions.md").read_text()

    assert len(code.splitlines()) <= 30
    assert 'bandwidth = "tas_bandwidth:Bandwidth"' in page
    assert 'bandwidth = "tas_bandwidth:Bandwidth"' in (EXAMPLES / "bandwidth" / "pyproject.toml").read_text()


SEVERAL = """
    import asyncio

    class Good:
        def __init__(self, nodes):
            pass

        def score(self, pod, candidates, now):
            return dict.fromkeys(candidates, 4)

    class Binds(Good):
        def bind(self, binding, now):
            return None if binding.node == "node-1" else "no card is free"

    class Spins(Good):
        def filter(self, pod, candidates, now):
            while True:
                pass

    class Stubborn(Good):
        async def filter(self, pod, candidates, now):
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    pass

    def broken(nodes):
        import a_package_that_is_not_there
"""


async def test_each_extension_has_its_own_path_and_one_that_cannot_be_mounted_is_reported(
    tas: Tas, tmp_path: Path
) -> None:
    site = write_package(
        tmp_path / "site", SEVERAL, good="own:Good", gpu="own:Binds", away="own:broken", version="own:Good"
    )
    async with everything(tas, site, tmp_path) as running:
        assert await ask(running, "/good/prioritize") == (200, [{"Host": node, "Score": 4} for node in NODES])
        assert (await ask(running, "/scheduler/filter"))[0] == 200
        status, answer = await ask(running, "/gpu/prioritize")
        assert (status, answer["error"]) == (
            503,
            "extension gpu: its hook bind writes to the cluster, and so it must run in a separate process: "
            "tas run extender --only gpu",
        )
        status, answer = await ask(running, "/away/filter")
        assert status == 503
        assert "extension away: own:broken cannot be loaded: ModuleNotFoundError" in answer["error"]
        assert (await ask(running, "/version/prioritize"))[0] == 404

        reported = await mounted(running)
        assert list(reported) == ["telemetry", "away", "good", "gpu", "version"]
        assert [name for name, each in reported.items() if each["problem"]] == ["away", "gpu", "version"]
        _, metrics = await running.health("/metrics")
        assert 'tas_extension_mounted{extension="good"} 1.0' in metrics
        assert 'tas_extension_mounted{extension="gpu"} 0.0' in metrics
        assert await running.end() == 0
        assert {line["extension"] for line in running.events("extension_not_mounted")} == {"away", "gpu", "version"}
        (failed,) = running.events("extension_load_failed")
        assert "a_package_that_is_not_there" in failed["exception"]


async def test_facts_c30_an_extension_that_binds_is_served_by_a_separate_process(tas: Tas, tmp_path: Path) -> None:
    site = write_package(tmp_path / "site", SEVERAL, good="own:Good", gpu="own:Binds", away="own:broken")
    async with everything(tas, site, tmp_path) as running:
        bus = (await running.logged("bus_started"))["bus"]
        command = ("run", "extender", "--only", "gpu", "--bus", bus, *LISTEN)
        async with tas.running(*command, PYTHONPATH=str(site)) as alone:
            await alone.ready()
            binding = {"PodName": "p", "PodNamespace": "n", "PodUID": "u", "Node": "node-1"}
            assert await ask(alone, "/gpu/bind", binding) == (200, {"Error": ""})
            assert await ask(alone, "/gpu/bind", binding | {"Node": "x"}) == (200, {"Error": "no card is free"})
            assert (await ask(alone, "/gpu/prioritize"))[0] == 200
            for path in ("/scheduler/filter", "/good/prioritize"):
                assert (await ask(alone, path))[0] == 404
            assert list(await mounted(alone)) == ["gpu"]
            assert await alone.end() == 0
            assert not alone.events("extension_load_failed")  # the others were not loaded


async def test_telemetry_can_be_served_without_extensions(tas: Tas, tmp_path: Path) -> None:
    site = write_package(tmp_path / "site", SEVERAL, good="own:Good", away="own:broken")
    async with everything(tas, site, tmp_path) as running:
        bus = (await running.logged("bus_started"))["bus"]
        command = ("run", "extender", "--only", "telemetry", "--bus", bus, *LISTEN)
        async with tas.running(*command, PYTHONPATH=str(site)) as alone:
            await alone.ready()
            assert (await ask(alone, "/scheduler/filter"))[0] == 200
            assert (await ask(alone, "/good/prioritize"))[0] == 404
            assert list(await mounted(alone)) == ["telemetry"]


@pytest.mark.parametrize(
    ("only", "message"),
    [
        ("no-such", "extension 'no-such' is not installed. Installed: telemetry, away, good"),
        ("away", "extension away: own:broken cannot be loaded: ModuleNotFoundError"),
    ],
)
async def test_an_extender_of_only_one_extension_fails_if_this_cannot_be_mounted(
    tas: Tas, tmp_path: Path, only: str, message: str
) -> None:
    site = write_package(tmp_path / "site", SEVERAL, good="own:Good", away="own:broken")
    done = await tas("run", "extender", "--only", only, "--bus", "nats://127.0.0.1:1", *LISTEN, PYTHONPATH=str(site))

    assert done.code == 2
    (failed,) = [json.loads(line) for line in done.err.splitlines() if '"start_failed"' in line]
    assert message in failed["error"]


async def test_an_extension_in_an_endless_loop_is_named_in_the_log_and_probes_fail(tas: Tas, tmp_path: Path) -> None:
    site = write_package(tmp_path / "site", SEVERAL, spins="own:Spins")
    async with everything(tas, site, tmp_path) as running:
        assert (await running.health("/healthz"))[0] == 200
        asked = asyncio.create_task(ask(running, "/spins/filter"))
        line = await running.logged("event_loop_stalled", task="extension spins: filter")  # a busy machine stalls too
        assert line["level"] == "error"
        assert line["at"].startswith("own.py:")
        assert line["at"].endswith(" in filter")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):  # the time limit of a kubelet for a probe
                await running.health("/healthz")
        asked.cancel()
        await asyncio.wait([asked])


async def test_an_extension_that_ignores_cancellation_blocks_neither_answers_nor_the_end(
    tas: Tas, tmp_path: Path
) -> None:
    site = write_package(tmp_path / "site", SEVERAL, stubborn="own:Stubborn")
    async with everything(tas, site, tmp_path, "--extension-timeout", "100ms") as running:
        status, answer = await ask(running, "/stubborn/filter")
        assert (status, answer["error"]) == (504, "extension stubborn filter: no answer within 0.1 s")
        assert (await ask(running, "/scheduler/filter"))[0] == 200

        assert await running.end() == 0
        assert running.events("tasks_not_ended")[0]["tasks"] == ["extension stubborn: filter"]
    assert tas.left_behind() == []
