"""Two extenders share a port: only ready ones answer, and when one is killed the other answers all requests."""

import json
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp

from tests.e2e.processes import free_ports
from tests.integration.replicas import Replica, replica, tas
from tests.integration.servers import Server, eventually

REQUEST = {"Pod": {"metadata": {"name": "p", "namespace": "default"}}, "Nodes": None, "NodeNames": ["a", "b"]}
POLICY = {
    "apiVersion": "telemetry.intel.com/v1alpha1",
    "kind": "TASPolicy",
    "metadata": {"name": "one"},
    "spec": {"strategies": {}},
}


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def logged(replica: Replica, event: str) -> bool:
    return any(line["event"] == event for line in replica.events())


async def answers(port: int) -> bool:
    """Over a new connection, to any of the extenders."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}/scheduler/filter", json=REQUEST) as response,
    ):
        return response.status == 200 and (await response.json())["NodeNames"] == ["a", "b"]


async def test_only_a_ready_extender_answers(server: Server, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    policies = tmp_path / "policies"
    policies.mkdir()
    (policies / "one.json").write_text(json.dumps(POLICY))
    flags = ("--listen", f"127.0.0.1:{port}", "--share-listen", "on")
    async with AsyncExitStack() as stack:
        first = stack.enter_context(replica("first", tas("extender", *flags, bus=server.url), folder=tmp_path))
        await eventually(lambda: logged(first, "workers_started"), every=0.05)
        assert not listens(port)  # without policies it would refuse requests

        command = tas("policies", "--policies", str(policies), bus=server.url)
        stack.enter_context(replica("policies", command, folder=tmp_path))
        await first.ready()
        await eventually(lambda: listens(port), every=0.05)
        second = stack.enter_context(replica("second", tas("extender", *flags, bus=server.url), folder=tmp_path))
        await second.ready()
        await eventually(lambda: logged(second, "extender_listening"), every=0.05)
        for victim in (first, second):
            for _ in range(20):
                assert await answers(port)
            victim.kill()
            for _ in range(20):
                assert await answers(port)
            victim.start()
            await victim.ready()
            await eventually(
                lambda victim=victim: sum(line["event"] == "extender_listening" for line in victim.events()) == 2,  # type: ignore[misc]
                every=0.05,
            )


async def test_a_port_is_shared_only_with_share_listen(server: Server, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    policies = tmp_path / "policies"
    policies.mkdir()
    listen = ("--listen", f"127.0.0.1:{port}")
    async with AsyncExitStack() as stack:
        command = tas("policies", "--policies", str(policies), bus=server.url)
        stack.enter_context(replica("policies", command, folder=tmp_path))
        first = stack.enter_context(replica("first", tas("extender", *listen, bus=server.url), folder=tmp_path))
        await eventually(lambda: logged(first, "extender_listening"), every=0.05)
        for share in ("on", "off"):
            command = tas("extender", *listen, "--share-listen", share, bus=server.url)
            second = stack.enter_context(replica(f"second-{share}", command, folder=tmp_path))
            await eventually(lambda second=second: second.ended, every=0.05)  # type: ignore[misc]
            assert "the port is in use" in second.log.read_text()
