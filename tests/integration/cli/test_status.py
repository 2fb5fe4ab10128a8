"""`tas status`: what is wrong, worst first, and the exit code, on buses of every kind."""

import asyncio
import fcntl
import os
import pty
import re
import struct
import sys
import termios
import time
from functools import partial
from pathlib import Path

import pytest

from bus.buckets import ALL, POLICIES, REFUSALS, WORKERS
from bus.connection import Bus
from bus.kinds import BREAKER_RECORDS, EXPECTED_NUMBERS, PROCESSES
from bus.records.policies import PolicyRecord, encode_policy
from bus.records.refusals import encode_refused_labels
from bus.subjects import ProcessKey, policy_key
from tas.diagnosis.checks import CHECKS
from tas.diagnosis.finding import group_of
from tas.policy.directory import FileProblem, FileProblems
from tas.policy.manifest import parse_policy
from tas.policy.policy import PolicyKey
from tas.processes.expected import Expected
from tas.processes.process import LastAnswer, NotReady, Process
from tas.verdict.freeze import Breaker, Trip
from tas.verdict.refused import RefusedLabel
from tests.integration.cli.tas import Done, Tas
from tests.integration.servers import Server, answered
from tests.integration.tables import put_tables
from tests.integration.workers.running import put
from workers.following.synced import write_synced

HOSTILE = "\x1b[2J\x1b]0;x\x07\u202e\n"
OTHERS = tuple(of for of in ALL if of is not WORKERS)


@pytest.fixture
def server(new_server: Server) -> Server:
    """Some streams are missing here."""
    return new_server


@pytest.fixture
def tas(tas: Tas, server: Server) -> Tas:
    """A user whose TAS_BUS is the test's server."""
    tas.environment["TAS_BUS"] = server.url
    return tas


async def put_process(bus: Bus, role: str, *workers: str, name: str = "h-1", **fields: object) -> None:
    now = time.time()
    process = Process(version="1", name=name, started=now, workers=dict.fromkeys(workers, ""), time=now, **fields)  # type: ignore[arg-type]
    key = ProcessKey(role, re.sub(r"\W", "_", name))
    await answered(lambda: PROCESSES.put(bus, key, process, revision=0, read_at=time.monotonic(), ttl_seconds=3600))


async def expect(bus: Bus, **counts: int) -> None:
    for worker, count in counts.items():
        record = Expected(count=count)
        await answered(partial(EXPECTED_NUMBERS.put, bus, worker, record, revision=0, read_at=time.monotonic()))


def found(done: Done) -> dict[str, str]:
    """The severity of each finding, by check."""
    return {each["check"]: each["severity"] for each in done.json["findings"]}


async def test_well_wrong_and_not_known_have_different_exit_codes(tas: Tas, bus: Bus) -> None:
    workers = ("evaluate", "extender", "materialize", "policies")
    await put_process(bus, "all", *workers, answers={"filter": LastAnswer(time=time.time())})
    done = await tas("status", "--json")
    assert found(done)["workers.expected"] == "hint", "they have just started"
    await expect(bus, **dict.fromkeys(workers, 1))
    done = await tas("status", "--json")
    assert found(done) == {"policies.any": "warning"}
    assert (done.code, done.json["verdict"]) == (1, "wrong")
    await expect(bus, labels=2)
    done = await tas("status", "--json")
    assert (done.code, found(done)["workers.running"]) == (1, "error")
    assert found(done).keys() == {"workers.running", "policies.any"}
    assert done.json["findings"][0]["check"] == "workers.running", "the worst first"
    assert {"worker": "labels", "running": 0, "ready": 0, "expected": 2} in done.json["workers"]
    text = (await tas("status")).out
    assert text.startswith("wrong: something is wrong")
    assert "none of 2 processes runs labels: no label is set or removed" in text
    assert (await tas("status", "--no-such-flag")).code == 2


