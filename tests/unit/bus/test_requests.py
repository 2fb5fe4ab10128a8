"""When messages are gathered, and how long."""

import pytest

from bus.pull import PACE
from bus.requests import Pace


@pytest.mark.parametrize(
    ("rate", "pause"),
    [
        (0.1, 0.0),
        (50, 0.0),  # only one is expected during the longest pause
        (100, 0.025),
        (200, 0.02),
        (400, 0.01),
        (1500, 0.0),
    ],
)
def test_messages_are_gathered_until_four_have_arrived_and_not_if_they_are_rare_or_very_many(
    rate: float, pause: float
) -> None:
    assert PACE.after(rate) == pytest.approx(pause)


def test_a_pace_without_a_number_of_messages_is_always_the_longest_pause() -> None:
    pace = Pace(0.1, messages=float("inf"))
    assert pace.after(20) == 0.1
    assert pace.after(1e6) == 0.1
    assert pace.after(10) == 0.0
