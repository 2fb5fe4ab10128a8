"""Which policies are in force when files are added, deleted, broken or contradict each other."""

from collections.abc import Callable, Mapping

import msgspec
import pytest

from tas.policy.directory import (
    MAX_FILE_PROBLEMS,
    MAX_LISTED_BYTES,
    MAX_LISTED_PROBLEMS,
    FilePolicy,
    FileProblem,
    FileProblems,
    PolicyFile,
    file_policy_uid,
    file_problems,
    generation_of,
    plan,
    policy_file,
    unreadable_file,
)
from tas.policy.policy import Policy, PolicyKey
from tests.unit.growth import grows_linearly

PROBLEM = FileProblem(origin="x.yaml", subject="policy default/one", field="spec", value="?", reason="cannot be read")


def key(name: str) -> PolicyKey:
    return PolicyKey("default", name)


def file(origin: str, *names: str, broken: bool = False) -> PolicyFile:
    policies = tuple(
        FilePolicy(origin=origin, policy=Policy(key=key(name), strategies={}), generation=1) for name in names
    )
    return PolicyFile(origin=origin, policies=policies, problems=(PROBLEM,) if broken else ())


def stored(**origins: str) -> Mapping[PolicyKey, str]:
    return {key(name): origin for name, origin in origins.items()}


def test_every_readable_policy_is_in_force() -> None:
    planned = plan([file("a.yaml", "one", "two"), file("b.yaml", "three")], {}, complete=True)
    assert {k.name: file_policy.origin for k, file_policy in planned.desired.items()} == {
        "one": "a.yaml",
        "two": "a.yaml",
        "three": "b.yaml",
    }
    assert not planned.remove
    assert not planned.unreadable


def test_a_deleted_file_removes_its_policies() -> None:
    planned = plan([file("a.yaml", "one")], stored(one="a.yaml", two="b.yaml"), complete=True)
    assert planned.remove == {key("two")}


def test_objects_of_other_kinds_are_left_out_without_a_problem() -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    assert policy_file("a.yaml", [config]) == PolicyFile(origin="a.yaml")
    (problem,) = policy_file("a.yaml", [config, {"apiVersion": "v1", "kind": "TASPolicy"}]).problems
    assert problem.field == "apiVersion"


def test_the_configuration_of_another_program_is_left_out_and_a_policy_without_its_head_is_a_problem() -> None:
    rules = {"groups": [{"name": "power", "rules": []}]}
    assert policy_file("rules.yaml", [rules]) == PolicyFile(origin="rules.yaml")
    headless: object
    for headless in ({"spec": {"strategies": {}}}, {"Metadata": {"name": "p"}, **rules}, {"KIND": "x"}, {}, [], None):
        assert policy_file("a.yaml", [headless]).problems, headless


def test_a_policy_that_left_its_file_is_removed() -> None:
    planned = plan([file("a.yaml", "one")], stored(one="a.yaml", two="a.yaml"), complete=True)
    assert planned.remove == {key("two")}


def test_without_a_complete_listing_nothing_is_removed() -> None:
    planned = plan([], stored(one="a.yaml"), complete=False)
    assert planned.remove == frozenset()


def test_a_policy_that_came_from_no_file_is_never_removed() -> None:
    assert plan([], stored(one=""), complete=True).remove == frozenset()


def test_an_unreadable_file_keeps_all_that_came_from_it() -> None:
    planned = plan([file("a.yaml", broken=True)], stored(one="a.yaml", two="a.yaml", three="b.yaml"), complete=True)
    assert planned.remove == {key("three")}
    assert not planned.desired
    assert planned.unreadable == {"a.yaml": (msgspec.structs.replace(PROBLEM, in_force="last good version"),)}


def test_the_readable_policies_of_a_broken_file_are_in_force() -> None:
    planned = plan([file("a.yaml", "one", broken=True)], stored(one="a.yaml", two="a.yaml"), complete=True)
    assert set(planned.desired) == {key("one")}
    assert planned.remove == frozenset()


@pytest.mark.parametrize("turn", [1, -1], ids=["in-order", "reversed"])
def test_the_first_path_counts_for_two_policies_of_one_name(turn: int) -> None:
    planned = plan([file("a.yaml", "one"), file("b.yaml", "one")][::turn], {}, complete=True)
    assert planned.desired[key("one")].origin == "a.yaml"
    assert [str(problem) for problem in planned.duplicates] == [
        "file b.yaml: policy default/one: metadata.name = 'one': the policy of this name in file a.yaml is in force"
    ]


def test_the_first_of_two_policies_of_one_name_in_a_file_counts() -> None:
    planned = plan([file("a.yaml", "one", "one")], {}, complete=True)
    assert len(planned.desired) == len(planned.duplicates) == 1


