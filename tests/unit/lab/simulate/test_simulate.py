"""Who takes part in `tas simulate`, and which loads are too large."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from lab.simulate.field import algorithms
from lab.simulate.model import recording
from lab.simulate.model.synthetic import Shape, synthetic_load
from lab.simulate.simulate import simulate

POLICY = """\
apiVersion: telemetry.intel.com/v1alpha1
kind: TASPolicy
metadata: {name: NAME, namespace: NAMESPACE}
spec:
  strategies:
    dontschedule:
      rules: [{metricname: METRIC, operator: GreaterThan, target: 1}]
"""


def policies(folder: Path, *names: tuple[str, str], metric: str = "cpu_ratio") -> Path:
    for number, (namespace, name) in enumerate(names):
        text = POLICY.replace("NAMESPACE", namespace).replace("NAME", name).replace("METRIC", metric)
        (folder / f"{number}.yaml").write_text(text)
    return folder


def agents(folder: Path, name: str) -> Path:
    file = folder / "agents.yml"
    file.write_text(f"agents:\n  {name}: {{agent: foo}}\n")
    return file


@pytest.mark.parametrize(
    ("names", "agent", "message"),
    [
        ([("a", "one"), ("b", "one")], "foo", "1.yaml: b/one and a/one have one name in the table"),
        ([("a", "default")], "foo", "--policies: default: the default scores have this name in the table"),
        ([("a", "one")], "default", "--agents: default: the default scores have this name in the table"),
        ([("a", "one")], "one", "--agents: one: a policy has this name in the table"),
    ],
)
def test_nobody_replaces_another_one_of_the_same_name(
    tmp_path: Path, names: list[tuple[str, str]], agent: str, message: str
) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    with pytest.raises(click.UsageError) as caught:
        algorithms(agents=agents(tmp_path, agent), policies=policies(folder, *names), weight=1, only=())
    assert message in caught.value.message


def test_a_policy_with_a_metric_that_no_simulated_node_has_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policies(tmp_path, ("a", "one"), metric="node_load1")
    assert "one" in algorithms(agents=None, policies=tmp_path, weight=1, only=())
    assert "0.yaml: policy a/one: no simulated node has node_load1, so its rules are unknown" in capsys.readouterr().err
    policies(tmp_path, ("a", "one"), metric="cpu_ratio:p95:5m")
    algorithms(agents=None, policies=tmp_path, weight=1, only=())
    assert capsys.readouterr().err == ""


def test_a_made_load_that_is_too_large_is_refused_before_it_is_made() -> None:
    done = CliRunner().invoke(simulate, ["--pods", "20000", "--hours", "168", "--only", "default"])
    assert done.exit_code == 2
    assert (
        "--nodes 50, --pods 20000, --hours 168: pods times periods must be at most 50000000: 403200000" in done.output
    )


def test_a_recording_is_read_once_for_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(origin: str, _lines: object) -> object:
        read.append(origin)
        return synthetic_load(Shape.STEADY, seed=1, nodes=2, pods=3, hours=0.1)

    monkeypatch.setattr("lab.simulate.simulate.parse_recording", counted)
    assert recording.parse_recording is not counted
    (tmp_path / "own.jsonl").write_text("")
    command = ["--recording", str(tmp_path / "own.jsonl"), "--runs", "3", "--only", "default", "--json"]
    done = CliRunner().invoke(simulate, command)
    assert done.exit_code == 0, done.output
    assert len(read) == 1
