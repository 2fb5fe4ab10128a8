"""Which runs the status of a pod tells of."""

import pytest

from tas.outcomes.outcome import Result
from tas.outcomes.runs import ContainerState, Ended, Run, runs_of

WELL = Ended(exit_code=0, started=1.0, finished=9.0)
BADLY = Ended(exit_code=137, started=20.0, finished=50.0)
ABORTED = Ended(exit_code=-1073741510, started=20.0, finished=50.0)


def state(**fields: object) -> ContainerState:
    return ContainerState(**({"name": "main", "restarts": 2} | fields))  # type: ignore[arg-type]


def ended(restart: int, result: Result, end: Ended, previous: float | None = None) -> Run:
    return Run(
        container="main",
        restart=restart,
        result=result,
        started=end.started,
        finished=end.finished,
        previous_finished=previous,
    )


RUNNING = Run(container="main", restart=2, result=Result.RUNNING, started=60.0, previous_finished=50.0)


@pytest.mark.parametrize(
    ("container", "runs"),
    [
        pytest.param(state(restarts=0), [], id="it was never started"),
        pytest.param(
            state(running=True, started=60.0, before=BADLY), [ended(1, Result.FAILED, BADLY), RUNNING], id="it runs"
        ),
        pytest.param(
            state(ended=BADLY, before=WELL),
            [ended(1, Result.SUCCEEDED, WELL), ended(2, Result.FAILED, BADLY, 9.0)],
            id="it has ended",
        ),
        pytest.param(
            state(ended=ABORTED), [ended(2, Result.FAILED, ABORTED)], id="on Windows an exit code may be negative"
        ),
        pytest.param(state(before=BADLY), [ended(2, Result.FAILED, BADLY)], id="it waits for its next run"),
        pytest.param(
            state(restarts=0, ended=BADLY, before=WELL),
            [ended(0, Result.FAILED, BADLY, 9.0)],
            id="a run before the first is none",
        ),
    ],
)
def test_the_runs_of_a_container(container: ContainerState, runs: list[Run]) -> None:
    assert list(runs_of("Running", (container,))) == runs


def test_a_restart_changes_no_number_of_a_run() -> None:
    """While it runs, when it has ended, while the next one waits (facts.md c53), and runs."""
    seen = [
        state(restarts=0, running=True, started=20.0),
        state(restarts=0, ended=BADLY),
        state(restarts=0, before=BADLY),
        state(restarts=1, running=True, started=60.0, before=BADLY),
    ]
    found = [runs_of("Running", (each,)) for each in seen]
    assert [[(run.restart, str(run.result)) for run in runs] for runs in found] == [
        [(0, "running")],
        [(0, "failed")],
        [(0, "failed")],
        [(0, "failed"), (1, "running")],
    ]


def test_a_pod_that_failed_without_a_failed_container_has_failed_on_its_node() -> None:
    refused = Run(container="", restart=0, result=Result.FAILED)
    assert runs_of("Failed", ()) == (refused,)
    assert runs_of("Failed", (state(ended=WELL),))[-1] == refused
    assert refused not in runs_of("Failed", (state(ended=BADLY),))
    assert runs_of("Running", ()) == runs_of("Succeeded", ()) == ()
