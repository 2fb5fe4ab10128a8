"""Which files' words stand when they come, go, break and contradict each other."""

from collections.abc import Mapping

import msgspec
import pytest

from tas.directory import FiledPolicy, FileProblem, PolicyFile, plan
from tas.policy import Policy, PolicyKey

PROBLEM = FileProblem(origin="x.yaml", subject="policy default/one", field="spec", value="?", reason="cannot be read")


def key(name: str) -> PolicyKey:
    return PolicyKey("default", name)


def file(origin: str, *names: str, broken: bool = False) -> PolicyFile:
    policies = tuple(
        FiledPolicy(origin=origin, policy=Policy(key=key(name), strategies={}), generation=1) for name in names
    )
    return PolicyFile(origin=origin, policies=policies, problems=(PROBLEM,) if broken else ())


def standing(**origins: str) -> Mapping[PolicyKey, str]:
    return {key(name): origin for name, origin in origins.items()}


def test_every_readable_policy_stands() -> None:
    planned = plan([file("a.yaml", "one", "two"), file("b.yaml", "three")], {}, complete=True)
    assert {k.name: filed.origin for k, filed in planned.stand.items()} == {
        "one": "a.yaml",
        "two": "a.yaml",
        "three": "b.yaml",
    }
    assert not planned.remove
    assert not planned.unreadable


def test_a_deleted_file_removes_its_policies() -> None:
    planned = plan([file("a.yaml", "one")], standing(one="a.yaml", two="b.yaml"), complete=True)
    assert planned.remove == {key("two")}


def test_a_policy_that_left_its_file_is_removed() -> None:
    planned = plan([file("a.yaml", "one")], standing(one="a.yaml", two="a.yaml"), complete=True)
    assert planned.remove == {key("two")}


def test_without_a_complete_listing_nothing_is_removed() -> None:
    planned = plan([], standing(one="a.yaml"), complete=False)
    assert planned.remove == frozenset()


def test_a_policy_that_came_from_no_file_is_never_removed() -> None:
    assert plan([], standing(one=""), complete=True).remove == frozenset()


def test_an_unreadable_file_keeps_all_that_came_from_it() -> None:
    planned = plan([file("a.yaml", broken=True)], standing(one="a.yaml", two="a.yaml", three="b.yaml"), complete=True)
    assert planned.remove == {key("three")}
    assert not planned.stand
    assert planned.unreadable == {"a.yaml": (msgspec.structs.replace(PROBLEM, in_force="last good version"),)}


def test_what_can_be_read_of_a_broken_file_stands() -> None:
    planned = plan([file("a.yaml", "one", broken=True)], standing(one="a.yaml", two="a.yaml"), complete=True)
    assert set(planned.stand) == {key("one")}
    assert planned.remove == frozenset()


@pytest.mark.parametrize("turn", [1, -1], ids=["in-order", "reversed"])
def test_of_two_with_one_name_the_first_path_stands(turn: int) -> None:
    planned = plan([file("a.yaml", "one"), file("b.yaml", "one")][::turn], {}, complete=True)
    assert planned.stand[key("one")].origin == "a.yaml"
    assert [str(problem) for problem in planned.duplicates] == [
        "file b.yaml: policy default/one: metadata.name = 'one': the policy of this name in file a.yaml stands"
    ]


def test_of_two_with_one_name_in_one_file_the_first_stands() -> None:
    planned = plan([file("a.yaml", "one", "one")], {}, complete=True)
    assert len(planned.stand) == len(planned.duplicates) == 1


def test_the_second_path_takes_over_when_the_first_is_gone() -> None:
    planned = plan([file("b.yaml", "one")], standing(one="a.yaml"), complete=True)
    assert planned.stand[key("one")].origin == "b.yaml"
    assert planned.remove == frozenset()


def test_what_an_unreadable_first_path_said_stands_before_a_second() -> None:
    planned = plan([file("a.yaml", broken=True), file("b.yaml", "one")], standing(one="a.yaml"), complete=True)
    assert not planned.stand
    assert not planned.remove
    assert [str(problem) for problem in planned.duplicates] == [
        "file b.yaml: policy default/one: metadata.name = 'one': the policy of this name in file a.yaml stands"
    ]


def test_a_first_path_that_never_could_be_read_holds_no_name() -> None:
    planned = plan([file("a.yaml", broken=True), file("b.yaml", "one")], {}, complete=True)
    assert planned.stand[key("one")].origin == "b.yaml"


def test_a_readable_first_path_stands_before_what_an_unreadable_second_said() -> None:
    planned = plan([file("a.yaml", "one"), file("b.yaml", broken=True)], standing(one="b.yaml"), complete=True)
    assert planned.stand[key("one")].origin == "a.yaml"


@pytest.mark.parametrize(
    ("standing_of_a", "of_b", "says"),
    [
        ({"one": "a.yaml"}, (), "last good version"),
        ({}, (), "nothing"),
        ({"two": "a.yaml"}, (), "nothing"),
        ({}, ("one",), "another definition of this name"),
    ],
)
def test_a_problem_says_what_counts_instead(standing_of_a: Mapping[str, str], of_b: tuple[str, ...], says: str) -> None:
    planned = plan([file("a.yaml", broken=True), file("b.yaml", *of_b)], standing(**standing_of_a), complete=True)
    assert [problem.in_force for problem in planned.unreadable["a.yaml"]] == [says]


@pytest.mark.parametrize(("stands", "says"), [({"one": "x.yaml"}, "last good version"), ({}, "nothing")])
def test_a_problem_of_a_whole_file_says_whether_anything_of_it_counts(stands: Mapping[str, str], says: str) -> None:
    whole = msgspec.structs.replace(PROBLEM, subject="file")
    planned = plan([PolicyFile(origin="x.yaml", problems=(whole,))], standing(**stands), complete=True)
    assert [problem.in_force for problem in planned.unreadable["x.yaml"]] == [says]
