"""When values are read from the past."""

import pytest

from tas.windows.past import has_read_as_far, pause_after


@pytest.mark.parametrize(("seconds", "pause"), [(0.0, 1.0), (0.25, 1.0), (0.5, 1.5), (20.0, 60.0)])
def test_the_past_is_read_at_most_a_quarter_of_the_time_and_not_again_within_a_second(
    seconds: float, pause: float
) -> None:
    assert pause_after(seconds) == pause


@pytest.mark.parametrize(
    ("read", "other", "behind", "has_all"),
    [
        pytest.param(7, 7, 0, True, id="as far as the other one"),
        pytest.param(8, 7, 0, True, id="further"),
        pytest.param(6, 7, 0, False, id="the other one has read more meanwhile"),
        pytest.param(7, 7, 500, True, id="more comes all the time"),
        pytest.param(None, None, 0, True, id="nothing is stored"),
        pytest.param(None, 7, 0, True, id="nothing is left of what the other one has read"),
        pytest.param(None, None, 3, False, id="all is still to come"),
        pytest.param(7, None, 0, True, id="the other one has read nothing yet"),
    ],
)
def test_a_reader_has_all_of_another_one(read: int | None, other: int | None, behind: int, has_all: bool) -> None:
    assert has_read_as_far(read, other, behind=behind) is has_all
