"""Which metrics a source is asked for, where authors name more than there is a place for."""

from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from tas.policy.policy import PolicyKey
from tas.samples.sample import MAX_SAMPLE_AGE
from tas.verdict.status import MetricUse
from workers.samples import wanted_metrics
from workers.samples.wanted_metrics import AGAIN_SECONDS, MAX_CONSIDERED, MAX_WANTED, WantedMetrics

HONEST = [f"honest{number}" for number in range(40)]


class Clock:
    now = 1e9

    def time(self) -> float:
        return self.now

    monotonic = time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(wanted_metrics, "time", found)
    return found


@pytest.fixture
def wanted(monkeypatch: pytest.MonkeyPatch) -> WantedMetrics:
    monkeypatch.setattr(wanted_metrics, "SyncedWatch", lambda *_, **__: None)
    return WantedMetrics(cast("Any", None), default_stale_after=60, always=("always",))


def use(wanted: WantedMetrics, namespace: str, name: str, metrics: list[str]) -> None:
    wanted._set_uses(PolicyKey(namespace, name), dict.fromkeys(map(MetricUse, metrics), 60.0))


def test_an_author_who_names_other_metrics_all_the_time_takes_no_turn_of_another(
    wanted: WantedMetrics, clock: Clock
) -> None:
    """Of a poll with thousands of metrics those came first that were new, and the others never."""
    use(wanted, "good", "p", HONEST)
    ever: set[str] = set()
    for poll in range(50):
        clock.now += 1
        use(wanted, "bad", "p", [f"bad{poll}-{number}" for number in range(300)])
        metrics = wanted.of("prometheus").keys()
        assert metrics >= {"always", *HONEST}
        assert len(metrics) <= MAX_WANTED
        ever |= metrics
    assert len(ever) <= MAX_WANTED
    use(wanted, "late", "p", [*HONEST[:1], "late"])
    assert "late" in wanted.of("prometheus")
    clock.now += MAX_SAMPLE_AGE
    assert "bad49-0" in wanted.of("prometheus"), "the places of the earlier ones are free"


def test_of_thousands_of_policies_of_a_namespace_only_some_are_looked_at(wanted: WantedMetrics, clock: Clock) -> None:
    use(wanted, "good", "p", HONEST)
    for number in range(100):
        use(wanted, "bad", f"p{number}", [f"bad{number}-{rule}" for rule in range(MAX_CONSIDERED // 20)])
    looks = 0

    class Counted(dict[MetricUse, float]):
        def items(self) -> Any:
            nonlocal looks
            looks += 1
            return super().items()

    wanted._uses = {key: Counted(uses) for key, uses in wanted._uses.items()}
    with capture_logs() as logs:
        assert wanted.of("prometheus").keys() > set(HONEST)
    assert looks == 21
    (line,) = logs
    assert (line["event"], line["source"], line["namespace"], line["most"]) == (
        "metrics_without_place", "prometheus", "bad", MAX_WANTED,
    )  # fmt: skip
    for _ in range(5):
        wanted.of("prometheus")
    assert looks == 21, "it is found once for each version"
    clock.now += AGAIN_SECONDS
    wanted.of("prometheus")
    assert looks == 42
