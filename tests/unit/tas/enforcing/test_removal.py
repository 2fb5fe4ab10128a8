"""The law of removal: which requested removals are confirmed, and which orphans may be removed."""

from collections.abc import Mapping
from typing import Any

import pytest

from tas.enforcing.removal import Evidence, StoredPolicy, confirmed_removals, may_remove_orphan
from tas.policy.manifest import parse_policy
from tas.policy.policy import LABEL_PREFIX, PolicyKey
from tas.policy.rules import State
from tas.samples.sample import NodeSamples, Scrape
from tas.values.quantity import parse_quantity
from tas.verdict.ownership import strategy_of
from tas.verdict.verdict import ABSENT, LabelVerdict, PolicyVerdict, StrategyVerdict

NOW = 1_000_000.0
STALE_AFTER = 30.0
HERE, THERE, OTHER = PolicyKey("a", "p"), PolicyKey("b", "p"), PolicyKey("a", "q")
PREFIXED = f"{LABEL_PREFIX}p/card"
ODD = f"{LABEL_PREFIX}odd"
RULE = {"metricname": "m", "operator": "GreaterThan", "target": 1}
DESCHEDULE: dict[str, Any] = {"deschedule": {"rules": [RULE]}}
LABELING: dict[str, Any] = {"labeling": {"rules": [RULE | {"labels": ["card=1"]}]}}


def stored(
    key: PolicyKey = HERE, strategies: Mapping[str, Any] = DESCHEDULE, created: float | None = None, **spec: Any
) -> StoredPolicy:
    """A policy whose uid is `<namespace>/<name>`."""
    policy, _ = parse_policy(key, {"strategies": strategies, **spec})
    return StoredPolicy(str(key), 1, policy, created)


def samples(value: int, *, age: float = 0.0) -> NodeSamples:
    at = NOW - age
    return (Scrape(source="s", measured=at, arrived=at, sequence=1, metrics={"m": parse_quantity(str(value))}),)


MEETS, VIOLATES, STALE = samples(1), samples(2), samples(1, age=STALE_AFTER)


def confirmed(
    found: Mapping[PolicyKey, StoredPolicy | None],
    requested: Mapping[str, PolicyKey] | None = None,
    *,
    known: NodeSamples = MEETS,
    labels: Mapping[str, str] | None = None,
    uids: Mapping[PolicyKey, str] | None = None,
) -> set[str]:
    """The confirmed labels; by default `HERE` requests the removal of `p`."""
    requested = {"p": HERE} if requested is None else requested
    verdicts = {
        key: PolicyVerdict(uid=(uids or {}).get(key, str(key)), generation=1, strategies={})
        for key in requested.values()
    }
    evidence = Evidence(policies=found, samples=known, labels=labels, default_stale_after=STALE_AFTER, now=NOW)
    return set(confirmed_removals(requested, verdicts, evidence))


IN_ZONE_A: dict[str, Any] = {"nodeSelector": {"matchLabels": {"zone": "a"}}}
CLEAR = {"deschedule": {"rules": [RULE], "onStale": "clear"}}
VIOLATE = {"deschedule": {"rules": [RULE], "onStale": "violate"}}
UNREADABLE = {"deschedule": {"rules": [RULE, 1], "logicalOperator": "allOf"}}


@pytest.mark.parametrize(
    ("policy", "known", "labels", "goes"),
    [
        pytest.param(stored(), MEETS, {}, True, id="met by a fresh sample"),
        pytest.param(stored(), VIOLATES, {}, False, id="violated"),
        pytest.param(stored(), samples(1, age=STALE_AFTER - 0.1), {}, True, id="met by a sample that is still fresh"),
        pytest.param(stored(), STALE, {}, False, id="met by a stale sample"),
        pytest.param(stored(staleAfter="1m"), STALE, {}, True, id="fresh by the policy's own staleAfter"),
        pytest.param(stored(), (), {}, False, id="no sample"),
        pytest.param(stored(HERE, VIOLATE), (), {}, False, id="onStale violate without a sample"),
        pytest.param(stored(HERE, CLEAR), STALE, {}, True, id="onStale clear with a stale sample"),
        pytest.param(stored(HERE, CLEAR), (), {}, False, id="onStale clear without a sample"),
        pytest.param(stored(**IN_ZONE_A), VIOLATES, {"zone": "b"}, True, id="the selector has left the node"),
        pytest.param(stored(**IN_ZONE_A), MEETS, {"zone": "a"}, True, id="selected and met"),
        pytest.param(stored(**IN_ZONE_A), VIOLATES, {"zone": "a"}, False, id="selected and violated"),
        pytest.param(stored(**IN_ZONE_A), MEETS, None, False, id="unknown labels of the node"),
        pytest.param(stored(suspend=True), MEETS, {}, False, id="suspended"),
        pytest.param(stored(dryRun=True), MEETS, {}, False, id="dry-run"),
        pytest.param(stored(HERE, UNREADABLE), MEETS, {}, False, id="not readable"),
        pytest.param(stored(HERE, LABELING), MEETS, {}, False, id="another strategy"),
        pytest.param(stored(HERE, {"deschedule": {"rules": []}}), MEETS, {}, False, id="without rules"),
        pytest.param(stored(HERE, {"dontschedule": {"rules": [RULE]}}), MEETS, {}, False, id="only dontschedule"),
    ],
)
def test_a_removal_is_confirmed_by_the_stored_policy_and_samples(
    policy: StoredPolicy, known: NodeSamples, labels: Mapping[str, str] | None, goes: bool
) -> None:
    assert confirmed({HERE: policy}, known=known, labels=labels) == ({"p"} if goes else set())


