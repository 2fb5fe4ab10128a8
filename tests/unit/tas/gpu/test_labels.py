"""Labels that are split over several."""

import pytest

from tas.gpu.labels import MAX_PARTS, MAX_PROBLEMS, LabelProblem, Problems, split_values
from tas.gpu.names import GPU_NUMBERS, PCI_GROUPS
from tests.unit.growth import grows_linearly


def split(labels: dict[str, str]) -> tuple[dict[str, str], tuple[LabelProblem, ...]]:
    problems = Problems()
    return split_values(labels, problems), problems.listed()


def test_continuations_are_joined_in_the_order_of_their_numbers() -> None:
    labels = {f"{GPU_NUMBERS}{number or ''}": f"{'Z' if number else ''}{number}." for number in (0, *range(2, 12))}
    values, problems = split(dict(sorted(labels.items())))
    assert values == {GPU_NUMBERS: "0.2.3.4.5.6.7.8.9.10.11."}
    assert problems == ()


def test_other_labels_are_ignored() -> None:
    others = {f"{GPU_NUMBERS}1": "1", f"{GPU_NUMBERS}02": "Z", f"{GPU_NUMBERS}x": "", "gpu.intel.com/tiles2": "Z"}
    assert split({GPU_NUMBERS: "0", **others, f"x{GPU_NUMBERS}2": "Z"}) == ({GPU_NUMBERS: "0"}, ())


@pytest.mark.parametrize(
    ("parts", "field", "reason"),
    [
        ({"": "0", "2": ".5"}, "2", "must begin with Z, as it continues gpu.intel.com/gpu-numbers"),
        ({"": "0", "2": ""}, "2", "must begin with Z"),
        ({"": "0", "2": "Z1", "4": "Z2"}, "4", "gpu.intel.com/gpu-numbers3 is missing"),
        ({"2": "Z1"}, "2", "gpu.intel.com/gpu-numbers is missing"),
        ({"": "0" * 64}, "", "is longer than 63 characters"),
        ({"": "0", "2": "Z" + "0" * 1_000_000}, "2", "is longer than 63 characters"),
        (
            {"": "0", **{str(number): "Z" for number in range(2, MAX_PARTS + 2)}},
            "",
            f"is split over {MAX_PARTS + 1} labels",
        ),
    ],
)
def test_a_part_that_cannot_be_read_makes_the_value_missing_and_no_other(
    parts: dict[str, str], field: str, reason: str
) -> None:
    labels = {f"{GPU_NUMBERS}{number}": value for number, value in parts.items()}
    values, (problem,) = split(labels | {PCI_GROUPS: "0.1"})
    assert values == {PCI_GROUPS: "0.1"}
    assert problem.field == GPU_NUMBERS + field
    assert problem.reason.startswith(reason)
    assert len(str(problem)) < 300


def test_as_many_parts_as_are_allowed_are_read() -> None:
    labels = {GPU_NUMBERS: "0"} | {f"{GPU_NUMBERS}{number}": "Z1" for number in range(2, MAX_PARTS + 1)}
    assert split(labels) == ({GPU_NUMBERS: "0" + "1" * (MAX_PARTS - 1)}, ())


def test_problems_are_listed_in_one_order_and_within_a_limit() -> None:
    several = [(f"f{number:03}", "v", "r") for number in range(MAX_PROBLEMS + 1)]
    forward, backward = Problems(), Problems()
    for each in several:
        forward.add(*each)
    for each in reversed(several):
        backward.add(*each)
    assert forward.listed() == backward.listed()
    assert len(forward.listed()) == MAX_PROBLEMS
    assert str(forward.listed()[-1]) == "… = …: and 2 more problems"
    assert str(forward.listed()[0]) == "f000 = 'v': r"


def test_the_time_grows_with_the_number_of_labels() -> None:
    def prepare(size: int) -> object:
        labels = {f"{GPU_NUMBERS}{number}": "Z" * 63 for number in range(size)}
        return lambda: split(labels)

    assert grows_linearly(prepare, 8000)  # type: ignore[arg-type]
