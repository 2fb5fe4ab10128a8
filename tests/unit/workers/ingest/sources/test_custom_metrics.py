"""How long a metric that times out is skipped."""

from itertools import pairwise

from workers.ingest.sources.custom_metrics import PAUSE_SECONDS, _Skipped


def test_the_pause_doubles_with_each_timeout_up_to_the_longest() -> None:
    first, longest = PAUSE_SECONDS
    skipped: list[_Skipped] = []
    for _ in range(10):
        skipped.append(_Skipped("slow", 100.0, skipped[-1] if skipped else None))
    pauses = [each.until - 100.0 for each in skipped]
    assert pauses[0] == first
    assert all(later == min(2 * earlier, longest) for earlier, later in pairwise(pauses))
    assert pauses[-1] == longest == 60.0
