"""A configuration is accepted exactly if the real scheduler of its version starts with it (facts.md c72)."""

from collections import Counter
from collections.abc import Callable

import pytest

from tas.configuring.configuration import with_extenders
from tas.configuring.published import FIELDS, NEWEST
from tas.configuring.validating import problems
from tas.errors import InvalidInputError
from tests.unit.growth import grows_linearly
from tests.unit.tas.configuring.corpus import (
    FORMS,
    GROUP,
    arguments,
    documents,
    election,
    entry,
    names,
    plugins,
    starts,
    strategy,
)

V1 = {"apiVersion": f"{GROUP}/v1", "kind": "KubeSchedulerConfiguration"}
COSCHEDULING = plugins(multiPoint=names("Coscheduling"))


@pytest.mark.parametrize("minor", FORMS)
def test_accepted_is_what_the_scheduler_starts_with(minor: int) -> None:
    real = starts(minor)
    found = {name: problems(document, minor) for name, document in documents(minor)}
    wrong = {name: each for name, each in found.items() if real[name] is bool(each)}
    assert wrong == {}
    assert found.keys() == real.keys()
    # Both kinds are many.
    assert min(Counter(real.values()).values()) > 50


@pytest.mark.parametrize(
    ("fields", "place", "reason"),
    [
        ({"metadata": {}}, "metadata", "is no field"),
        ({"Parallelism": 8}, "Parallelism", "is spelled parallelism"),
        (entry(enableHttps=True), "extenders[0].enableHttps", "is spelled enableHTTPS"),
        (COSCHEDULING, "profiles[0].plugins.multiPoint.enabled[0].name", "--allow-plugin Coscheduling"),
        ({"leaderElection": {"resourceLock": "configmapsleases"}}, "leaderElection.resourceLock", "must be leases"),
        ({"parallelism": 2**31}, "parallelism", "must be a whole number of 32 bits"),
    ],
)
def test_a_problem_names_the_field_the_value_and_the_remedy(fields: dict[str, object], place: str, reason: str) -> None:
    (problem,) = problems(V1 | fields, 36)
    assert problem.place == place
    assert reason in problem.reason


def test_the_utilization_of_a_shape_rises_from_point_to_point() -> None:
    shape = [{"utilization": 0, "score": 0}, {"utilization": 50, "score": 5}, {"utilization": 50, "score": 9}]
    scoring = strategy("RequestedToCapacityRatio", requestedToCapacityRatio={"shape": shape})
    (problem,) = problems(V1 | scoring, 36)
    assert (problem.value, problem.place.rpartition(".shape")[2]) == (50, "[2].utilization")


@pytest.mark.parametrize(
    "tls", [{"keyData": "SECRET!"}, {"keydata": "SECRET"}, {"more": {"keyData": "SECRET"}}, [{"keyData": "SECRET"}]]
)
def test_no_private_key_is_in_an_error(tls: object) -> None:
    with pytest.raises(InvalidInputError, match="tlsConfig") as caught:
        with_extenders(V1 | entry(tlsConfig=tls), 36, (), None)
    assert "SECRET" not in str(caught.value)


def test_a_plugin_that_is_allowed_is_accepted_and_no_other() -> None:
    both = plugins(filter=names("Coscheduling", "Other"))
    (problem,) = problems(V1 | both, 36, frozenset({"Coscheduling"}))
    assert problem.value == "Other"


def test_a_plugin_that_is_allowed_may_be_the_only_one_that_sorts() -> None:
    document = V1 | plugins(queueSort=names("Coscheduling", disabled=("*",)))
    assert problems(document, 36, frozenset({"Coscheduling"})) == []


@pytest.mark.parametrize("fields", [{"newField": 1}, plugins(filter=names("NewPlugin"))])
def test_what_a_newer_version_may_have_is_a_notice(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError, match=r"newField|NewPlugin"):
        with_extenders(V1 | fields, NEWEST, (), None)
    _, (notice,) = with_extenders(V1 | fields, NEWEST + 1, (), None)
    assert "newField" in notice or "profiles[0].plugins.filter.enabled[0].name" in notice
    with pytest.raises(InvalidInputError, match="parallelism"):
        with_extenders(V1 | fields | {"parallelism": 0}, NEWEST + 1, (), None)


