"""What is logged about requests that fail."""

from workers.kubernetes.errors import ForbiddenError, KubernetesError, UnavailableError
from workers.kubernetes.reflector import LASTING_SECONDS, Problem, Report

REFUSED = ForbiddenError("list nodes: refused (403)", code=403)
DOWN = UnavailableError("list nodes: no connection")

AT_ONCE = Report(lasts=False, suppressed=0)


def reports(*failures: tuple[float, KubernetesError]) -> list[Report | None]:
    problem = Problem()
    return [problem.failed(error, now) for now, error in failures]


def test_a_permission_that_an_api_server_refuses_only_at_its_start_is_no_error() -> None:
    problem = Problem()
    assert problem.failed(DOWN, 0.0) == AT_ONCE
    assert problem.failed(REFUSED, 100.0) == AT_ONCE
    assert problem.failed(REFUSED, 99.9 + LASTING_SECONDS) is None
    assert problem.ended()
    assert not problem.ended()
    # The next start: what was refused before does not count.
    assert problem.failed(REFUSED, 200.0) == Report(lasts=False, suppressed=1)
    assert not any(report.lasts for report in reports((0.0, REFUSED), (6.0, DOWN), (11.0, REFUSED)) if report)


def test_a_permission_that_stays_refused_is_an_error_once_for_each_ten_seconds() -> None:
    begin, early, lasting, again, later = reports(
        (0.0, REFUSED),
        (LASTING_SECONDS / 2, REFUSED),
        (LASTING_SECONDS, REFUSED),
        (LASTING_SECONDS + 1, REFUSED),
        (3 * LASTING_SECONDS, REFUSED),
    )
    assert (begin, early, again) == (AT_ONCE, None, None)
    assert lasting == Report(lasts=True, suppressed=0)
    assert later == Report(lasts=True, suppressed=1)


def test_another_problem_is_reported_at_once_and_never_lasts() -> None:
    found = reports((0.0, DOWN), (1.0, ForbiddenError("401", code=401)), (2.0, REFUSED), (3 * LASTING_SECONDS, DOWN))
    assert found == [AT_ONCE] * 4
