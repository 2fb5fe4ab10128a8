"""Thousands of stored policies are few lines, and none of a policy with problems is among the suppressed ones."""

import structlog
from structlog.testing import capture_logs

from tas.policy.policy import PolicyKey, Problem
from workers.watching.policy_log import MAX_LINES, PolicyLog

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
