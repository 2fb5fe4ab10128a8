"""When messages are gathered, and how long."""

import pytest

from bus.pull import PACE
from bus.requests import Pace


@pytest.mark.parametrize(
    ("received", "seconds", "pause"),
    [
        (1, 60.0, 0.0),
        (4, 0.08, 0.0),  # 50 a second: only one is expected during the longest pause
        (4, 0.04, 0.025),  # 100 a second
        (4, 0.02, 0.02),
        (12, 0.008, 0.008 / 3),  # 1,500 a second
        (100, 0.0, 0.0),
    ],
)
def test_messages_are_gathered_until_four_have_arrived_and_not_if_they_are_rare(
    received: int, seconds: float, pause: float
) -> None:
    assert PACE.after(received, seconds) == pytest.approx(pause)


def test_a_pace_without_a_number_of_messages_is_always_the_longest_pause() -> None:
    pace = Pace(0.1, messages=float("inf"))
    assert pace.after(2, 0.1) == 0.1
    assert pace.after(1000, 0.001) == 0.1
    assert pace.after(1, 0.1) == 0.0
