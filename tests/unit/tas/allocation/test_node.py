"""The allocation of a node."""

from math import inf

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.records.allocations import decode_allocation
from bus.records.codec import encode
from tas.allocation.node import (
    MAX_RECENT,
    MAX_RECENT_BYTES,
    MAX_RESOURCES,
    RECENT_SECONDS,
    NodeAllocation,
    PlacedPod,
    allocated,
    in_flight,
    is_same,
    recent_bytes,
)
from tas.allocation.pod import MAX_AMOUNT, PodTotals
from tas.errors import InvalidInputError

NOW = 10_000.0


def placed(cpu: int, *, ago: float | None = inf) -> PlacedPod:
    at = None if ago is None else NOW - ago
    return PlacedPod(totals=PodTotals(requests=(("cpu", cpu),), limits=(("cpu", 2 * cpu),)), placed_at=at)


def of(*pods: PlacedPod) -> NodeAllocation:
    return allocated("u", {"cpu": 8000}, {"cpu": 7000}, pods, NOW)


def test_defect_a1_the_sums_of_the_pods() -> None:
    found = of(placed(100), placed(250, ago=None), placed(5, ago=3.0))
    assert found.requested == {"cpu": 355, "pods": 3}
    assert found.limited == {"cpu": 710}
    assert (found.capacity, found.allocatable) == ({"cpu": 8000}, {"cpu": 7000})
    assert [each.at for each in found.recent] == [NOW - 3.0]


def test_a_pod_that_cannot_be_read_is_counted_but_adds_nothing() -> None:
    found = of(placed(100), PlacedPod(totals=None, placed_at=NOW))
    assert (found.unreadable, found.requested) == (1, {"cpu": 100, "pods": 2})


def test_defect_t2_pods_in_flight_are_those_that_were_placed_since() -> None:
    found = of(placed(1, ago=10.0), placed(10, ago=20.0), placed(100, ago=30.0), placed(1000, ago=RECENT_SECONDS))
    assert [in_flight(found.recent, "cpu", NOW - ago) for ago in (5.0, 20.0, 25.0, 10 * RECENT_SECONDS)] == [
        0,
        1,
        11,
        111,
    ]
    assert in_flight(found.recent, "memory", 0.0) == 0


def test_only_the_newest_pods_are_listed() -> None:
    found = of(*(placed(1, ago=float(number)) for number in range(2 * MAX_RECENT)))
    assert [each.at for each in found.recent] == [NOW - number for number in range(MAX_RECENT)]
    assert found.requested["cpu"] == 2 * MAX_RECENT


def test_nothing_is_written_only_because_pods_are_not_new_any_more() -> None:
    pods = [placed(1, ago=10.0), placed(2, ago=RECENT_SECONDS - 5)]
    before = allocated("u", {}, {}, pods, NOW)
    later = allocated("u", {}, {}, pods, NOW + 10)
    assert (len(before.recent), len(later.recent)) == (2, 1)
    assert is_same(before, later)
    assert not is_same(before, allocated("u", {}, {}, pods[:1], NOW))
    assert not is_same(before, msgspec.structs.replace(before, uid="v"))
    swapped = [placed(1, ago=11.0), placed(2, ago=RECENT_SECONDS - 5)]
    assert not is_same(before, allocated("u", {}, {}, swapped, NOW))


def test_a_placement_in_the_far_future_is_not_new() -> None:
    """Else it would count as in flight for ever."""
    found = of(placed(1, ago=-RECENT_SECONDS - 1), placed(10, ago=-5.0))
    assert [each.at for each in found.recent] == [NOW + 5.0]
    assert found.requested == {"cpu": 11, "pods": 2}


def names(count: int, length: int = 317) -> list[str]:
    """The longest names of resources that the API server accepts."""
    return [f"{number:05}.".ljust(length, "x") for number in range(count)]


def test_a_record_stays_small_whatever_the_pods_request() -> None:
    """And the newest new pods are those that are left."""
    has = dict.fromkeys(names(2 * MAX_RESOURCES), MAX_AMOUNT)
    requests = tuple(dict.fromkeys(names(5000), MAX_AMOUNT).items())
    pod = PodTotals(requests=(("cpu", 1), *requests), limits=(("memory", 1), *requests))
    pods = [PlacedPod(totals=pod, placed_at=NOW - number) for number in range(30)]
    found = allocated("u", {"cpu": 8000} | has, has, pods, NOW)
    counted = names(MAX_RESOURCES)
    assert list(found.capacity) == [*counted, "cpu"]
    assert list(found.requested) == [*counted, "cpu", "pods"]
    assert found.requested["cpu"] == len(pods)
    assert found.recent == ()  # one of them has 64 names of 317 bytes
    data = encode(found)
    assert 60_000 < len(data) < 128 * 1024
    assert decode_allocation(data) == found


