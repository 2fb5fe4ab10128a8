"""Views that are behind: what is written during a pause arrives together, and of each key the newest alone."""

from contextvars import ContextVar
from typing import Any

import pytest

from workers.following import followed_view
from workers.following.synced import SyncedWatch

PAUSE_SECONDS = 0.9
"""Shorter than a heartbeat of the bus, and longer than the break of `clearFor` that nobody may overlook."""

_pause: ContextVar[float] = ContextVar("pause of a view", default=0.0)


def _watch(*args: Any, **settings: Any) -> SyncedWatch:
    return SyncedWatch(*args, pace=_pause.get(), **settings)


@pytest.fixture
def views_may_be_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives each view the pause of the current task."""
    monkeypatch.setattr(followed_view, "SyncedWatch", _watch)


def set_pause(seconds: float) -> None:
    """Has the views that this task makes gather what is written. Requires `views_may_be_behind`."""
    _pause.set(seconds)
    is_patched = vars(followed_view)["SyncedWatch"] is _watch
    assert not seconds or is_patched, "the test needs the fixture `views_may_be_behind`"
