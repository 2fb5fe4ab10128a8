"""Which statistics are computed, where policies want more than there is a place for."""

import random
from collections import Counter
from collections.abc import Iterable

from tas.samples.capacity import SOURCE_LIMIT
from tas.samples.sample import MAX_SAMPLE_AGE
from tas.windows.admission import MAX_NAMES, Admission

NOW = 1_764_028_800.0


def names(namespace: str, numbers: Iterable[int]) -> dict[str, list[str]]:
    return {f"cpu:mean:{60 + number}s": [namespace] for number in numbers}


def counts(admitted: Iterable[str], wanted: dict[str, list[str]]) -> dict[str, int]:
    return dict(Counter(wanted[name][0] if wanted[name] else "" for name in admitted))


def test_who_wants_few_gets_all_and_the_others_share_what_is_left() -> None:
    wanted = names("a", range(10)) | names("b", range(100, 110)) | names("c", range(200, 203)) | {"load:mean:5m": []}
    admission = Admission(most=14)
    admitted = admission.admit(wanted, NOW)
    assert counts(admitted, wanted) == {"a": 5, "b": 5, "c": 3, "": 1}
    assert admission.refused == wanted.keys() - admitted.keys()
    assert Admission(most=24).admit(wanted, NOW) == wanted
    # The operator's statistics have their place, and leave none if there are too many.
    assert counts(Admission(most=1).admit(wanted, NOW), wanted) == {"": 1}
    operators = {f"load:p{number}:5m": list[str]() for number in range(9)}
    assert Admission(most=8).admit(operators | names("a", [999]), NOW) == operators


def test_one_of_several_namespaces_counts_for_the_one_that_wants_the_fewest() -> None:
    shared = {"load:mean:1m": ["a", "b"], "load:mean:2m": ["a", "b"]}
    wanted = names("a", range(8)) | shared
    admitted = Admission(most=4).admit(wanted, NOW)
    assert shared.keys() <= admitted.keys(), "all that b wants"
    assert len(admitted) == 4


def test_what_was_admitted_stays_admitted_while_its_namespace_has_a_place_for_it() -> None:
    admission = Admission(most=6)
    last = names("a", range(4, 10))
    assert admission.admit(last, NOW) == last
    # Others that are first by name do not displace them.
    assert admission.admit(names("a", range(10)), NOW) == last
    # A namespace that comes later gets its half at once.
    wanted = last | names("b", range(50, 60))
    admitted = admission.admit(wanted, NOW)
    assert counts(admitted, wanted) == {"a": 3, "b": 3}
    assert admission.admit(wanted, NOW + 1) == admitted


def test_whoever_changes_statistics_all_the_time_uses_up_the_own_place_alone() -> None:
    admission = Admission(most=100)
    seen: set[str] = set()
    for step in range(200):
        hostile = names("hostile", range(10 * step, 10 * step + 10))
        good = names("good", [9990]) | (names("good", [9991]) if step > 150 else {})
        admitted = admission.admit(hostile | good, NOW + step)
        assert admitted.keys() >= good.keys(), "also one that is new"
        seen |= admitted.keys() & hostile.keys()
    assert 90 <= len(seen) <= 100, "so many samples nodes have until they are an hour old"
    hostile = names("hostile", range(2000, 2010))
    assert not admission.admit(hostile, NOW + 200)
    assert admission.admit(hostile, NOW + 200 + MAX_SAMPLE_AGE) == hostile


def test_one_that_comes_again_needs_no_other_place() -> None:
    admission = Admission(most=4)
    first, second = names("a", range(4)), names("a", range(4, 8))
    assert admission.admit(first, NOW) == first
    assert not admission.admit(second, NOW + 1)
    assert admission.admit(first, NOW + 2) == first


def test_the_samples_of_a_node_have_a_place_for_all_whatever_namespaces_want() -> None:
    """So `materialize` refuses nobody's statistic, even if several namespaces change theirs all the time."""
    chance = random.Random(1)
    admission = Admission()
    seen: dict[str, float] = {}
    most = 0
    for step in range(100):
        wanted = {
            name: each
            for namespace in "abc"
            for name, each in names(namespace, (chance.randrange(3000) for _ in range(chance.choice((5, 400))))).items()
        }
        now = NOW + step * 30
        admitted = admission.admit(wanted, now)
        assert admitted.keys() <= wanted.keys()
        assert len(admitted) <= MAX_NAMES
        seen |= dict.fromkeys(admitted, now)
        most = max(most, sum(now - at < MAX_SAMPLE_AGE for at in seen.values()))
    assert MAX_NAMES < most < SOURCE_LIMIT.pairs / 2
