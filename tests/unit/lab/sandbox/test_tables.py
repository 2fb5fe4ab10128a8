"""Ages and paths in tables; the contract suite tests the tables."""

from datetime import UTC, datetime, timedelta

import pytest

from lab.sandbox.tables import age, at

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("since", "text"),
    [
        (timedelta(0), "0s"),
        (timedelta(seconds=-3), "0s"),
        (timedelta(seconds=119), "119s"),
        (timedelta(minutes=2), "2m"),
        (timedelta(minutes=9, seconds=59), "9m59s"),
        (timedelta(minutes=10, seconds=59), "10m"),
        (timedelta(minutes=179), "179m"),
        (timedelta(hours=3), "3h"),
        (timedelta(hours=7, minutes=59), "7h59m"),
        (timedelta(hours=47), "47h"),
        (timedelta(days=2), "2d"),
        (timedelta(days=7, hours=23), "7d23h"),
        (timedelta(days=400), "400d"),
    ],
)
def test_ages_have_the_form_of_kubernetes(since: timedelta, text: str) -> None:
    assert age((NOW - since).strftime("%Y-%m-%dT%H:%M:%SZ"), NOW) == text


@pytest.mark.parametrize("since", [None, "", 3])
def test_without_a_time_the_age_is_unknown(since: object) -> None:
    assert age(since, NOW) == "<unknown>"


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".a.b", 1),
        (".a.c", None),
        (".a.b.c", None),
        ('.list[?(@.type=="y")].status', "here"),
        ('.list[?(@.type=="z")].status', None),
        ('.a[?(@.type=="y")].status', None),
    ],
)
def test_paths_of_columns(path: str, found: object) -> None:
    stored = {"a": {"b": 1}, "list": [{"type": "x"}, {"type": "y", "status": "here"}]}
    assert at(path, stored) == found
