"""What Prometheus sees while something goes wrong, from real scrapes, and which alerts fire because of it.

A story has scrapes of /metrics before, during and after a fault. They are stretched to the minutes that the alerts ask
for, and promtool evaluates the rules of `deploy/alerts` over them: so nobody waits for an hour.
"""

import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, isnan
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.contract.test_alerts import ALWAYS, DEPLOY, rules

RULES = DEPLOY / "alerts" / "tas.yaml"
STEP = 15
"""The seconds between two values that promtool sees."""

BEFORE = AFTER = 25 * 60
"""The seconds before and after the fault; longer than each range of the rules."""

AGES = {"tas_notify_lag_seconds": 0, "tas_source_overdue_seconds": 5, "tas_kubernetes_silent_seconds": 12}
AGES |= dict.fromkeys(("tas_source_value_age_seconds", "tas_view_value_age_seconds", "tas_metric_late_seconds"), 5)
AGES |= {"tas_source_silent_seconds": 5, "tas_verdict_pending_seconds": 5}
"""Gauges that grow with the time, as long as the fault lasts, if they are larger than this when it has begun."""

LATENESS = {
    *("TasLabelsLate", "TasSamplesLate", "TasNotStored"),
    *("TasSourceBehind", "TasSourceValuesOld", "TasValuesLate"),
    *("TasExtenderSlow", "TasEventLoopStalls", "TasVerdictsLate"),
    *("TasApiServerRefuses", "TasLabelsFlapping"),
}
"""These may also fire in other stories: this machine is busy, and a poll is late or lost when a bus is lost; what the
API server refuses is tried again, perhaps between two scrapes; and the stories label the same nodes again and again
within minutes."""

NOT_PLAYED = {"TasWindowsIncomplete"}
"""These have only made series: 100,000 series, or ten minutes without `windows`, are too much for a story."""

USED = {
    re.sub(r"_(bucket|sum|count)$", "", name) for rule in rules() for name in re.findall(r"\btas_\w+", rule["expr"])
}
"""The metrics of which some rule uses a series."""

WAITED_FOR = {"tas_source_metrics_missing", "tas_sample_write_seconds", "tas_label_patch_seconds"}
"""Those for whose values stories wait."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """The series of one scrape by name and labels, and the names of those that count; None: the scrape failed."""

    time: float
    series: dict[str, float] | None = None
    counters: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, time: float, text: str) -> "Scrape":
        """The scrape of a text in the exposition format."""
        series: dict[str, float] = {}
        counters: set[str] = set()
        for family in text_string_to_metric_families(text):
            if not {family.name, f"{family.name}_total"} & (USED | WAITED_FOR):
                continue
            for sample in family.samples:
                labels = ", ".join(f"{name}={json.dumps(value)}" for name, value in sorted(sample.labels.items()))
                name = f'{sample.name}{{{labels}{", " * bool(labels)}instance="a", job="tas"}}'
                if not isnan(sample.value):
                    series[name] = sample.value
                    counters |= {name} if family.type in ("counter", "histogram") else set()
        return cls(time, series, counters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A fault that lasts for `seconds`, and the alerts that fire at its end, and no others.

    `during` has at least two scrapes: what they differ by happens all the time. `before` may be None: the process
    starts with the fault.
    """

    name: str
    alerts: set[str]
    before: Scrape | None
    during: Sequence[Scrape]
    after: Scrape
    seconds: float


def check(promtool: Path, stories: Iterable[Story], folder: Path) -> None:
    """Fails if other alerts than those of a story fire at the end of its fault, or any alert before or after it."""
    document = {"rule_files": [str(RULES)], "evaluation_interval": f"{STEP}s", "tests": list(map(_test, stories))}
    file = folder / "played.test.yaml"
    file.write_text(json.dumps(document))
    done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _test(story: Story) -> dict[str, object]:
    begin = 0 if story.before is None else BEFORE
    end = begin + _steps(story.seconds) * STEP
    quiet = [] if story.before is None else [_fire(begin - STEP, set())]
    return {
        "name": story.name,
        "interval": f"{STEP}s",
        "input_series": [{"series": name, "values": values} for name, values in _series(story)],
        "promql_expr_test": [*quiet, _fire(end - STEP, story.alerts), _fire(end + AFTER - STEP, set())],
    }


def _fire(at: int, alerts: set[str]) -> dict[str, object]:
    others = "|".join({*LATENESS, ALWAYS} - alerts)
    return {
        "expr": f'group by (alertname) (ALERTS{{alertstate="firing", alertname!~"{others}"}})',
        "eval_time": f"{at}s",
        "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(alerts)],
    }


def _steps(seconds: float) -> int:
    return int(seconds // STEP) + 2


def _series(story: Story) -> Iterator[tuple[str, str]]:
    first, last = story.during[0], story.during[-1]
    before = [] if story.before is None else [(story.before, story.before)] * (BEFORE // STEP)
    phases = [*before, *[(first, last)] * _steps(story.seconds), *[(story.after, story.after)] * (AFTER // STEP)]
    began = len(before)
    scrapes = {id(scrape): scrape for pair in phases for scrape in pair}.values()
    names = {name for scrape in scrapes for name in scrape.series or ()}
    for name in sorted(names):
        values = [_value(name, pair, step, began, _steps(story.seconds)) for step, pair in enumerate(phases)]
        # As Prometheus, which marks a series as stale when it is missing from a scrape.
        is_new_gap = [value is None and old is not None for old, value in pairwise([None, *values])]
        texts = ["_" if value is None else repr(value) for value in values]
        yield name, " ".join("stale" if gap else text for gap, text in zip(is_new_gap, texts, strict=True))
    yield 'up{instance="a", job="tas"}', " ".join("01"[scrape.series is not None] for scrape, _ in phases)


def _value(name: str, pair: tuple[Scrape, Scrape], step: int, began: int, steps: int) -> float | None:
    """What Prometheus sees of a series: between the two scrapes, a counter grows evenly."""
    first, last = pair
    start, end = (first.series or {}).get(name), (last.series or {}).get(name)
    if first is last or start is None or end is None:
        only = start if first is last or step == began else end
        return only and only + _shift(name, first.time, step)
    metric = name.partition("{")[0]
    if name in first.counters:
        return start + (end - start) * (step - began) / (steps - 1)
    if start > AGES.get(metric, inf):
        return end + (end - start) / (last.time - first.time) * (step - began) * STEP
    if end > start and _is_time(name):  # as it has moved on between the scrapes, it goes on to do so
        return end + _shift(name, last.time, step)
    return (start if step == began else end) + _shift(name, first.time, began)


def _shift(name: str, time: float, step: int) -> float:
    """What to add to a value that is a time, if `time` is to be that of a step."""
    return step * STEP - time if _is_time(name) else 0.0


def _is_time(name: str) -> bool:
    return name.partition("{")[0].endswith("_timestamp_seconds")