def test_the_second_path_counts_after_the_first_is_deleted() -> None:
    planned = plan([file("b.yaml", "one")], stored(one="a.yaml"), complete=True)
    assert planned.desired[key("one")].origin == "b.yaml"
    assert planned.remove == frozenset()


def test_the_last_good_version_of_an_unreadable_first_path_counts_before_a_second() -> None:
    planned = plan([file("a.yaml", broken=True), file("b.yaml", "one")], stored(one="a.yaml"), complete=True)
    assert not planned.desired
    assert not planned.remove
    assert [str(problem) for problem in planned.duplicates] == [
        "file b.yaml: policy default/one: metadata.name = 'one': the policy of this name in file a.yaml is in force"
    ]


def test_a_first_path_that_was_never_readable_does_not_block_a_second() -> None:
    planned = plan([file("a.yaml", broken=True), file("b.yaml", "one")], {}, complete=True)
    assert planned.desired[key("one")].origin == "b.yaml"


def test_a_readable_first_path_counts_before_the_last_good_version_of_a_second() -> None:
    planned = plan([file("a.yaml", "one"), file("b.yaml", broken=True)], stored(one="b.yaml"), complete=True)
    assert planned.desired[key("one")].origin == "a.yaml"


def test_a_third_path_is_reported_with_the_path_in_force() -> None:
    files = [file("a.yaml", "one"), file("b.yaml", broken=True), file("c.yaml", "one")]
    planned = plan(files, stored(one="b.yaml"), complete=True)
    assert [problem.reason for problem in planned.duplicates] == ["the policy of this name in file a.yaml is in force"]


@pytest.mark.parametrize(
    ("stored_of_a", "of_b", "in_force"),
    [
        ({"one": "a.yaml"}, (), "last good version"),
        ({}, (), "nothing"),
        ({"two": "a.yaml"}, (), "nothing"),
        ({}, ("one",), "another definition of this name"),
    ],
)
def test_a_problem_names_what_is_in_force_instead(
    stored_of_a: Mapping[str, str], of_b: tuple[str, ...], in_force: str
) -> None:
    planned = plan([file("a.yaml", broken=True), file("b.yaml", *of_b)], stored(**stored_of_a), complete=True)
    assert [problem.in_force for problem in planned.unreadable["a.yaml"]] == [in_force]


@pytest.mark.parametrize(("stored_policies", "in_force"), [({"one": "x.yaml"}, "last good version"), ({}, "nothing")])
def test_a_problem_of_a_whole_file_names_whether_a_last_good_version_is_in_force(
    stored_policies: Mapping[str, str], in_force: str
) -> None:
    whole = msgspec.structs.replace(PROBLEM, subject="file")
    planned = plan([PolicyFile(origin="x.yaml", problems=(whole,))], stored(**stored_policies), complete=True)
    assert [problem.in_force for problem in planned.unreadable["x.yaml"]] == [in_force]


def test_a_problem_of_a_whole_file_does_not_take_what_another_file_keeps_for_its_own() -> None:
    files = [unreadable_file(origin, "content", "", "not readable") for origin in ("x.yaml", "y.yaml")]
    planned = plan(files, stored(one="x.yaml"), complete=True)
    in_force = {origin: problem.in_force for origin, (problem,) in planned.unreadable.items()}
    assert in_force == {"x.yaml": "last good version", "y.yaml": "nothing"}


def test_a_part_that_names_no_policy_has_no_last_good_version_in_what_is_read_beside_it() -> None:
    nameless = msgspec.structs.replace(PROBLEM, origin="x.yaml", subject="manifest")
    beside = msgspec.structs.replace(file("x.yaml", "one"), problems=(nameless,))
    planned = plan([beside], stored(one="x.yaml"), complete=True)
    assert [problem.in_force for problem in planned.unreadable["x.yaml"]] == ["nothing"]


def test_the_time_of_a_plan_grows_with_the_problems_and_not_with_their_square() -> None:
    def planned(size: int) -> Callable[[], object]:
        names = [f"n{number}" for number in range(size)]
        problems = tuple(msgspec.structs.replace(PROBLEM, subject=f"policy default/x{name}") for name in names)
        files = [file("a.yaml", *names), PolicyFile(origin="x.yaml", problems=problems)]
        return lambda: plan(files, {}, complete=True)

    assert grows_linearly(planned, 2000)


# What one file says


def manifest(name: str, *, namespace: str = "default", **spec: object) -> dict[str, object]:
    return {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "kind": "TASPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"strategies": {}, **spec},
    }


def file_of(*manifests: object) -> PolicyFile:
    return policy_file("a.yaml", manifests)


