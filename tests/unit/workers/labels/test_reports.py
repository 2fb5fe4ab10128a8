"""Metrics and log lines of `labels`."""

import time
from typing import cast

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from tas.enforcing.labels import DroppedLabel
from tas.policy.policy import PolicyKey
from workers.kubernetes.client import KubernetesClient
from workers.labels.reports import LabelReports
from workers.reconcile.work_queue import WorkQueue


async def _never(_: str) -> None: ...


class Reported:
    """The reports of a worker without an API server, and their counts."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        no_client = cast("KubernetesClient", None)
        self.reports = LabelReports(no_client, self._registry, WorkQueue(_never, max_concurrent=1))

    def count(self, metric: str, **labels: str) -> float:
        found = self._registry.get_sample_value(metric, labels)
        assert found is not None
        return found

    def patched(self, changes: dict[str, str | None], *, orphans: tuple[str, ...] = ()) -> None:
        now = time.monotonic()
        self.reports.patched("n", changes, orphans=orphans, read_at=now, verdict_created=time.time())


def test_each_change_of_a_label_is_counted_once_by_its_kind() -> None:
    reported = Reported()
    reported.patched({"a": "1", "b": None, "c": None, "d": None}, orphans=("c", "d"))
    counts = {change: reported.count("tas_label_changes_total", change=change) for change in ("set", "removed")}
    assert counts == {"set": 1, "removed": 1}
    assert reported.count("tas_label_changes_total", change="orphan_removed") == 2
    assert reported.count("tas_label_patches_total", result="patched") == 1


@pytest.mark.parametrize(
    ("changes", "orphans", "measured"),
    [
        pytest.param({"a": "1"}, (), 1, id="a verdict's label"),
        pytest.param({"a": None}, ("a",), 0, id="an orphan, which no verdict mentions"),
        pytest.param({}, (), 0, id="all refused"),
    ],
)
def test_only_patches_by_a_verdict_are_measured(
    changes: dict[str, str | None], orphans: tuple[str, ...], measured: int
) -> None:
    reported = Reported()
    reported.patched(changes, orphans=orphans)
    assert reported.count("tas_label_patch_seconds_count") == measured


def test_each_orphan_that_a_policy_keeps_is_counted() -> None:
    reported = Reported()
    reported.reports.kept("n", {"a", "b"})
    assert reported.count("tas_label_orphans_kept_total") == 2


def test_a_foreign_label_is_logged_once_and_counted_while_it_exists() -> None:
    reported, counts = Reported(), []
    with capture_logs() as logs:
        for labels in ({"a"}, {"a", "b"}, {"a", "b"}, {"b"}, set()):
            reported.reports.foreign("n", frozenset(labels))
            counts.append(reported.count("tas_labels_foreign"))
    assert counts == [1, 2, 2, 1, 0]
    assert [line["labels"] for line in logs] == [["a"], ["b"]]


def test_a_foreign_value_is_logged_and_counted_while_it_keeps_a_label_from_being_set() -> None:
    reported, counts = Reported(), []
    with capture_logs() as logs:
        for labels in ({"p": "ssd"}, {"p": "ssd", "q": "1"}, {"q": "1"}, {}):
            reported.reports.foreign_values("n", labels)
            counts.append(reported.count("tas_label_values_foreign"))
        reported.reports.foreign_values("n", {"p": "ssd"})
        reported.reports.forget("n")
    assert counts == [1, 2, 1, 0]
    assert reported.count("tas_label_values_foreign") == 0
    assert [(line["event"], line["node"], line["label"], line["value"]) for line in logs] == [
        ("label_value_foreign", "n", "p", "ssd"),
        ("label_value_foreign", "n", "q", "1"),
    ]


def test_a_dropped_label_of_a_verdict_is_logged_with_its_policy_and_counted_while_the_verdict_has_it() -> None:
    reported, counts = Reported(), []
    zone = DroppedLabel(PolicyKey("default", "p"), "topology.kubernetes.io/zone", "b")
    host = DroppedLabel(PolicyKey("default", "q"), "kubernetes.io/hostname", "x")
    with capture_logs() as logs:
        for dropped in ({zone}, {zone, host}, {zone, host}, set()):
            reported.reports.dropped("n", frozenset(dropped))
            counts.append(reported.count("tas_verdict_labels_dropped"))
        reported.reports.dropped("n", frozenset({zone}))
        reported.reports.forget("n")
    assert counts == [1, 2, 2, 0]
    assert reported.count("tas_verdict_labels_dropped") == 0
    assert [(line["event"], line["node"], line["policy"], line["label"]) for line in logs] == [
        ("verdict_label_dropped", "n", "default/p", zone.label),
        ("verdict_label_dropped", "n", "default/q", host.label),
    ]
