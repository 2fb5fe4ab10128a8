"""What a pod requests, as kube-scheduler counts it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.allocation.pod import MAX_AMOUNT, ContainerResources, PodResources, pod_totals
from tas.errors import InvalidInputError


def container(cpu: Any = "", memory: str = "", *, sidecar: bool = False, limits: dict[str, str] | None = None) -> Any:
    requests = {name: text for name, text in (("cpu", cpu), ("memory", memory)) if text}
    return ContainerResources(requests=requests, limits=limits or {}, sidecar=sidecar)


def requests(**fields: Any) -> dict[str, int]:
    return dict(pod_totals(PodResources(**fields)).requests)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, {}, id="nothing"),
        pytest.param(
            {"containers": (container("1", "1Gi"), container("250m", "1Mi"))},
            {"cpu": 1250, "memory": 2**30 + 2**20},
            id="the sum of containers",
        ),
        pytest.param(
            {"containers": (container("1", "1Gi"),), "init_containers": (container("2"), container("3", "1Ki"))},
            {"cpu": 3000, "memory": 2**30},
            id="the largest init container, by resource",
        ),
        pytest.param(
            {"containers": (container("1"),), "init_containers": (container("500m", sidecar=True), container("2"))},
            {"cpu": 2500},
            id="an init container beside the sidecars before it",
        ),
        pytest.param(
            {"containers": (container("1"),), "init_containers": (container("2"), container("500m", sidecar=True))},
            {"cpu": 2000},
            id="a sidecar after an init container runs with the containers",
        ),
        pytest.param(
            {"containers": (container("1"),), "overhead": {"cpu": "100m", "memory": "64Mi"}},
            {"cpu": 1100, "memory": 64 * 2**20},
            id="the overhead",
        ),
        pytest.param(
            {
                "containers": (container("1", "1Gi"),),
                "pod": ContainerResources(requests={"cpu": "4", "example.com/card": "9"}),
                "overhead": {"cpu": "100m"},
            },
            {"cpu": 4100, "memory": 2**30},
            id="requests of the whole pod",
        ),
        pytest.param(
            {"containers": (container("0.1m", "0.5"), container("0.1m", "1500m"))},
            {"cpu": 1, "memory": 2},
            id="the sum is rounded up, and not each container",
        ),
        pytest.param(
            {"containers": (container("1e30", "10E"), container("1", "10E"))},
            {"cpu": MAX_AMOUNT, "memory": MAX_AMOUNT},
            id="no more than the largest amount",
        ),
    ],
)
def test_requests(fields: dict[str, Any], expected: dict[str, int]) -> None:
    assert requests(**fields) == expected


def test_a_limit_is_at_least_the_request() -> None:
    """Also if there is none; the overhead is added to limits that there are."""
    small = container("2", limits={"cpu": "1", "memory": "1Gi", "example.com/card": "1"})
    totals = pod_totals(PodResources(containers=(small,), overhead={"cpu": "1", "memory": "1"}))
    assert dict(totals.limits) == {"cpu": 2000, "memory": 2**30 + 1, "example.com/card": 1}
    assert dict(totals.bounds()) == {"cpu": 3000, "memory": 2**30 + 1, "example.com/card": 1}
    assert dict(totals.requests) == {"cpu": 3000, "memory": 1}


@pytest.mark.parametrize(
    ("fields", "field", "value"),
    [
        ({"containers": (container(), container("1x"))}, "spec.containers[1].resources.requests.cpu", "1x"),
        ({"containers": (container("-1"),)}, "spec.containers[0].resources.requests.cpu", "-1"),
        ({"init_containers": (container(memory="NaN"),)}, "spec.initContainers[0].resources.requests.memory", "NaN"),
        ({"containers": (container(limits={"cpu": ""}),)}, "spec.containers[0].resources.limits.cpu", "''"),
        ({"overhead": {"cpu": "1 "}}, "spec.overhead.cpu", "1 "),
        ({"pod": ContainerResources(requests={"memory": "x"})}, "spec.resources.requests.memory", "x"),
        ({"containers": (container([1]),)}, "spec.containers[0].resources.requests.cpu", "[1]"),
    ],
)
def test_a_quantity_that_cannot_be_read_is_named(fields: dict[str, Any], field: str, value: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        pod_totals(PodResources(**fields))
    assert field in str(error.value)
    assert value in str(error.value)


def test_a_pod_with_a_thousand_containers() -> None:
    assert requests(containers=(container("1m"),) * 1000) == {"cpu": 1000}


AMOUNTS = st.integers(0, 5000).map(lambda milli: container(f"{milli}m"))


@given(st.lists(AMOUNTS, max_size=5), st.lists(AMOUNTS, max_size=5))
def test_a_pod_requests_no_less_than_any_of_its_parts(together: list[Any], before: list[Any]) -> None:
    """And the order of the containers has no effect."""
    total = requests(containers=tuple(together), init_containers=tuple(before)).get("cpu", 0)
    for parts in (together, *([each] for each in before)):
        assert requests(containers=tuple(parts)).get("cpu", 0) <= total
    assert requests(containers=tuple(reversed(together)), init_containers=tuple(before)).get("cpu", 0) == total