def test_each_published_field_has_a_name_and_a_kind_with_its_fields() -> None:
    """A struct without a name in JSON is inlined, and is no field (encoding/json)."""
    simple = {"string", "bool", "int32", "int64", "float32", "duration", "any", "bytes"}
    for name, fields in FIELDS.items():
        assert all(fields), name
        assert {text.split()[0].strip("[]{}") for text in fields.values()} <= simple | FIELDS.keys()


@pytest.mark.parametrize("minor", [19, 36, 37, 38])
@pytest.mark.parametrize("field", ["enableProfiling", "enableContentionProfiling"])
def test_every_version_reads_whether_it_can_be_profiled(minor: int, field: str) -> None:
    document = V1 | {"apiVersion": f"{GROUP}/v1beta1" if minor == 19 else V1["apiVersion"], field: False}
    assert problems(document, minor) == []
    assert with_extenders(V1 | {field: False}, 37, (), None) == (V1 | {field: False}, [])
    with pytest.raises(InvalidInputError, match="must be true or false"):
        with_extenders(V1 | {field: "no"}, 37, (), None)


def test_a_field_of_another_version_with_other_capitals_is_no_field_of_a_newer_one() -> None:
    """A newer version may have a field that nobody knows here, but spells none otherwise than before."""
    (problem,) = problems({"apiVersion": f"{GROUP}/v1beta1", "kind": V1["kind"], "Parallelism": 8}, 19)
    assert problem.reason == "is no field that kube-scheduler 1.19 has here"
    with pytest.raises(InvalidInputError, match=r"HealthzBindAddress.*is no field that kube-scheduler"):
        with_extenders(V1 | {"HealthzBindAddress": ""}, NEWEST + 1, (), None)
    with pytest.raises(InvalidInputError, match="is spelled enableProfiling"):
        with_extenders(V1 | {"EnableProfiling": False}, NEWEST + 1, (), None)


def test_a_lock_that_the_next_version_has_not_is_refused_when_the_form_is_converted() -> None:
    old = {"apiVersion": f"{GROUP}/v1beta3", "kind": V1["kind"], "leaderElection": {"resourceLock": "configmapsleases"}}
    assert with_extenders(old, 26, (), None)[0] == old
    with pytest.raises(InvalidInputError, match=r"leaderElection\.resourceLock = 'configmapsleases': must be leases"):
        with_extenders(old, 29, (), None)


@pytest.mark.parametrize(
    ("minor", "fields", "place"),
    [
        (22, {"healthzBindAddress": "0.0.0.0:" + "1" * 5000}, "healthzBindAddress"),
        (36, election(leaseDuration="9999999h"), "leaderElection.leaseDuration"),
        (36, election(retryPeriod="1" * 5000 + "s"), "leaderElection.retryPeriod"),
        (36, plugins(filter=names("NodeName", "NodeName")), "profiles[0].plugins.filter.enabled[1].name"),
    ],
)
def test_a_value_that_nobody_can_read_is_a_problem_of_its_field(
    minor: int, fields: dict[str, object], place: str
) -> None:
    form = "v1" if minor > 22 else "v1beta2"
    (problem,) = problems(V1 | {"apiVersion": f"{GROUP}/{form}"} | fields, minor)
    assert problem.place == place


def test_arguments_without_a_published_type_may_have_any_values() -> None:
    """Those of 1.19, of which this version has no types."""
    args = {"resources": [{"name": ["a"]}, {"name": ["a"]}], "addedAffinity": {"x": "y"}}
    document = V1 | {"apiVersion": f"{GROUP}/v1beta1"} | arguments("NodeResourcesBalancedAllocation", args)
    assert problems(document, 19) == []


def test_many_plugins_are_compared_in_linear_time() -> None:
    def prepare(size: int) -> Callable[[], object]:
        document = V1 | plugins(filter=names(*(f"p{number}" for number in range(size))))
        return lambda: problems(document, 36)

    assert grows_linearly(prepare, 16_000)


def test_plugins_that_are_indented_too_little_are_unknown_fields() -> None:
    """`enabled` of `score`, which is beside it."""
    found = problems(V1 | plugins(score=None, enabled=[{"name": "ImageLocality"}]), 36)
    assert [(each.place, each.reason) for each in found] == [
        ("profiles[0].plugins.enabled", "is no field that kube-scheduler 1.36 has here")
    ]
