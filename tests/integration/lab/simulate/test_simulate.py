"""`tas simulate` as a user runs it."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from lab.simulate.field import IDLE
from tas.agents.builtin import BUILTIN
from tests.integration.cli.tas import Tas

SMALL = ("simulate", "--nodes", "4", "--pods", "20", "--hours", "0.2")
RECORDING = """\
{"recording": 1, "period": "1m"}
{"node": "n1", "cpu": "4", "memory": "16Gi"}
{"node": "n2", "cpu": "4", "memory": "16Gi"}
{"pod": "hog", "arrives": 0, "leaves": 3600, "cpu": "100m", "memory": "1Gi"}
{"use": "hog", "at": 0, "cpu": "3500m", "memory": "1Gi"}
""" + "".join(
    f'{{"pod": "p{number}", "arrives": {600 + 120 * number}, "leaves": 3600, "cpu": "500m", "memory": "1Gi"}}\n'
    f'{{"use": "p{number}", "at": {600 + 120 * number}, "cpu": "500m", "memory": "1Gi"}}\n'
    for number in range(4)
)
"""A pod requests little and uses nearly a node; the next ones are honest."""

NO_HOT_NODE = """\
apiVersion: telemetry.intel.com/v1alpha1
kind: TASPolicy
metadata: {name: no-hot-node}
spec:
  strategies:
    dontschedule:
      rules: [{metricname: cpu_ratio, operator: GreaterThan, target: 800m}]
"""

AGENTS = """\
agents:
  calm: {agent: safe-balance, weight: 10, options: {utilization: 0.8}}
"""


async def test_it_prints_the_same_table_and_picture_for_a_seed(tas: Tas, tmp_path: Path) -> None:
    pictures = [tmp_path / "1.svg", tmp_path / "2.svg"]
    asked = [
        *SMALL,
        "--load",
        "bursty",
        "--runs",
        "2",
        "--only",
        "default",
        "--only",
        "policy",
        "--only",
        "safe-balance",
    ]
    one, two = [await tas(*asked, "--svg", str(each)) for each in pictures]
    assert one == two
    assert (one.code, one.err) == (0, "")
    rows = one.out.splitlines()
    assert rows[0].split()[:2] == ["load", "algorithm"]
    assert [row.split()[1 if row.startswith("bursty") else 0] for row in rows[1:]] == [
        "default", "policy", "safe-balance"
    ]  # fmt: skip
    assert pictures[0].read_bytes() == pictures[1].read_bytes()
    texts = [element.text for element in ET.parse(pictures[0]).iter() if element.tag.endswith("text")]
    assert "safe-balance" in texts
    assert "Hours in which nodes use more than 90 %: 4 nodes, 20 pods, 0.2 hours, seeds 1 to 2" in texts


async def test_a_recording_shows_who_helps(tas: Tas, tmp_path: Path) -> None:
    recording, policies, agents = tmp_path / "own.jsonl", tmp_path / "policies", tmp_path / "agents.yaml"
    recording.write_text(RECORDING)
    policies.mkdir()
    (policies / "policy.yaml").write_text(NO_HOT_NODE)
    agents.write_text(AGENTS)
    done = await tas(
        "simulate", "--recording", str(recording), "--policies", str(policies), "--agents", str(agents), "--json"
    )
    assert done.code == 0
    found = {each["algorithm"]: each["results"][0] for each in json.loads(done.out)}
    assert list(found) == ["default", "no-hot-node", "calm"]
    assert {name: each["placed"] for name, each in found.items()} == dict.fromkeys(found, 5)
    assert found["default"]["overload"] > 30
    assert found["no-hot-node"]["overload"] == found["calm"]["overload"] == 0


async def test_every_algorithm_takes_part_and_agents_beside_each_other(tas: Tas) -> None:
    done = await tas(*SMALL, "--json")
    every = [each["algorithm"] for each in json.loads(done.out)]
    assert every[:3] == ["default", "policy", "policy-moves"]
    assert {*every[3:], *IDLE} == set(BUILTIN)
    done = await tas(*SMALL, "--only", "default", "--only", "safe-overload+safe-balance", "--json")
    assert [each["algorithm"] for each in json.loads(done.out)] == ["default", "safe-overload+safe-balance"]


@pytest.mark.parametrize(
    ("flag", "content", "message"),
    [
        ("--recording", RECORDING.replace('"500m"', '"half"', 1), "file:6: cpu = 'half': must be a quantity"),
        ("--agents", "agents: {calm: {agent: nobody}}", "agents.calm.agent = 'nobody': is not installed"),
        ("--recording", None, "--recording = nowhere/file: No such file or directory"),
        ("--svg", None, "--svg = nowhere/file: No such file or directory"),
        ("--policies", None, "--policies = nowhere/file: must be a folder"),
        ("--only", None, "--only = nowhere/file: must be of default, policy, policy-moves, safe-overload"),
    ],
)
async def test_bad_input_is_named(tas: Tas, tmp_path: Path, flag: str, content: str | None, message: str) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_text(content)
    load = ("simulate",) if flag == "--recording" else SMALL
    done = await tas(*load, flag, "nowhere/file" if content is None else str(file), "--only", "default")
    assert done.code != 0
    assert message in " ".join(done.err.split())
    assert done.out == ""


@pytest.mark.parametrize("of_a_made_load", [("--load", "steady"), ("--nodes", "4"), ("--pods", "2"), ("--hours", "1")])
async def test_what_describes_a_made_load_is_refused_beside_a_recording(
    tas: Tas, tmp_path: Path, of_a_made_load: tuple[str, str]
) -> None:
    """It would have no effect."""
    (tmp_path / "own.jsonl").write_text(RECORDING)
    done = await tas("simulate", "--recording", str(tmp_path / "own.jsonl"), *of_a_made_load)
    assert done.code == 2
    assert f"{of_a_made_load[0]}: describes a made load: give it, or --recording" in done.err
    assert done.out == ""


async def test_a_bad_policy_is_named(tas: Tas, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(NO_HOT_NODE.replace("TASPolicy", "TASPolice"))
    done = await tas(*SMALL, "--policies", str(tmp_path))
    assert done.code != 0
    assert "policy" in done.err
