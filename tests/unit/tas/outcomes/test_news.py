"""What is new about pods."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tas.outcomes.news import (
    LASTED_SECONDS,
    MAX_LABEL_BYTES,
    MAX_RUNS,
    MAX_SHARED,
    OLDEST_SECONDS,
    News,
    PodNews,
    SeenPod,
    kept_labels,
)
from tas.outcomes.outcome import Outcome, Placed, Result
from tas.outcomes.runs import Run

NOW = 1_000_000.0


def run(result: Result, restart: int = 0, container: str = "main", **times: float) -> Run:
    return Run(container=container, restart=restart, result=result, **times)


def pod(*runs: Run, **fields: Any) -> SeenPod:
    usual: dict[str, Any] = {"namespace": "default", "uid": "u", "node": "n", "placed_at": NOW, "runs": runs}
    usual["requests"] = {"cpu": 100.0}
    return SeenPod(**(usual | fields))


def words(news: list[News]) -> list[str]:
    return [
        "placed" if isinstance(each.event, Placed) else f"{each.event.result} {each.event.restart}" for each in news
    ]


def test_a_placement_is_news_once() -> None:
    news = PodNews()
    (found,) = news.see(pod(), NOW + 1)
    assert found == (Placed(namespace="default", uid="u", node="n", at=NOW, requests={"cpu": 100.0}), NOW)
    assert news.see(pod(labels={"a": "b"}), NOW + 2) == []
    assert not news.wants_requests("u", NOW, NOW, listed=False)
    assert news.see(pod(uid="unreadable", requests=None), NOW) == []


def test_a_run_is_news_when_it_has_lasted_and_when_it_has_ended() -> None:
    news = PodNews()
    news.see(pod(run(Result.RUNNING, started=NOW - 5)), NOW)
    assert news.lasting(NOW + LASTED_SECONDS - 6) == []
    (lasted,) = news.lasting(NOW + LASTED_SECONDS - 5)
    assert isinstance(lasted.event, Outcome)
    assert (lasted.event.result, lasted.event.at) == (Result.RUNNING, NOW + LASTED_SECONDS - 5)
    assert lasted.event.namespace == "default"
    assert news.lasting(NOW + 1000) == []
    (ended,) = news.see(pod(run(Result.FAILED, finished=NOW + 100), labels={"app": "web"}), NOW + 101)
    assert isinstance(ended.event, Outcome)
    assert (ended.event.labels, ended.happened) == ({"app": "web"}, NOW + 100)
    assert news.see(pod(run(Result.FAILED, finished=NOW + 100)), NOW + 102) == []


def test_a_run_that_ends_soon_is_news_only_by_its_end() -> None:
    """Else a container that keeps failing would be half good."""
    news = PodNews()
    assert words(news.see(pod(run(Result.RUNNING)), NOW)) == ["placed"]
    assert words(news.see(pod(run(Result.FAILED), run(Result.RUNNING, 1)), NOW + 5)) == ["failed 0"]
    assert words(news.see(pod(run(Result.FAILED, 1)), NOW + 10)) == ["failed 1"]
    assert news.lasting(NOW + 1000) == []


def test_a_clock_of_a_node_that_is_ahead_postpones_nothing() -> None:
    news = PodNews()
    news.see(pod(run(Result.RUNNING, started=NOW + 9999)), NOW)
    assert words(news.lasting(NOW + LASTED_SECONDS)) == ["running 0"]


def test_how_a_deleted_pod_ends_is_no_news() -> None:
    news = PodNews()
    news.see(pod(run(Result.RUNNING)), NOW)
    assert news.see(pod(run(Result.FAILED), is_leaving=True), NOW + 1) == []
    news.see(pod(run(Result.RUNNING), uid="gone"), NOW)
    news.forget("gone")
    assert news.lasting(NOW + 1000) == []
    assert len(news) == 1
    news.see(pod(run(Result.RUNNING), uid="reset"), NOW)
    news.see(pod(uid="reset"), NOW)  # its status tells of no run any more
    assert news.lasting(NOW + 1000) == []
    assert len(news) == 2
    news.keep(set())
    assert len(news) == 0


def test_of_a_list_what_is_long_ago_is_no_news() -> None:
    """Nor what may be: else each start of a follower would repeat it."""
    news = PodNews()
    assert not news.wants_requests("u", NOW - OLDEST_SECONDS, NOW, listed=True)
    assert not news.wants_requests("u", None, NOW, listed=True)
    assert news.wants_requests("u", None, NOW, listed=False)
    old, new = NOW - OLDEST_SECONDS, NOW - OLDEST_SECONDS + 1
    assert news.see(pod(run(Result.FAILED, finished=old), uid="a", placed_at=old), NOW, listed=True) == []
    assert news.see(pod(run(Result.FAILED), uid="b", placed_at=None), NOW, listed=True) == []
    assert news.see(pod(run(Result.RUNNING, started=1.0), uid="c", placed_at=1.0), NOW, listed=True) == []
    assert news.lasting(NOW + 1000) == []
    found = news.see(pod(run(Result.FAILED, finished=new), uid="d", placed_at=new), NOW, listed=True)
    assert words(found) == ["placed", "failed 0"]
    assert words(news.see(pod(run(Result.FAILED), uid="e", placed_at=None), NOW)) == ["placed", "failed 0"]


def test_the_labels_of_an_event_have_a_limit_and_those_that_name_a_kind_have_room() -> None:
    many = {f"a{number}": "x" * 60 for number in range(100)}
    kept = kept_labels({**many, "app": "web", "podtype": "p"})
    assert {"app", "podtype", "a0"} < kept.keys()
    assert sum(len(name) + len(value) for name, value in kept.items()) <= MAX_LABEL_BYTES
    assert kept_labels({"b": "1", "a": "2"}) == {"a": "2", "b": "1"}


def test_labels_that_fill_the_room_exactly_are_kept() -> None:
    full = {"app": "x" * (MAX_LABEL_BYTES - 3)}
    assert kept_labels(full) == full
    assert kept_labels({"app": full["app"] + "x"}) == {}


def test_runs_of_pods_that_differ_are_kept_once_per_pod_at_most() -> None:
    """Restarts that no two pods share: what is shared has a limit, and nothing becomes news again."""
    news = PodNews()
    for number in range(3 * MAX_SHARED):
        news.see(pod(run(Result.FAILED, number), uid=f"u{number}"), NOW)
        assert len(news._shared) <= MAX_SHARED + 1
    assert news.see(pod(run(Result.FAILED, 0), uid="u0"), NOW) == []


def test_the_requests_of_an_event_have_a_limit() -> None:
    requests = {f"a/{number}": 1.0 for number in range(100)} | {"memory": 5.0, "cpu": 7.0}
    ((event, _),) = PodNews().see(pod(requests=requests), NOW)
    assert isinstance(event, Placed)
    assert len(event.requests) == 16
    assert (event.requests["cpu"], event.requests["memory"]) == (7.0, 5.0)


HISTORIES = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(0, 2),
        st.sampled_from(list(Result)),
        st.booleans(),
        st.floats(0, 100),
        st.booleans(),
    ),
    max_size=40,
)


@given(HISTORIES)
def test_nothing_is_news_twice_in_the_life_of_a_pod(history: list[tuple[str, int, Result, bool, float, bool]]) -> None:
    """Whatever is listed again; and each event that is kept fits its pod."""
    news, now, told = PodNews(), NOW, []
    restarts = {"a": 0, "b": 0}
    ended: dict[str, Run] = {}
    for uid, step, result, listed, seconds, _ in history:
        now += seconds
        restart = restarts[uid] = restarts[uid] + min(step, 1)
        before = ended.get(uid)
        if before is not None and before.restart == restart:
            seen: tuple[Run, ...] = (before,)  # what has ended stays so
        else:
            present = run(result, restart, finished=now) if result is not Result.RUNNING else run(result, restart)
            seen = (present,) if before is None or before.restart != restart - 1 else (before, present)
            if result is not Result.RUNNING:
                ended[uid] = present
        told += [each.event for each in news.see(pod(*seen, uid=uid), now, listed=listed)]
        told += [each.event for each in news.lasting(now)]
    keys = [
        (each.uid, "placed") if isinstance(each, Placed) else (each.uid, each.container, each.restart, each.result)
        for each in told
    ]
    assert len(set(keys)) == len(keys)


def test_only_the_first_containers_of_a_status_are_news() -> None:
    news = PodNews()
    runs = [run(Result.RUNNING, container=f"c{number}", started=NOW) for number in range(5000)]
    news.see(pod(*runs), NOW)
    assert len(news.lasting(NOW + LASTED_SECONDS)) == 2 * MAX_RUNS