def test_the_new_pods_of_a_node_have_so_many_bytes_at_most() -> None:
    pod = PodTotals(requests=tuple((name, MAX_AMOUNT) for name in ("cpu", *names(1))))
    pods = [PlacedPod(totals=pod, placed_at=NOW - number / 7) for number in range(MAX_RECENT)]
    found = allocated("u", dict.fromkeys(names(1), 1), {}, pods, NOW)
    size, bound = len(encode(found.recent)), sum(map(recent_bytes, found.recent))
    assert size <= bound <= MAX_RECENT_BYTES < bound + recent_bytes(found.recent[0])
    assert [each.at for each in found.recent] == [NOW - number / 7 for number in range(len(found.recent))]
    assert 10 < len(found.recent) < MAX_RECENT
    assert decode_allocation(encode(found)) == found


def test_all_new_pods_with_the_usual_resources_are_listed() -> None:
    requests = tuple((name, MAX_AMOUNT) for name in ("cpu", "ephemeral-storage", "memory"))
    pods = [PlacedPod(totals=PodTotals(requests=requests), placed_at=NOW - number / 7) for number in range(MAX_RECENT)]
    assert len(allocated("u", {}, {}, pods, NOW).recent) == MAX_RECENT


def test_a_resource_that_a_node_does_not_have_is_not_counted() -> None:
    pod = PodTotals(requests=(("cpu", 1), ("example.com/card", 1), ("memory", 1)), limits=(("example.com/card", 1),))
    assert "example.com/card" in allocated("u", {}, {"example.com/card": 1}, [PlacedPod(totals=pod)], NOW).requested
    found = allocated("u", {"cpu": 1, "example.com/disk": 1}, {}, [PlacedPod(totals=pod, placed_at=NOW)], NOW)
    assert (found.requested, found.limited) == ({"cpu": 1, "memory": 1, "pods": 1}, {"cpu": 1, "memory": 1})
    assert found.recent[0].requests == (("cpu", 1), ("memory", 1))
    assert found.capacity == {"cpu": 1, "example.com/disk": 1}


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.none() | st.integers(0, 10**20)), max_size=30))
def test_the_sums_follow_from_the_pods_that_are_left_and_not_from_what_came_before(
    changes: list[tuple[str, int | None]],
) -> None:
    """Pods come, change and go (None); a second replay of the same gives the same."""

    def replayed() -> NodeAllocation:
        pods: dict[str, PlacedPod] = {}
        for name, cpu in changes:
            pods.pop(name, None)
            if cpu is not None:
                pods[name] = placed(cpu, ago=1.0)
        return of(*pods.values())

    left = {name: cpu for name, cpu in dict(changes).items() if cpu is not None}
    assert replayed() == replayed()
    assert replayed().requested == {"pods": len(left)} | ({"cpu": min(sum(left.values()), MAX_AMOUNT)} if left else {})


@given(st.lists(st.tuples(st.integers(0, 10**6), st.none() | st.floats(0.0, 2000.0)), max_size=20), st.randoms())
def test_the_order_of_the_pods_has_no_effect(pods: list[tuple[int, float | None]], random: object) -> None:
    found = [placed(cpu, ago=ago) for cpu, ago in pods]
    shuffled = found.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert of(*found) == of(*shuffled)
    assert decode_allocation(encode(of(*found))) == of(*found)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"requested": {"cpu": -1}}, "requested.cpu"),
        ({"capacity": {"cpu": MAX_AMOUNT + 1}}, "capacity.cpu"),
        ({"limited": {"cpu": 10**400}}, "limited.cpu"),
        ({"allocatable": dict.fromkeys(map(str, range(MAX_RESOURCES + 5)), 1)}, "allocatable = 69"),
        ({"unreadable": -1}, "unreadable"),
        ({"recent": [[1.0, []]] * (MAX_RECENT + 1)}, "recent = 111"),
        ({"recent": [[1.0, [["x" * MAX_RECENT_BYTES, 1]]]]}, "recent = 16434"),
        ({"recent": [[1.0, [["é" * 8190, 1]]]]}, "recent = 16430"),
        ({"recent": [[1.0, [["cpu", 1]]], [1.0, [["cpu", -1]]]]}, "recent.1..cpu = -1"),
        ({"recent": [[1.0, [["cpu", 10**400]]]]}, "recent.0..cpu"),
        ({"uid": 1}, "body"),
        ({"capacity": {"cpu": 1.5}}, "body"),
    ],
)
def test_a_record_that_cannot_be_is_refused(change: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInputError, match=field):
        decode_allocation(msgspec.json.encode({"uid": "u"} | change))
