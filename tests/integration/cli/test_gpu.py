"""`tas run gpu` as a process, with the flags of the original GPU Aware Scheduling."""

from pathlib import Path

import aiohttp

from bus.connection import Bus
from tests.e2e.processes import free_ports
from tests.integration.cli.tas import Tas
from tests.integration.servers import Server
from tests.integration.workers.gpu.gpu import gpus


async def test_it_serves_the_paths_of_the_original_at_its_port_and_binds(
    tas: Tas, server: Server, bus: Bus, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    flags = ("--kubeConfig", str(tmp_path / "kubeconfig"), "-port", str(port), "--enableAllowlist", "-qps", "50")
    url = f"http://127.0.0.1:{port}/scheduler"
    async with gpus(server, bus, tmp_path) as world, aiohttp.ClientSession() as session:
        await world.add_nodes(a="N(0,1) i2 t2")
        await world.complete()
        pod = world.add_pod("p", "A{i1 t1} allow=card1")
        command = ("run", "gpu", "--bus", server.url, "--health-listen", "127.0.0.1:0", *flags)
        async with tas.running(*command, LOG_LEVEL="DEBUG") as running:
            await running.ready()
            asked = {"Pod": pod, "Nodes": None, "NodeNames": ["a", "b"]}
            async with session.post(f"{url}/filter", json=asked) as answer:
                assert (await answer.json())["NodeNames"] == ["a"]
            binding = {"PodName": "p", "PodNamespace": "default", "PodUID": pod["metadata"]["uid"], "Node": "a"}
            async with session.post(f"{url}/bind", json=binding) as answer:
                assert await answer.json() == {"Error": ""}
            async with session.get(f"{url}/filter") as answer:
                assert answer.status == 405
            await running.logged("request_answered", status=405)  # comes after the answer, and the process is killed
        found = world.pod("p")["metadata"]["annotations"]
        assert (found["gas-container-cards"], found["gas-container-tiles"]) == ("card1", "card1:gt0")
        (unused,) = running.events("flags_unused")
        assert unused["flags"] == ["--qps"]
        filtered, bound, refused = running.events("request_answered")
        assert (filtered["verb"], filtered["pod"], filtered["rejected"]) == ("filter", "default/p", ["b"])
        assert (bound["verb"], bound["pod"], bound["node"], bound["passed"]) == ("bind", "default/p", "a", 1)
        assert refused["status"] == 405
