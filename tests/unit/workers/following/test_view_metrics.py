"""Whom last known values reject, as metrics."""

from types import SimpleNamespace

import pytest

from tas.policy.policy import PolicyKey
from tas.view.view import KeptRejections as Rejections
from workers.following import view_metrics
from workers.following.view_metrics import KeptRejections


def test_the_age_of_the_oldest_kept_value_has_a_series_while_one_rejects_a_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(view_metrics, "time", SimpleNamespace(time=lambda: 1000.0))
    found = {PolicyKey("a", "sick"): Rejections(2, 9, 400.0), PolicyKey("b", "well"): Rejections(0, 0, None)}
    shown = {
        (sample.name.removeprefix("tas_policy_"), sample.labels["policy"]): sample.value
        for family in KeptRejections(lambda: found).collect()
        for sample in family.samples
    }
    assert shown == {
        ("kept_rejections", "sick"): 2,
        ("selected_nodes", "sick"): 9,
        ("kept_age_seconds", "sick"): 600,
        ("kept_rejections", "well"): 0,
        ("selected_nodes", "well"): 0,
    }
