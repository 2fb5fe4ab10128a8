"""When a list of policies is a reason for a removal: cases with fixed times, without a running worker."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from tests.integration.removal.cases import Case
from tests.integration.removal.judge import Judge
from tests.integration.removal.model import PREFIX, SOURCES, Sample
from tests.integration.removal.observed import Observed, Request, Written
from tests.sandbox import Call

NODE, POLICY = ("", "n"), ("default", "red")
LABEL = f"{PREFIX}red/level"
DELETED, ASKED, ANSWERED, SENT = 100.0, 100.5, 100.6, 101.0
"""Seconds: the policy is deleted, a list of all policies is requested and answered, the label is removed."""

ONE, OTHER = "tas-on-nats/labels-1", "tas-on-nats/labels-2"
RULE = {"metricname": "m1", "operator": "GreaterThan", "target": 5, "labels": ["level=high"]}
SPEC = {"strategies": {"labeling": {"rules": [RULE]}}}


def list_call(*, by: str = ONE, status: int = 200, answered: float = ANSWERED) -> Call:
    return Call(verb="list", path="", user_agent=by, status=status, answered=answered)


def written(
    kind: str,
    at: float,
    *,
    now: Mapping[str, Any] | None,
    before: Mapping[str, Any] | None = None,
    by_test: bool = True,
) -> Written:
    return Written(0, at, kind, NODE if kind == "node" else POLICY, now, before, by_test)


def node(version: int, labels: Mapping[str, str]) -> dict[str, Any]:
    return {"metadata": {"uid": "u", "resourceVersion": str(version), "labels": labels}}


def policy(uid: str, *, created: str = "2026-01-02T00:00:00Z", spec: Mapping[str, Any] = SPEC) -> dict[str, Any]:
    return {"metadata": {"uid": uid, "generation": 1, "creationTimestamp": created}, "spec": spec}


def judged(*lists: Request, late: float = 0.0, stopped: float = 0.0, made_again: float | None = None) -> Judge:
    """The judge after replica `ONE` removed a label of a deleted policy at `SENT`; no sample was ever sent."""
    judge = Judge(Observed(), 1.5, lambda _: None, lambda: late, lambda _: stopped)
    judge.take(written("policy", 10.0, now=policy("first")))
    judge.take(written("node", 11.0, now=node(1, {LABEL: "high"})))
    judge.take(written("policy", DELETED, now=None, before=policy("first")))
    if made_again is not None:
        judge.take(written("policy", made_again, now=policy("second")))
    judge.observed.lists += lists
    patch = Call(verb="patch", path="", name="n", user_agent=ONE, status=200, answered=SENT)
    judge.observed.patches["n"] = [Request(SENT, 1, patch)]
    judge.take(written("node", SENT, now=node(2, {}), before=node(1, {LABEL: "high"}), by_test=False))
    judge.judge(all_of_them=True)
    return judge


@pytest.mark.parametrize(
    "asked",
    [
        Request(ASKED, 1, list_call()),
        Request(DELETED - 0.3, 1, list_call()),  # the policy was deleted before the slow answer
        Request(SENT - 2.4, 1, list_call(answered=DELETED + 0.1)),
    ],
    ids=["after the deletion", "answered after the deletion", "as long before as it may be"],
)
def test_a_list_of_policies_without_the_label_is_a_reason(asked: Request) -> None:
    judge = judged(asked)
    judge.must_have_no_faults()
    assert judge.verdicts == {Case.ORPHAN: 1}


@pytest.mark.parametrize(
    "asked",
    [
        (),
        (Request(SENT + 0.1, 2, list_call(answered=SENT + 0.2)),),
        (Request(SENT - 2.6, 1, list_call(answered=DELETED + 0.1)),),
        (Request(ASKED, 1, list_call(by=OTHER)),),
        (Request(ASKED, 1, list_call(status=500)),),
        (Request(ASKED, 1, list_call(answered=0.0)),),
        (Request(ASKED, 1, list_call(status=0, answered=0.0)),),
        (Request(DELETED - 0.4, 1, list_call(answered=DELETED - 0.1)),),
    ],
    ids=[
        "no request",
        "requested after the patch",
        "requested too long before",
        "requested by another replica",
        "the answer was an error",
        "the answer was broken off",
        "no answer",
        "the answer had the policy",
    ],
)
def test_a_list_that_the_sender_cannot_rely_on_is_no_reason(asked: tuple[Request, ...]) -> None:
    judge = judged(*asked)
    assert judge.faults
    assert not judge.verdicts


def test_a_list_is_no_reason_if_the_policy_was_created_again_before_the_request() -> None:
    judge = judged(Request(ASKED, 1, list_call()), made_again=ASKED - 0.1)
    assert judge.faults


def test_a_patch_that_was_delayed_by_a_stop_may_rely_on_an_older_list() -> None:
    asked = Request(SENT - 2.6, 1, list_call(answered=DELETED + 0.1))
    assert not judged(asked, stopped=0.5).faults


EARLIER, LATER = "2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z"
UNSAMPLED = {"strategies": {"labeling": {"rules": [RULE | {"metricname": "m2"}]}}}
WITHOUT_LABELING = {"strategies": {"deschedule": {"rules": [RULE]}}}


@pytest.mark.parametrize(
    ("other", "is_fault"),
    [
        pytest.param(policy("o", created=EARLIER, spec=UNSAMPLED), True, id="older"),
        pytest.param(policy("o", created=LATER, spec=UNSAMPLED), False, id="younger"),
        pytest.param(policy("o", spec=UNSAMPLED), False, id="as old, a later namespace"),
        pytest.param(policy("o", created=EARLIER, spec=UNSAMPLED | {"suspend": True}), False, id="older, suspended"),
        pytest.param(policy("o", created=EARLIER, spec=UNSAMPLED | {"dryRun": True}), False, id="older, dry-run"),
        pytest.param(policy("o", created=EARLIER, spec=WITHOUT_LABELING), False, id="older, without labeling"),
        pytest.param(policy("o", created=EARLIER), False, id="older, and its rules are met"),
    ],
)
def test_only_the_owner_of_a_label_is_a_reason(other: Mapping[str, Any], *, is_fault: bool) -> None:
    judge = judged_by_samples(Sample(0, SENT - 0.5, SENT - 0.5), other=other)
    assert bool(judge.faults) is is_fault
    assert judge.verdicts == ({} if is_fault else {Case.SAMPLE: 1})


AGENT, PROBE = SOURCES


def sample(value: int, *, age: float, source: str = AGENT, ahead: float = 0.0) -> Sample:
    """A sample that was sent and acknowledged `age` seconds before the patch."""
    return Sample(value, SENT - age + ahead, SENT - age, source, acked=SENT - age + 0.01)


def judged_by_samples(
    *samples: Sample,
    spec: Mapping[str, Any] = SPEC,
    other: Mapping[str, Any] | None = None,
    clock_error: float = 0.0,
) -> Judge:
    """The judge after replica `ONE` removed a label at `SENT`, when all these samples were stored.

    `other` is a policy of the same name in a later namespace.
    """
    judge = Judge(Observed(), 1.5, lambda _: None, lambda: 0.0, lambda _: 0.0, clocks={"labels-1": clock_error})
    life = judge.observed.lives[-1]
    life.synced = 5.0
    twins = {POLICY: policy("first", spec=spec), ("kube-system", POLICY[1]): other}
    for key, found in twins.items():
        if found is not None:
            judge.take(Written(0, 10.0, "policy", key, found, None, True))
            life.policies[key] = [(10.0, (found["metadata"]["uid"], 1))]
    judge.take(written("node", 11.0, now=node(1, {LABEL: "high"}), by_test=False))
    for each in samples:
        judge.observed.samples.sending("n", "m1", each)
        judge.observed.samples.seen(0, "n", "m1", source=each.source, measured=each.measured, at=each.sent + 0.02)
    patch = Call(verb="patch", path="", name="n", user_agent=ONE, status=200, answered=SENT)
    judge.observed.patches["n"] = [Request(SENT, 1, patch)]
    judge.take(written("node", SENT, now=node(2, {}), before=node(1, {LABEL: "high"}), by_test=False))
    judge.judge(all_of_them=True)
    return judge


def labeling(**rule: Any) -> Mapping[str, Any]:
    return {"strategies": {"labeling": {"rules": [RULE | rule]}}}


@pytest.mark.parametrize(
    ("spec", "samples", "hard"),
    [
        pytest.param(SPEC, [sample(9, age=0.6), sample(0, age=0.5)], set(), id="newest"),
        pytest.param(
            SPEC, [sample(0, age=0.5, source=PROBE), sample(9, age=3)], {Case.SOURCES}, id="newest of all sources"
        ),
        pytest.param(
            labeling(source=PROBE),
            [sample(0, age=0.5, source=PROBE), sample(9, age=0.1)],
            {Case.SOURCES},
            id="of the rule's source",
        ),
        pytest.param(SPEC, [sample(0, age=0.5, ahead=5)], {Case.AHEAD}, id="from a clock that is ahead"),
        pytest.param(labeling(operator="Equals"), [sample(6, age=0.5)], {Case.EQUALS}, id="Equals"),
    ],
)
def test_a_removal_by_samples_counts_what_made_it_hard(
    spec: Mapping[str, Any], samples: Sequence[Sample], hard: Collection[Case]
) -> None:
    judge = judged_by_samples(*samples, spec=spec)
    judge.must_have_no_faults()
    assert judge.verdicts == {Case.SAMPLE: 1}
    assert judge.met == dict.fromkeys(hard, 1)


# A read that is 2.5 s old is allowed, and a sample is fresh for 1.5 s.
@pytest.mark.parametrize(
    ("spec", "samples"),
    [
        pytest.param(SPEC, [sample(0, age=4.1)], id="stale"),
        pytest.param(SPEC, [sample(0, age=4.1, ahead=5)], id="stale, from a clock that was ahead"),
        pytest.param(SPEC, [sample(0, age=3.2), sample(9, age=3.1, source=PROBE)], id="replaced by another source"),
        pytest.param(
            SPEC, [sample(0, age=3.2, ahead=5), sample(9, age=3.1, source=PROBE)], id="replaced, from a clock ahead"
        ),
        pytest.param(labeling(source=PROBE), [sample(0, age=0.5), sample(9, age=3, source=PROBE)], id="other source"),
        pytest.param(labeling(source=PROBE), [sample(0, age=0.5)], id="only another source"),
        pytest.param(labeling(operator="Equals"), [sample(5, age=0.5)], id="Equals"),
    ],
)
def test_a_sample_that_does_not_count_is_no_reason(spec: Mapping[str, Any], samples: Sequence[Sample]) -> None:
    assert judged_by_samples(*samples, spec=spec).faults


def test_for_a_clock_that_is_behind_a_sample_is_fresh_for_longer() -> None:
    judge = judged_by_samples(sample(0, age=4.1), clock_error=-0.3)
    judge.must_have_no_faults()
    assert judge.met == {Case.CLOCK: 1}


def test_a_removal_beside_a_younger_policy_of_the_name_is_counted() -> None:
    assert judged_by_samples(sample(0, age=0.5), other=policy("o", created=LATER)).met == {Case.TWIN: 1}