def test_a_file_has_the_policies_of_its_manifests_in_order() -> None:
    read = file_of(manifest("one"), manifest("two", namespace="other"))
    assert [filed.policy.key for filed in read.policies] == [key("one"), PolicyKey("other", "two")]
    assert {filed.origin for filed in read.policies} == {"a.yaml"}
    assert read.problems == ()


def test_an_unreadable_part_is_reported_and_the_rest_counts() -> None:
    refused = manifest("two", staleAfter="soon")
    read = file_of(manifest("one"), refused, {"kind": "Pod"})
    assert [filed.policy.key.name for filed in read.policies] == ["one"]
    first, second = read.problems
    assert (first.origin, first.subject, first.field) == ("a.yaml", "policy default/two", "spec.staleAfter")
    assert second.origin == "a.yaml"


def test_of_many_problems_the_first_are_reported_and_the_rest_counted() -> None:
    read = file_of(*[manifest(f"p{number}", staleAfter="soon") for number in range(MAX_FILE_PROBLEMS + 20)])
    *first, last = read.problems
    assert [each.subject for each in first] == [f"policy default/p{number}" for number in range(MAX_FILE_PROBLEMS)]
    assert (last.subject, last.value) == ("file", f"'{MAX_FILE_PROBLEMS + 20} problems'")
    kept = plan([read], {key("p0"): "a.yaml", key("p110"): "a.yaml"}, complete=True)
    assert not kept.remove
    assert {each.in_force for each in kept.unreadable["a.yaml"]} == {"last good version", "nothing"}


def test_a_file_without_a_policy_is_unreadable_and_deletes_nothing() -> None:
    read = file_of()
    assert read.policies == ()
    assert [problem.field for problem in read.problems] == ["content"]
    assert plan([read], stored(one="a.yaml"), complete=True).remove == frozenset()


def test_the_generation_changes_with_the_spec_and_only_with_it() -> None:
    numbers = [generation_of(spec) for spec in ({"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 1}, None, {}, {"a": 10**40})]
    assert len(set(numbers)) == len(numbers)
    assert all(1 <= number <= 2**48 for number in numbers)
    assert generation_of({"b": 2, "a": 1}) == numbers[0]


def test_each_name_has_its_own_uid() -> None:
    assert file_policy_uid(key("one")) == file_policy_uid(PolicyKey("default", "one"))
    assert len({file_policy_uid(each) for each in (key("one"), key("two"), PolicyKey("other", "one"))}) == 3


def test_all_problems_of_a_plan_are_reported_by_file() -> None:
    planned = plan([file("a.yaml", "one"), file("x.yaml", "one", broken=True)], {}, complete=True)
    assert planned.problems.keys() == {"x.yaml"}
    assert [each.subject for each in planned.problems["x.yaml"]] == ["policy default/one", "policy default/one"]
    assert [each.field for each in planned.problems["x.yaml"]] == ["spec", "metadata.name"]


def test_of_many_problems_the_first_of_each_file_are_listed_and_the_others_counted() -> None:
    def problem(origin: str, number: int, value: str = "?") -> FileProblem:
        return FileProblem(origin=origin, subject="file", field=f"f{number}", value=value, reason="cannot be read")

    few = [problem("a.yaml", 0), problem("b.yaml", 0)]
    assert (file_problems(few).listed, file_problems(few).others) == (tuple(few), 0)
    many = [problem("a.yaml", number) for number in range(MAX_LISTED_PROBLEMS + 5)]
    found = file_problems([*many, problem("b.yaml", 0)])
    assert found.listed == (*many[: MAX_LISTED_PROBLEMS - 1], problem("b.yaml", 0))
    assert found.others == 6
    large = [problem(f"{number}.yaml", 0, "\x1b" * 2000) for number in range(10)]
    found = file_problems(large)
    assert 0 < len(found.listed) < 10
    assert found.others == 10 - len(found.listed)
    assert len(msgspec.json.encode(found.listed)) < MAX_LISTED_BYTES + 10


@pytest.mark.parametrize(
    ("subject", "in_force", "marked"),
    [
        ("file", "last good version", ["one", "two"]),
        ("policy default/one", "last good version", ["one"]),
        ("policy default/one", "another definition of this name", []),
        ("file", "nothing", []),
    ],
)
def test_the_last_good_version_of_an_edited_file_is_known(subject: str, in_force: str, marked: list[str]) -> None:
    problem = FileProblem(origin="x.yaml", subject=subject, field="f", value="v", reason="r", in_force=in_force)
    problems = FileProblems(listed=(problem,))
    assert [name for name in ("one", "two") if problems.leave_last_good(key(name), "x.yaml")] == marked
    assert not problems.leave_last_good(key("one"), "y.yaml")
