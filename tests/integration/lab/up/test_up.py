"""`tas up`: its display, its policies, and its end."""

import asyncio
import json
import os
import pty
import re
import signal
import socket
import sys
import tarfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from structlog.testing import capture_logs

from bus.connection import Bus
from bus.errors import RefusedError
from lab.sandbox.resources import TASPOLICIES
from lab.up.applied import AppliedPolicies
from tests.e2e.processes import free_ports
from tests.integration.cli.tas import COMMAND, Command, Tas, demo_policy, policy_folder, replace_file
from tests.integration.servers import eventually
from tests.sandbox import Sandbox

DOCS = Path(__file__).parents[4] / "docs"

POLICY = demo_policy("""\
    deschedule:
      rules: [{metricname: health_metric, operator: Equals, target: 2}]
    dontschedule:
      rules: [{metricname: health_metric, operator: Equals, target: 2}]
""")


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    return policy_folder(tmp_path, POLICY)


class Screen:
    """The output of `tas up` without a terminal."""

    def __init__(self, process: Command) -> None:
        self.process = process
        self.text = ""
        self.everything = ""
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.text += line.decode()
            self.everything += line.decode()

    async def ended(self) -> int:
        """The exit code, once all output is read."""
        assert self.process.stderr is not None
        async with asyncio.timeout(120):
            await self._reading
            await self.process.stderr.read()
            return await self.process.wait()

    async def shows(self, *words: str) -> None:
        """Waits for these texts, one after the other, and removes the output up to the last one."""
        for each in words:
            await eventually(lambda each=each: each in self.text)  # type: ignore[misc]
            self.text = self.text.partition(each)[2]


async def test_nodes_get_labels_pods_move_an_edit_takes_effect_and_no_file_remains(tas: Tas, policies: Path) -> None:
    listen, health = free_ports(2)
    process = await tas.start(
        "up", "--policies", str(policies), "--listen", f"127.0.0.1:{listen}", "--health-listen", f"127.0.0.1:{health}"
    )
    try:
        screen = Screen(process)
        await screen.shows("node node-1: violates", "(demo-policy)")
        ports = ("--listen", f"127.0.0.1:{listen}", "--extender-health", f"127.0.0.1:{health}")

        async def is_healthy() -> bool:
            """A trial has no cluster to check; at first its processes are not ready."""
            return (await tas("doctor", *ports)).code == 0

        async def is_healthy_in_an_archive() -> bool:
            archive = policies.parent / "report.tar.gz"
            archive.unlink(missing_ok=True)
            assert (await tas("support", "--output", str(archive), *ports)).code == 0
            with tarfile.open(archive) as files:
                file = files.extractfile("tas-support/doctor.json")
                assert file is not None
                return {each["severity"] for each in json.load(file)} <= {"ok", "hint"}

        await eventually(is_healthy)
        await eventually(is_healthy_in_an_archive)
        (policies / "bad.yaml").write_text("broken: [")
        await screen.shows("policies: bad.yaml: in force: nothing; no YAML")
        (problem,) = await _json(f"http://127.0.0.1:{health}/problems/files")
        assert (problem["origin"], problem["in_force"]) == ("bad.yaml", "nothing")

        async def stored() -> bool:
            return "bad.yaml" in (await tas("get", "policies")).out

        await eventually(stored)
        pager = await as_written("how-to/subscribing.md", "pager.py", tas, policies.parent)
        await eventually(partial(is_subscribed, (await tas("bus", "url")).out.strip()))
        for node in ("node-1", "node-2", "node-3"):
            done = await tas("publish", node, "health_metric=2")
            assert done.code == 0, done.err
        await eventually(lambda: "cluster: node-3: labels: demo-policy=violating; pods: –" in screen.text)
        # The first pod may have moved before the file was reported: then its line is already removed from the text.
        await eventually(lambda: "simulated_pod_evicted" in screen.everything)
        await pager.shows("node-1 violates deschedule: 2")
        os.killpg(pager.process.pid, signal.SIGKILL)
        # No source is polled for metrics that it does not have: a new user would see only its warnings.
        assert (await tas("get", "sources", "--json")).out.strip() == "[]"
        publish = await as_written("how-to/publish.md", "publish.py", tas, policies.parent)
        await publish.shows("stored as ")
        # A new process: no other test runs this command as a user starts it.
        top = Screen(await tas.new("top", "--extender-health", f"127.0.0.1:{health}"))
        await eventually(lambda: "policies: bad.yaml: in force: nothing; no YAML" in top.text)
        await top.shows("cluster: node-3: labels: demo-policy=violating", "answer: ")
        os.kill(top.process.pid, signal.SIGINT)
        assert await top.ended() == 0
        replace_file(policies / "demo.yaml", POLICY.replace("target: 2", "target: 3"))
        for node in ("node-1", "node-2", "node-3"):
            # Some lines are from before the edit and some from after it: the last line counts.
            await eventually(lambda node=node: _last(screen.text, node).startswith("labels: –"))  # type: ignore[misc]
        os.kill(process.pid, signal.SIGINT)
        assert await screen.ended() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert tas.left_behind() == []


async def as_written(page: str, file: str, tas: Tas, folder: Path) -> Screen:
    """The first program of a page of docs/, started in a shell of its own by the commands that the page shows."""
    text = (DOCS / page).read_text()
    (program, *_) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (folder / file).write_text(program)
    (export,) = re.findall(r"^export TAS_BUS=\$\(tas bus url\).*$", text.partition("## Examples")[0], re.MULTILINE)
    assert f"python {file}" in text
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", f"{export}\npython {file}"),
        cwd=folder,
        env=tas.environment | {"PATH": path},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    return Screen(process)