LATER: dict[str, Any] = {"created": NOW}


@pytest.mark.parametrize(
    ("found", "goes"),
    [
        pytest.param({}, False, id="its policy is not stored"),
        pytest.param({HERE: None}, False, id="its policy cannot be read"),
        pytest.param({HERE: stored(suspend=True)}, False, id="its policy is suspended"),
        pytest.param({HERE: stored(), THERE: None}, False, id="a policy of the name cannot be read"),
        pytest.param({HERE: stored(), THERE: stored(THERE)}, True, id="another of the name, its namespace sorts later"),
        pytest.param({HERE: stored(**LATER), THERE: stored(THERE, **LATER)}, True, id="as old, a later namespace"),
        pytest.param({HERE: stored(), THERE: stored(THERE, **LATER)}, True, id="another of the name, younger"),
        pytest.param({HERE: stored(**LATER), THERE: stored(THERE)}, False, id="an older one of the name"),
        pytest.param({HERE: stored(**LATER), THERE: stored(THERE, suspend=True)}, True, id="an older one, suspended"),
        pytest.param({HERE: stored(**LATER), THERE: stored(THERE, dryRun=True)}, True, id="an older one, dry-run"),
        pytest.param(
            {HERE: stored(**LATER), THERE: stored(THERE, LABELING)}, True, id="an older one, another strategy"
        ),
        pytest.param({HERE: stored(**LATER), THERE: stored(THERE, UNREADABLE)}, False, id="an older one, unreadable"),
        pytest.param({HERE: stored(), OTHER: stored(OTHER)}, True, id="a policy of another name"),
        pytest.param({HERE: stored(), OTHER: None}, True, id="a policy of another name that cannot be read"),
    ],
)
def test_only_the_owner_of_a_label_confirms_its_removal(
    found: Mapping[PolicyKey, StoredPolicy | None], goes: bool
) -> None:
    assert confirmed(found) == ({"p"} if goes else set())


def test_a_policy_of_another_uid_confirms_nothing() -> None:
    assert confirmed({HERE: stored()}, uids={HERE: "an earlier one"}) == set()


def test_a_policy_that_was_edited_since_its_verdict_confirms_nothing() -> None:
    """The verdict has waited for `clearFor` by other rules."""
    assert confirmed({HERE: stored()._replace(generation=2)}) == set()


@pytest.mark.parametrize(
    ("label", "strategies"),
    [
        ("p", {"deschedule": DESCHEDULE["deschedule"] | {"clearFor": "1s"}}),
        (PREFIXED, {"labeling": LABELING["labeling"] | {"clearFor": "1s"}}),
    ],
)
@pytest.mark.parametrize(
    ("met_since", "zone", "goes"),
    [
        pytest.param(NOW - 1, "a", True, id="the verdict has waited for clearFor"),
        pytest.param(None, "a", False, id="the verdict was of an unselected node, which is selected now"),
        pytest.param(None, "b", True, id="the node is still unselected"),
        pytest.param(NOW - 1, "b", True, id="the node is unselected now"),
    ],
)
def test_with_clear_for_a_verdict_of_an_unselected_node_is_confirmed_only_by_the_selector(
    label: str, strategies: Mapping[str, Any], met_since: float | None, zone: str, goes: bool
) -> None:
    found = LabelVerdict(state=State.MET, desired=ABSENT, met_since=met_since)
    strategy = StrategyVerdict(state=State.MET, changed=NOW, labels={label: found})
    verdicts = {HERE: PolicyVerdict(uid=str(HERE), generation=1, strategies={strategy_of(label): strategy})}
    evidence = Evidence(
        policies={HERE: stored(HERE, strategies, **IN_ZONE_A)},
        samples=MEETS,
        labels={"zone": zone},
        default_stale_after=STALE_AFTER,
        now=NOW,
    )
    assert set(confirmed_removals({label: HERE}, verdicts, evidence)) == ({label} if goes else set())


