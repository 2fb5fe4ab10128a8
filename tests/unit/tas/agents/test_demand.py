"""What a pod asks for: containers, init containers, sidecars and the overhead, as the scheduler counts them."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from tas.agents import demand
from tas.agents.demand import MAX_KEPT, MAX_KEPT_BYTES, demand_of
from tas.errors import InvalidInputError
from tas.extender.decision import Pod


def pod(spec: Any) -> Pod:
    document = Raw(msgspec.json.encode({"metadata": {}, "spec": spec}))
    return Pod(namespace="n", name="p", uid="u", labels={}, document=document)


def container(cpu: str = "", limit: str = "", *, sidecar: bool = False, **others: str) -> dict[str, Any]:
    requests = {**({"cpu": cpu} if cpu else {}), **others}
    limits = {"cpu": limit} if limit else {}
    return {
        "name": "c",
        "resources": {"requests": requests, "limits": limits},
        **({"restartPolicy": "Always"} if sidecar else {}),
    }


def test_containers_add_up_in_millicores_and_bytes() -> None:
    found = demand_of(
        pod({"containers": [container("1500m", "2", memory="64Mi"), container("0.25", memory="1k")]}), amounts=True
    )
    assert found.requests == {"cpu": 1750.0, "memory": 64 * 2**20 + 1000.0}
    assert found.limits == {"cpu": 2000.0}


@pytest.mark.parametrize(
    ("init", "containers", "cpu"),
    [
        (["100m"], ["300m", "400m"], 700),
        (["900m", "100m"], ["300m", "400m"], 900),
        (["+200m"], ["300m"], 500),
        (["+200m", "600m"], ["300m"], 800),
        (["600m", "+200m"], ["300m"], 600),
        (["+200m", "+300m"], ["1m"], 501),
    ],
)
def test_an_init_container_counts_by_the_largest_and_a_sidecar_adds(
    init: list[str], containers: list[str], cpu: int
) -> None:
    spec = {
        "initContainers": [container(text.lstrip("+"), sidecar=text.startswith("+")) for text in init],
        "containers": [container(text) for text in containers],
    }
    assert demand_of(pod(spec), amounts=True).requests == {"cpu": cpu}


def test_the_overhead_counts_as_a_request_and_makes_no_limit() -> None:
    spec = {"overhead": {"cpu": "50m", "memory": "1Ki"}, "containers": [container("100m", "300m")]}
    found = demand_of(pod(spec), amounts=True)
    assert (found.requests, found.limits) == ({"cpu": 150.0, "memory": 1024.0}, {"cpu": 350.0})


def test_an_agent_also_gets_what_each_container_asks_for() -> None:
    """Those that run together: init containers have ended by then, sidecars have not."""
    spec = {
        "initContainers": [container("900m", "1"), container("100m", "0.2", sidecar=True)],
        "containers": [container("1500m", "2", memory="64Mi"), container()],
        "overhead": {"cpu": "50m"},
    }
    found = demand_of(pod(spec), amounts=True)
    asked = [(each.requests, each.limits) for each in found.containers]
    assert asked == [
        ({"cpu": 1500.0, "memory": 64 * 2**20}, {"cpu": 2000.0}),
        ({}, {}),
        ({"cpu": 100.0}, {"cpu": 200.0}),
    ]
    assert found.overhead == {"cpu": 50.0}


@pytest.mark.parametrize("field", ["requests", "limits"])
def test_a_pod_that_asks_for_resources_as_a_whole_has_no_containers_for_agents(field: str) -> None:
    whole = {"containers": [container("1500m", "2")], "overhead": {"cpu": "50m"}, "resources": {field: {"cpu": "3"}}}
    found = demand_of(pod(whole), amounts=True)
    assert (found.containers, found.overhead) == ((), {})
    assert getattr(found, field) == {"cpu": 3050.0}


@pytest.mark.parametrize("spec", [{}, None, {"containers": None}, {"containers": [{"name": "c", "resources": None}]}])
def test_a_pod_without_requests_asks_for_nothing(spec: Any) -> None:
    found = demand_of(pod(spec), amounts=True)
    assert (found.requests, found.limits) == ({}, {})


def test_an_amount_that_is_none_names_the_container_and_the_value() -> None:
    with pytest.raises(InvalidInputError) as raised:
        demand_of(pod({"containers": [container("lots")]}), amounts=True)
    assert "pod of the request: spec.containers[0].resources.requests.cpu = 'lots': " in str(raised.value)
    # Nothing is decoded for an agent that does not need it.
    undecoded = demand_of(pod({"containers": [container("lots")]}), amounts=False)
    assert (undecoded.requests, undecoded.containers) == ({}, ())


def test_what_was_read_of_equal_resources_is_kept_up_to_a_bound() -> None:
    one, again = (demand_of(pod({"containers": [container("1500m")]}), amounts=True) for _ in range(2))
    assert again.requests is one.requests
    assert demand_of(pod({"containers": [container("1500m")], "overhead": {"cpu": "1"}}), amounts=True).requests == {
        "cpu": 2500.0
    }
    # One container beside the other, or before it, or before and beside it.
    first, second = container("1"), container("2")
    specs = (
        {"containers": [second, first]},
        {"containers": [second], "initContainers": [first]},
        {"containers": [second], "initContainers": [container("1", sidecar=True)]},
    )
    found = [demand_of(pod(spec), amounts=True).requests["cpu"] for spec in specs]
    assert found == [3000.0, 2000.0, 3000.0]
    often = demand_of(pod({"containers": [container("7")]}), amounts=True).requests
    for number in range(2 * MAX_KEPT):
        demand_of(pod({"containers": [container(f"{number}m")]}), amounts=True)
        assert demand_of(pod({"containers": [container("7")]}), amounts=True).requests is often, "always asked for"
    assert len(demand._kept) == MAX_KEPT == 256
    for long in ([container("1m")] * (MAX_KEPT_BYTES // 90), [{"name": "c"}] * (MAX_KEPT_BYTES // 64)):
        kept, new = (demand_of(pod({"containers": long}), amounts=True).requests for _ in range(2))
        assert kept == new
        assert kept is not new, "it is not kept"


def test_nobody_can_change_what_is_kept() -> None:
    found = demand_of(pod({"containers": [container("1500m")]}), amounts=True)
    for amounts in (found.requests, found.limits, found.overhead, found.containers[0].requests):
        with pytest.raises(TypeError):
            amounts["cpu"] = 1.0  # type: ignore[index]