async def is_subscribed(url: str) -> bool:
    async with Bus.connect(url, name="test") as bus:
        await asyncio.wait_for(bus.wait_connected(), 60)
        try:
            await bus.api("CONSUMER.INFO.EVENTS.pager")
        except RefusedError:
            return False
    return True


async def _json(url: str) -> list[dict[str, str]]:
    """The problems at this address."""
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        found: list[dict[str, str]] = (await response.json())["problems"]
        return found


def _last(text: str, node: str) -> str:
    return text.rpartition(f"cluster: {node}: ")[2]


async def test_a_closed_terminal_ends_everything_without_a_signal(tas: Tas, policies: Path) -> None:
    """As after `ssh -t HOST make up`: the signal of the terminal reaches only make, which waits for us."""
    listen, health = free_ports(2)
    addresses = ["--listen", f"127.0.0.1:{listen}", "--health-listen", f"127.0.0.1:{health}"]
    ours, its = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "up", "--policies", str(policies), *addresses,
        stdin=its, stdout=its, stderr=asyncio.subprocess.PIPE, env=tas.environment, start_new_session=True,
    )  # fmt: skip
    os.close(its)
    drawn: list[bytes] = []
    loop = asyncio.get_running_loop()
    loop.add_reader(ours, lambda: drawn.append(os.read(ours, 65536)))
    try:
        await eventually(lambda: b"node-1" in b"".join(drawn))
        loop.remove_reader(ours)
        os.close(ours)
        async with asyncio.timeout(60):
            _, errors = await process.communicate()
        assert process.returncode == 1
        assert b'"worker":"live","error":"the terminal is closed"' in errors
        assert tas.left_behind() == []
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_port_in_use_is_an_error_and_no_file_remains(tas: Tas, policies: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = await tas("up", "--policies", str(policies), "--listen", address, "--health-listen", "127.0.0.1:0")
    assert done.code == 2
    (line,) = done.err.splitlines()  # nothing has started before
    assert f"extender: cannot listen on {address}: the port is in use" in line
    assert tas.left_behind() == []


@pytest.fixture
async def applied(policies: Path) -> AsyncIterator[Sandbox]:
    """A sandbox to which the policies of the directory are applied."""
    async with Sandbox.start() as sandbox:
        task = asyncio.create_task(AppliedPolicies(sandbox.cluster, policies).run())
        await eventually(lambda: sandbox.cluster.store.get(TASPOLICIES, "default", "demo-policy") is not None)
        yield sandbox
        task.cancel()
        await asyncio.wait([task])


async def test_an_edit_is_one_change_and_removes_deleted_fields(applied: Sandbox, policies: Path) -> None:
    edited = POLICY.replace("    deschedule:\n", "    labeling:\n").replace(
        "target: 2}]\n    dont", "target: 3}]\n    dont"
    )
    (policies / "demo.yaml").write_text(edited)

    def spec() -> dict[str, object]:
        found: dict[str, object] = applied.cluster.get(TASPOLICIES, "default", "demo-policy")["spec"]["strategies"]
        return found

    await eventually(lambda: set(spec()) == {"labeling", "dontschedule"})
    assert applied.cluster.get(TASPOLICIES, "default", "demo-policy")["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    ("value", "stored"),
    [("{}", {}), ("{x: .nan}", {}), (f"{{x: {10**30}}}", None)],
    ids=["plain", "not-a-number", "huge"],
)
async def test_a_spec_reaches_the_cluster_as_written_if_json_can_have_it(
    applied: Sandbox, policies: Path, value: str, stored: object
) -> None:
    replace_file(policies / "demo.yaml", f"{POLICY}    dontschedul: {value}\n    labeling: {{rules: []}}\n")

    def strategies() -> dict[str, object]:
        found: dict[str, object] = applied.cluster.get(TASPOLICIES, "default", "demo-policy")["spec"]["strategies"]
        return found

    await eventually(lambda: "labeling" in strategies())
    assert strategies().get("dontschedul") == stored


async def test_an_unreadable_file_keeps_its_policies_and_a_deleted_file_removes_them(
    applied: Sandbox, policies: Path
) -> None:
    (policies / "other.yaml").write_text(POLICY.replace("demo-policy", "other-policy"))
    (policies / "demo.yaml").write_text("broken: [")

    def names() -> set[str]:
        return {each["metadata"]["name"] for each in applied.cluster.store.items(TASPOLICIES)}

    await eventually(lambda: names() == {"demo-policy", "other-policy"})
    (policies / "other.yaml").unlink()
    await eventually(lambda: names() == {"demo-policy"})
    (policies / "demo.yaml").unlink()
    await eventually(lambda: names() == set())


async def test_without_the_crd_the_error_is_logged_and_the_policies_are_applied_later(
    applied: Sandbox, policies: Path
) -> None:
    with capture_logs() as logs:
        applied.remove_crd()
        (policies / "demo.yaml").write_text(POLICY.replace("target: 2", "target: 3"))
        await eventually(lambda: "policy_file_invalid" in {line["event"] for line in logs})
    applied.install_crd()
    await eventually(lambda: applied.cluster.store.get(TASPOLICIES, "default", "demo-policy") is not None)


async def test_a_directory_that_vanishes_takes_nothing_away(applied: Sandbox, policies: Path) -> None:
    with capture_logs() as logs:
        await asyncio.to_thread(policies.rename, policies.with_name("elsewhere"))
        await eventually(lambda: "policy_directory_unreadable" in {line["event"] for line in logs})
    assert applied.cluster.store.get(TASPOLICIES, "default", "demo-policy") is not None
