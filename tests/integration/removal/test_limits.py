"""Which limit counts when the product labels one more node: cases with fixed times, without a running worker."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from tests.integration.removal.cases import Case
from tests.integration.removal.limits import LimitJudge
from tests.integration.removal.observed import Observed, Request, Written
from tests.sandbox import Call

CREATED, FIRST, SENT = 10.0, 20.0, 100.0
"""Seconds: the policies are created, the first node gets the label, the second node gets the label."""

ALLOWANCE = 2.0
LONG_AGO, JUST_NOW = SENT - 50, SENT - 1

ONE, TWO = {"maxNodes": 1}, {"maxNodes": 2}
TWIN = "kube-system"
"""The namespace of the younger policy: of policies that were created at once, the older one is in `default`."""


def spec(limit: Mapping[str, int] | None, strategy: str = "deschedule", **more: Any) -> dict[str, Any]:
    strategies = {strategy: {"rules": [{"labels": ["k=v"]}]}}
    return {"strategies": strategies} | ({} if limit is None else {"breaker": limit}) | more


def twin(limit: Mapping[str, int] | None, **more: Any) -> dict[str, Any]:
    """A policy of the same name that owns labels beside another one with `deschedule`."""
    return spec(limit, "labeling", **more)


class Scene:
    """Two nodes of three get a label of the policies `red`, one after the other."""

    def __init__(self) -> None:
        self.observed = Observed()
        self.observed.lives[-1].synced = 5.0
        self.judge = LimitJudge(self.observed, lambda _: 0.0, lambda _: ALLOWANCE, lambda: 0.0)
        self._generation = 0
        for number in range(3):
            self._node(1.0, number, {})

    def policy(self, at: float, found: Mapping[str, Any] | None, *, namespace: str = "default") -> None:
        """A policy is written, and is on the bus 0.1 s later; None: it is deleted."""
        self._generation += 1
        key = (namespace, "red")
        metadata = {"uid": namespace, "generation": self._generation, "creationTimestamp": ""}
        now = None if found is None else {"metadata": metadata, "spec": found}
        self.observed.note(Written(0, at, "policy", key, now, None, by_test=True))
        stored = None if found is None else (namespace, self._generation)
        self.observed.lives[-1].policies.setdefault(key, []).append((at + 0.1, stored))

    def faults(self) -> int:
        """How many nodes were too many."""
        for number, at in enumerate((FIRST, SENT)):
            call = Call(verb="patch", path="", name=f"n{number}", user_agent="", status=200, answered=at)
            self.observed.patches[f"n{number}"] = [Request(at, 1, call)]
            self._node(at, number, {"red": "violating"})
        self.judge.judge()
        assert self.judge.met == Counter({Case.ADMITTED: 2})
        return len(self.judge.faults)

    def _node(self, at: float, number: int, labels: Mapping[str, str]) -> None:
        name = f"n{number}"
        before: dict[str, Any] | None = {"metadata": {"labels": {}}} if labels else None
        now = {"metadata": {"uid": f"u{number}", "labels": labels}}
        written = Written(0, at, "node", ("", name), now, before, by_test=not labels)
        self.observed.note(written)
        if labels:
            self.observed.setters[name, f"u{number}", "red"] = True
        self.judge.take(written)


@pytest.mark.parametrize(
    ("found", "faults"),
    [
        (spec(TWO), 0),
        (spec(ONE), 1),
        (spec(None), 1),
        (spec({"maxPercent": 67}), 0),
        (spec({"maxPercent": 65}), 1),
        (spec({"maxPercent": 100}, nodeSelector={"matchLabels": {"zone": "a"}}), 1),
    ],
)
def test_the_limit_of_a_policy_counts(found: Mapping[str, Any], faults: int) -> None:
    scene = Scene()
    scene.policy(CREATED, found)
    assert scene.faults() == faults


def test_of_two_policies_of_a_name_that_own_labels_the_lower_limit_counts() -> None:
    scene = Scene()
    scene.policy(CREATED, spec(TWO))
    scene.policy(CREATED, twin(ONE), namespace=TWIN)
    assert scene.faults() == 1


@pytest.mark.parametrize(("older", "younger", "faults"), [(TWO, ONE, 0), (ONE, TWO, 1), (None, TWO, 1)])
def test_the_limit_of_a_policy_that_owns_no_label_does_not_count(
    older: Mapping[str, int] | None, younger: Mapping[str, int], faults: int
) -> None:
    scene = Scene()
    scene.policy(CREATED, spec(younger), namespace=TWIN)
    scene.policy(CREATED, spec(older))
    assert scene.faults() == faults


@pytest.mark.parametrize(("at", "faults"), [(LONG_AGO, 1), (JUST_NOW, 0)])
def test_a_change_of_the_owner_may_not_be_known_yet(at: float, faults: int) -> None:
    scene = Scene()
    scene.policy(CREATED, spec(TWO))
    scene.policy(CREATED, spec(ONE), namespace=TWIN)
    scene.policy(at, spec(TWO, suspend=True))
    assert scene.faults() == faults


@pytest.mark.parametrize(("at", "faults"), [(LONG_AGO, 1), (JUST_NOW, 0)])
def test_a_limit_that_was_lowered_just_now_may_not_be_known(at: float, faults: int) -> None:
    scene = Scene()
    scene.policy(CREATED, spec(TWO))
    scene.policy(at, spec(ONE))
    assert scene.faults() == faults


@pytest.mark.parametrize("lifted", [None, twin(ONE, suspend=True), twin(ONE, dryRun=True), twin(TWO), spec(ONE)])
def test_a_limit_that_was_lifted_does_not_count(lifted: Mapping[str, Any] | None) -> None:
    scene = Scene()
    scene.policy(CREATED, spec(TWO))
    scene.policy(CREATED, twin(ONE), namespace=TWIN)
    scene.policy(LONG_AGO, lifted, namespace=TWIN)
    assert scene.faults() == 0


@pytest.mark.parametrize(("at", "faults"), [(LONG_AGO, 1), (JUST_NOW, 0)])
def test_a_policy_that_was_created_just_now_may_not_be_known(at: float, faults: int) -> None:
    scene = Scene()
    scene.policy(CREATED, spec(TWO))
    scene.policy(at, twin(ONE), namespace=TWIN)
    assert scene.faults() == faults


def test_limits_of_different_times_do_not_add_up() -> None:
    """At each time one of the two policies allowed only one node."""
    scene = Scene()
    scene.policy(CREATED, spec(ONE))
    scene.policy(CREATED, twin(TWO), namespace=TWIN)
    scene.policy(SENT - 1.5, twin(ONE), namespace=TWIN)
    scene.policy(SENT - 0.5, spec(TWO))
    assert scene.faults() == 1
