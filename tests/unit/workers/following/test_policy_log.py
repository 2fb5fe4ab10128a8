"""Thousands of policies or files are few lines, and none of a policy with problems is among the suppressed ones."""

import structlog
from structlog.testing import capture_logs

from tas.policy.directory import MAX_FILE_PROBLEMS, FileProblem
from tas.policy.policy import PolicyKey, Problem
from workers.following.policy_log import MAX_LINES, PolicyLog

PROBLEM = Problem(field="spec.x", value="1", reason="unknown, ignored", refused=False)


def test_of_thousands_of_policies_few_are_logged_and_those_with_problems_all() -> None:
    with capture_logs() as lines:
        log = PolicyLog(structlog.get_logger("policies"))
        for number in range(5000):
            log.stored(PolicyKey("default", f"p-{number}"), (), generation=1)
        for number in range(MAX_LINES):
            log.stored(PolicyKey("default", "odd"), (PROBLEM,), generation=number)
        log.deleted(PolicyKey("default", "odd"), file="odd.yaml")
    plain = [line for line in lines if line.get("problems") == []]
    odd = [line["generation"] for line in lines if line.get("problems")]
    assert len(plain) == MAX_LINES + 1
    assert (plain[0]["policy"], plain[0]["generation"]) == ("default/p-0", 1)
    assert odd == list(range(MAX_LINES))
    assert (lines[-1]["event"], lines[-1]["policy"], lines[-1]["file"]) == ("policy_deleted", "default/odd", "odd.yaml")


def file_problem(origin: str, number: int = 0) -> FileProblem:
    return FileProblem(origin=origin, subject="file", field=f"f{number}", value="?", reason="cannot be read")


def test_each_change_of_a_file_is_logged_also_if_it_is_repeated() -> None:
    broken = {"a.yaml": (file_problem("a.yaml"),)}
    with capture_logs() as lines:
        log = PolicyLog(structlog.get_logger("policies"))
        changed = [log.files(problems) for problems in ({}, broken, broken, {}, broken)]
    assert changed == [False, True, False, True, True]
    events = [line["event"] for line in lines]
    assert events == ["policy_file_invalid", "policy_file_valid", "policy_file_invalid"]
    assert {"file": "a.yaml", "object": "file", "field": "f0", "value": "?", "in_force": "nothing"}.items() <= (
        lines[0].items()
    )


def test_of_one_file_all_problems_are_logged_and_of_thousands_of_files_few() -> None:
    one = {"a.yaml": tuple(file_problem("a.yaml", number) for number in range(MAX_FILE_PROBLEMS + 1))}
    with capture_logs() as lines:
        PolicyLog(structlog.get_logger("policies")).files(one)
        assert [line["field"] for line in lines] == [f"f{number}" for number in range(MAX_FILE_PROBLEMS + 1)]
        lines.clear()
        log = PolicyLog(structlog.get_logger("policies"))
        log.files({f"{number}.yaml": (file_problem(f"{number}.yaml"),) for number in range(5000)})
        assert len(lines) == MAX_LINES + 2
        assert (lines[-1]["event"], lines[-1]["count"] > 0) == ("log_lines_left_out", True)
        lines.clear()
        log.files({})
        assert len(lines) == MAX_LINES + 2
