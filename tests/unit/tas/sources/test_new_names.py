"""How many names of nodes a source may invent without a cluster."""

from collections.abc import Iterable

from tas.sources.new_names import REMEMBERED_SECONDS, NewNames
from tas.sources.result import RefusalCount, RefusalReason, Sample, SourceResult
from tas.values.quantity import Quantity


def result_of(nodes: Iterable[str], *metrics: str) -> SourceResult:
    some = metrics or ("load",)
    return SourceResult(
        samples=tuple(Sample(node=node, metric=metric, value=Quantity(1)) for node in nodes for metric in some),
        refusals={RefusalReason.NODE: RefusalCount(count=1, example="an earlier one")},
        refused_now={"a": {"load": "why"}},
    )


def names(start: int, end: int) -> list[str]:
    return [f"n{number}" for number in range(start, end)]


def nodes_of(result: SourceResult) -> list[str]:
    return list(dict.fromkeys(sample.node for sample in result.samples))


def test_new_names_of_one_result_are_bounded_and_known_ones_always_count() -> None:
    known = NewNames(most_new=3, most=100)
    assert nodes_of(known.admit(result_of(names(0, 5), "load", "heat"), 0)) == names(0, 3)
    second = known.admit(result_of(names(0, 99_000)), 1)
    assert nodes_of(second) == names(0, 6)
    assert second.refusals[RefusalReason.NODE].count == 1 + 99_000 - 6
    assert second.refused_now == {"a": {"load": "why"}}


def test_all_names_of_a_source_are_bounded() -> None:
    known = NewNames(most_new=3, most=7)
    for start in range(0, 30, 3):
        admitted = known.admit(result_of(names(start, start + 3)), start)
    assert nodes_of(admitted) == []
    assert nodes_of(known.admit(result_of(names(0, 30)), 31)) == names(0, 7)


def test_a_name_without_values_makes_room_after_an_hour() -> None:
    known = NewNames(most_new=2, most=2)
    known.admit(result_of(["gone", "stays"]), 0)
    known.admit(result_of(["stays"]), REMEMBERED_SECONDS - 1)
    assert nodes_of(known.admit(result_of(["stays", "new"]), REMEMBERED_SECONDS - 1)) == ["stays"]
    assert nodes_of(known.admit(result_of(["stays", "new"]), REMEMBERED_SECONDS + 60)) == ["stays", "new"]


def test_a_refusal_says_which_name_and_what_the_bound_is() -> None:
    admitted = NewNames(most_new=1, most=9).admit(SourceResult(samples=result_of(["a", "b"]).samples), 0)
    assert admitted.refusals[RefusalReason.NODE].example == (
        "load: node = 'b': is one new name too many: at most 1 at once, and 9 of a source, while no cluster says which "
        "nodes exist"
    )


def test_a_result_within_the_bounds_is_the_same_object() -> None:
    given = result_of(names(0, 3))
    assert NewNames().admit(given, 0) is given