@pytest.mark.parametrize(
    ("known", "goes"),
    [(MEETS, True), (VIOLATES, False), (STALE, False), ((), False)],
    ids=["met", "bad", "old", "none"],
)
def test_after_a_change_of_owner_the_rules_of_the_new_owner_count(known: NodeSamples, goes: bool) -> None:
    """The former owner is deleted, or suspended."""
    for found in ({THERE: stored(THERE)}, {HERE: stored(suspend=True), THERE: stored(THERE)}):
        assert confirmed(found, {"p": THERE}, known=known) == ({"p"} if goes else set())
        assert confirmed(found, {"p": HERE}, known=known) == set()


def test_labels_are_independent() -> None:
    both = stored(HERE, DESCHEDULE | LABELING, **LATER)
    removals = {"p": HERE, PREFIXED: HERE}
    assert confirmed({HERE: both}, removals) == {"p", PREFIXED}
    assert confirmed({HERE: both, THERE: stored(THERE, LABELING)}, removals) == {"p"}
    assert confirmed({HERE: both, THERE: stored(THERE)}, removals) == {PREFIXED}
    assert confirmed({HERE: both, THERE: None}, removals) == set()


# Orphans

OTHER_OPERATOR = {"metricname": "m", "operator": "LessThan", "target": 1, "labels": ["card=1"]}


def labelled(*labels: str) -> dict[str, Any]:
    return {"strategies": {"labeling": {"rules": [RULE | {"labels": list(labels)}]}}}


def policy(spec: object, *, name: str = "p", namespace: str = "default") -> tuple[PolicyKey, object]:
    return PolicyKey(namespace, name), spec


ONLY_DESCHEDULE = {"strategies": {"deschedule": {"rules": [RULE]}}}
ONLY_DONTSCHEDULE = {"strategies": {"dontschedule": {"rules": [RULE]}}}


@pytest.mark.parametrize(
    ("orphan", "specs", "removable"),
    [
        pytest.param("p", [], True, id="no policy at all"),
        pytest.param(PREFIXED, [], True, id="no policy at all, prefixed"),
        pytest.param("p", [policy(ONLY_DESCHEDULE, name="other")], True, id="another policy"),
        pytest.param("p", [policy(ONLY_DESCHEDULE)], False, id="its policy"),
        pytest.param("p", [policy(ONLY_DESCHEDULE, namespace="far")], False, id="facts_S8 one of its name elsewhere"),
        pytest.param("p", [policy(ONLY_DONTSCHEDULE)], True, id="facts_C5 its policy without the strategy"),
        pytest.param("p", [policy(labelled("card=0"))], True, id="its policy with another strategy"),
        pytest.param(
            "p", [policy(ONLY_DONTSCHEDULE), policy(ONLY_DESCHEDULE, namespace="far")], False, id="facts_D39 one of two"
        ),
        pytest.param("p", [policy({"strategies": {"deschedule": {"rules": []}}})], True, id="without rules"),
        pytest.param("p", [policy({"strategies": {"deschedule": {"rules": "x"}}})], False, id="unreadable rules"),
        pytest.param("p", [policy(ONLY_DONTSCHEDULE | {"suspend": True})], False, id="suspended"),
        pytest.param("p", [policy(ONLY_DONTSCHEDULE | {"dryRun": True})], False, id="dry-run"),
        pytest.param("p", [policy({"strategies": 7})], False, id="unreadable strategies"),
        pytest.param(PREFIXED, [policy(labelled("card=0"))], False, id="its key"),
        pytest.param(PREFIXED, [policy(labelled("bus=0"))], True, id="another key"),
        pytest.param(PREFIXED, [policy(ONLY_DESCHEDULE)], True, id="no labeling"),
        pytest.param(PREFIXED, [policy(labelled("bus=0", "card=-1"))], False, id="facts_D54 its key with a bad value"),
        pytest.param(
            PREFIXED,
            [policy({"strategies": {"labeling": {"rules": [RULE | {"labels": ["card=0"]}, OTHER_OPERATOR]}}})],
            False,
            id="facts_D52 its key with two operators",
        ),
        pytest.param(
            PREFIXED,
            [policy({"strategies": {"labeling": {"rules": [{"metricname": "m", "operator": "?"}]}}})],
            False,
            id="a labeling that cannot be read",
        ),
        pytest.param(ODD, [policy(ONLY_DESCHEDULE, name=ODD)], False, id="odd name"),
        pytest.param(ODD, [policy(ONLY_DONTSCHEDULE, name=ODD)], True, id="odd name without the strategy"),
        pytest.param(ODD, [policy(ONLY_DESCHEDULE, name="odd")], True, id="odd name, another policy"),
    ],
)
def test_an_orphan_may_be_removed_if_no_policy_can_have_set_it(
    orphan: str, specs: list[tuple[PolicyKey, object]], removable: bool
) -> None:
    assert may_remove_orphan(orphan, specs) is removable


def test_a_malformed_label_under_the_prefix_belongs_to_no_policy() -> None:
    assert may_remove_orphan(f"{LABEL_PREFIX}p", [policy(labelled("card=0")), policy(labelled("card=0"), name="")])
