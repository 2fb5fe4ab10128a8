"""Has the scheduler come back after its manifest changed?"""

import pytest

from tas.configuring.restart import Restart

OLD, NEW = "old", "new"


@pytest.mark.parametrize(
    ("before", "own", "seen", "back"),
    [
        (OLD, True, [OLD, None, NEW, NEW, NEW], True),
        (OLD, True, [OLD, NEW, NEW, NEW], True),
        (OLD, True, [OLD, OLD, OLD, OLD], False),
        # Busy for a moment is no restart, if a restart has a new certificate.
        (OLD, True, [OLD, None, OLD, OLD, OLD], False),
        (OLD, False, [OLD, None, OLD, OLD, OLD], True),
        (OLD, False, [OLD, OLD, OLD, OLD, OLD], False),
        # It did not answer before: any answer is new.
        (None, True, [None, NEW, NEW, NEW], True),
        # It starts again and again.
        (OLD, True, [None, NEW, None, NEW, None, NEW, NEW], False),
        (OLD, True, [None, None], False),
    ],
)
def test_the_scheduler_is_back_after_a_restart_and_two_steady_seconds(
    before: str | None, *, own: bool, seen: list[str | None], back: bool
) -> None:
    """One look each second."""
    restart = Restart(before, own_certificate=own, steady=2)
    found = [restart.saw(float(at), certificate) for at, certificate in enumerate(seen)]
    assert found == [False] * (len(seen) - 1) + [back]


def test_a_scheduler_that_is_slow_for_a_moment_has_not_started_again() -> None:
    restart = Restart(OLD, own_certificate=False, steady=0)
    assert not restart.saw(0.0, OLD)
    assert not restart.saw(1.0, None, is_slow=True)
    assert not restart.saw(2.0, OLD)
    assert not restart.saw(3.0, None)
    assert restart.saw(4.0, OLD)