async def test_one_screen_has_all_that_an_operator_asks_for(tas: Tas, bus: Bus) -> None:
    """Also of what is well. Each part is a line, so none can be lost without this test."""
    now = time.time()
    rules = {"rules": [{"metricname": "load1", "operator": "GreaterThan", "target": 1}]}
    for name, spec in (
        ("tripped", {"strategies": {"deschedule": rules}}),
        ("waits", {"strategies": {"deschedule": rules}}),
        ("idle", {"suspend": True, "strategies": {"dontschedule": rules}}),
    ):
        policy, _ = parse_policy(PolicyKey("default", name), spec)
        record = encode_policy(PolicyRecord(policy=policy, uid="u", generation=1))
        await put(bus, POLICIES, policy_key(policy.key), record)
    breaker = Breaker(trip=Trip(since=now, limit=9, wanted=12, selected=30))
    await answered(partial(BREAKER_RECORDS.put, bus, "tripped", breaker, revision=0, read_at=time.monotonic()))
    await put_tables(bus, {"node-1": {"load1": "1"}}, source="agent", ago=30.0)
    await put_process(
        bus,
        "all",
        *("evaluate", "extender", "labels", "materialize"),
        leases=("events",),
        behind={"collect": {"prometheus": 9.0}},
        lag={"NODES": 10_000},
        expires={"cert": now + 90 * 86400},
        answers={"filter": LastAnswer(time=now - 5, requests=7, failed=2)},
        waiting_labels={"waits": 40},
    )
    await expect(bus, labels=2, extender=1)
    text = (await tas("status")).out
    head, *lines = text.splitlines()
    assert head.startswith("wrong: something is wrong   bus nats://")
    findings = lines[: lines.index("WORKERS")]
    severities = [line.split()[0] for line in findings if not line.startswith(" ")]
    assert severities == sorted(severities, key=["error", "warning", "unknown", "hint"].index), "the worst first"
    found = (await tas("status", "--json")).json
    assert {bool(each["run"] or each["mend"]) for each in found["findings"]} == {True}, "each with its next step"
    for wanted in (
        r"^  1 of 2: labels$",
        r"^  1 of 1: extender$",
        r"^  1 not known yet how many should run: evaluate, materialize$",
        r"^  h-1 +all +1 +for [\d.]+s +prometheus 9 s behind; NODES 10000 messages behind; holds events; cert expires ",
        r"^  agent +publishes +newest value \S+ old",
        r"^  default/idle: suspend is true$",
        r"^  default/tripped: .*12.*tas reset",
        r"^  default/waits: 40 nodes must wait for a turn",
        r"^  0 of 3 in force as written$",
        r"^  asked \S+ ago; h-1 filter: 200, 7 requests, 2 failed$",
    ):
        assert re.search(wanted, text, re.MULTILINE), (wanted, text)
    assert (await tas("pause", "--reason", "upgrade")).code == 0
    assert re.search(r"^POLICIES\n  .*paused by .*upgrade", (await tas("status")).out, re.MULTILINE)


async def test_a_policy_whose_labels_are_not_written_is_not_in_force(tas: Tas, bus: Bus) -> None:
    """It was "in force as written", while its condition said LabelsNotWritten."""
    rules = {"rules": [{"metricname": "m", "operator": "GreaterThan", "target": 1}]}
    for name in ("demo", "fine", "more", "refused"):
        key = PolicyKey("default", name)
        policy, _ = parse_policy(key, {"strategies": {"deschedule": rules}})
        await put(bus, POLICIES, policy_key(key), encode_policy(PolicyRecord(policy=policy, uid="u", generation=1)))
    label = RefusedLabel(label="refused", value="violating", reason="denied", count=1, nodes=("node-1",))
    await put(bus, REFUSALS, "refused", encode_refused_labels((label,)))
    not_ready = {"LabelsNotWritten": NotReady(3, ("default/demo", "default/refused"))}
    await put_process(bus, "watch", "status", leases=("status",), not_ready=not_ready)
    done = await tas("status", "--json")
    written = {each["what"] for each in done.json["findings"] if each["check"] == "policies.written"}
    assert written == {
        "refused of default/refused: the API server refuses the label on 1 node (node-1): denied",
        "default/demo and 1 more: Ready is False, LabelsNotWritten",
    }
    assert done.code == 1
    text = (await tas("status", "--all")).out
    assert "  default/demo: Ready is False, LabelsNotWritten\n" in text
    assert "  default/refused: Ready is False, LabelsNotWritten\n" in text
    assert "  and 1 more: kubectl get taspolicies --all-namespaces\n  1 of 4 in force as written\n" in text
    doctor = await tas("doctor", "--json")
    assert "policies.written" in doctor.out


async def test_a_file_of_policies_that_cannot_be_used_is_not_well(tas: Tas, bus: Bus) -> None:
    """Nothing of it is on the bus, or its last good version, which has no problem."""
    problem = FileProblem(origin="p.yaml", subject="file", field="content", value="9 bytes", reason="no YAML")
    epoch = await answered(partial(bus.epoch, POLICIES))
    problems = FileProblems(listed=(problem,))
    await write_synced(bus, POLICIES, epoch, count=0, writer="directory", cluster=False, file_problems=problems)
    done = await tas("status", "--json")
    valid = [(each["what"], each["run"]) for each in done.json["findings"] if each["check"] == "policies.valid"]
    assert valid == [("file p.yaml: file: content = 9 bytes: no YAML; in force: nothing", "tas policy lint p.yaml")]
    assert done.code == 1


