"""`tas trace` while values move on."""

import json
from typing import Any, cast

import pytest

from bus.connection import Bus
from cli.queries import trace as command
from cli.queries.trace import LOOKS
from tas.explain.trace import Stage, StageResult, Trace


def found(stage: Stage, detail: str, *, passed: bool = False) -> Trace:
    result = StageResult(stage=stage, passed=passed, since=None, details=(detail,))
    return Trace(metric="m", node="n", stages=[result], stopped_at=None if passed else stage)


PASSED = found(Stage.LABEL, "no policy that uses it has a label", passed=True)
BEHIND = found(Stage.VIEW, "materialize is behind")
OTHER = found(Stage.VERDICT, "met, and evaluate has stored violated")


@pytest.mark.parametrize(
    ("looks", "stopped_at", "count"),
    [
        ([PASSED], None, 1),
        ([BEHIND, PASSED], None, 2),
        ([BEHIND, OTHER, PASSED], None, 3),
        ([BEHIND, BEHIND], "view", 2),
        ([OTHER, found(Stage.VERDICT, "violated, and evaluate has stored met")] * LOOKS, "verdict", LOOKS),
    ],
    ids=["passed", "moved on", "moved on twice", "stopped", "in two places until the end"],
)
async def test_a_value_has_stopped_if_it_is_there_a_moment_later(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    looks: list[Trace],
    stopped_at: str | None,
    count: int,
) -> None:
    left = list(looks)

    async def evidence(*_: Any) -> tuple[None, float]:
        return None, 0.0

    monkeypatch.setattr(command, "_evidence", evidence)
    monkeypatch.setattr(command, "follow", lambda *_: left.pop(0))
    monkeypatch.setattr(command, "LOOK_SECONDS", 0.0)
    code = await command._trace(cast("Bus", None), "m", "n", 60.0, as_json=True)
    assert json.loads(capsys.readouterr().out)["stopped_at"] == stopped_at
    assert code == (0 if stopped_at is None else 1)
    assert len(looks) - len(left) == count