async def test_while_nobody_writes_the_status_of_policies_it_is_not_known_whether_labels_are_written(
    tas: Tas, bus: Bus
) -> None:
    """It said that the API server accepts all labels, which nobody had asked."""
    policy, _ = parse_policy(PolicyKey("default", "demo"), {})
    await put(bus, POLICIES, policy_key(policy.key), encode_policy(PolicyRecord(policy=policy, uid="u", generation=1)))
    await put_process(bus, "watch", "status")
    done = await tas("status", "--json")
    written = next(each for each in done.json["findings"] if each["check"] == "policies.written")
    assert written["severity"] == "unknown"
    assert "no process has the lease of status" in written["what"]
    await put_process(bus, "watch", "status", name="h-2", leases=("status",))
    assert "policies.written" not in found(await tas("status", "--json"))


async def test_without_a_bus_it_says_so_with_the_command(tas: Tas) -> None:
    tas.environment["TAS_BUS"] = "nats://127.0.0.1:1"
    tas.long_limits = False
    done = await tas("status")
    assert done.code == 1
    assert "bus.reached" in done.out
    assert "run: tas run all --bus" in done.out
    assert "well" not in done.out


async def test_a_bus_without_workers_is_not_well(tas: Tas, server: Server) -> None:
    """One of an earlier version. All else is judged."""
    async with Bus.connect(server.url, name="earlier", streams=OTHERS) as bus:
        await bus.wait_connected()
        await put_tables(bus, {"node-1": {"load1": "1"}})
        done = await tas("status", "--json")
    assert found(done) == {
        "bus.streams": "warning",
        "policies.any": "warning",
        "policies.written": "unknown",
        "extender.asked": "unknown",
        **{check: "unknown" for check in CHECKS if group_of(check) == "workers"},
    }
    assert done.code == 1
    assert done.json["sources"] != [], "what is known is shown"


async def test_an_empty_server_and_half_a_bus_are_named(tas: Tas, server: Server) -> None:
    done = await tas("status", "--json")
    assert (done.code, found(done)["bus.streams"]) == (1, "error")
    async with Bus.connect(server.url, name="half", streams=ALL[:5]) as bus:
        await bus.wait_connected()
        done = await tas("status", "--json")
    assert (done.code, found(done)["bus.streams"], found(done)["metrics.present"]) == (1, "error", "unknown")


class Terminal:
    """What a command writes to a terminal of this size."""

    def __init__(self, columns: int, lines: int) -> None:
        self._leader, self.follower = pty.openpty()
        fcntl.ioctl(self.follower, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    async def of(self, *command: str, environment: dict[str, str]) -> list[str]:
        variables = {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cli", *command),
            stdin=self.follower,
            stdout=self.follower,
            stderr=self.follower,
            env=variables,
        )
        os.close(self.follower)
        chunks = bytearray()
        loop = asyncio.get_running_loop()
        while True:
            try:
                chunk = await loop.run_in_executor(None, os.read, self._leader, 65536)
            except OSError:  # the other side is closed
                break
            if not chunk:
                break
            chunks += chunk
        await process.wait()
        os.close(self._leader)
        return chunks.decode().replace("\r\n", "\n").splitlines()


@pytest.mark.parametrize(("columns", "lines"), [(100, 30), (150, 50)])
async def test_it_fits_a_terminal_and_no_name_controls_it(
    tas: Tas, bus: Bus, columns: int, lines: int, tmp_path: Path
) -> None:
    workers = ("evaluate", "extender", "materialize", "labels", "events", "windows", "watch")
    for number in range(12):
        await put_process(
            bus,
            "all",
            *workers,
            name=f"{HOSTILE}process-{number}",
            behind={HOSTILE: {HOSTILE: 9.0}},
            lag={HOSTILE: 10_000},
            leases=(HOSTILE,),
            answers={HOSTILE: LastAnswer(time=time.time(), status=500, error=HOSTILE)},
        )
    await expect(bus, **dict.fromkeys(workers, 13))
    environment = dict(os.environ) | tas.environment | {"HOME": str(tmp_path), "TERM": "xterm"}
    shown = await Terminal(columns, lines).of("status", environment=environment)
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown]  # colours are ours
    assert len(shown) <= lines
    assert max(map(len, plain)) <= columns
    assert all(line.isprintable() for line in plain)
    assert any("workers.behind" in line for line in plain)
    assert any("more: tas status --all" in line for line in plain)
