"""The checks of the descheduler."""

from collections.abc import Collection
from typing import Any

import pytest

from tas.diagnosis.descheduler import DeschedulerFacts, NodeState, check_descheduler, is_descheduler, version_of
from tas.diagnosis.finding import Missing, Severity
from tests.unit.tas.diagnosis.found import bad
from tests.unit.tas.diagnosis.samples import policy

REPOSITORY = "registry.k8s.io/descheduler/descheduler"


def nodes(*ready: bool, offers: bool = False) -> list[NodeState]:
    return [NodeState(f"n{number}", each, offers) for number, each in enumerate(ready)]


def found(
    images: Collection[str] | Missing = (f"{REPOSITORY}:v0.36.0",),
    *,
    of: Any = None,
    requested: bool = False,
    strategy: str = "deschedule",
) -> dict[str, Severity]:
    facts = DeschedulerFacts(
        images=images, nodes=of or nodes(True, True), policies=[policy("demo", strategy)], requested=requested
    )
    return bad(check_descheduler(facts))


@pytest.mark.parametrize(
    ("version", "broken"),
    [
        ("v0.23.1", False),
        ("v0.24.0", True),
        ("v0.26.1", True),
        ("v0.27.0", True),
        ("v0.27.1", False),
        ("v0.36.0", False),
        ("0.25", True),
    ],
)
def test_versions_that_evict_nothing_are_found(version: str, broken: bool) -> None:
    assert found([f"{REPOSITORY}:{version}"]) == ({"descheduler.version": Severity.ERROR} if broken else {})
    assert found([f"{REPOSITORY}:{version}"], of=nodes(True, True, offers=True), requested=True) == {}


def test_facts_c35_a_resource_that_no_node_offers_is_found() -> None:
    assert found(requested=True) == {"descheduler.resource": Severity.ERROR}
    assert found(requested=True, of=nodes(True, True, offers=True)) == {}


@pytest.mark.parametrize("ready", [(), (True,), (True, False)])
def test_fewer_than_two_ready_nodes_are_found(ready: tuple[bool, ...]) -> None:
    facts = DeschedulerFacts(images=(), nodes=nodes(*ready), policies=[policy("demo", "deschedule")], requested=False)
    assert bad(check_descheduler(facts))["descheduler.nodes"] is Severity.WARNING


def test_no_descheduler_is_a_hint_and_needless_without_the_strategy() -> None:
    assert found(()) == {"descheduler.present": Severity.HINT}
    assert found((), strategy="dontschedule") == {}


def test_what_cannot_be_known_is_not_ok() -> None:
    assert found([f"{REPOSITORY}@sha256:0"]) == {"descheduler.version": Severity.UNKNOWN}
    assert set(found(Missing("forbidden")).values()) == {Severity.UNKNOWN}
    assert set(found(of=Missing("forbidden")).values()) == {Severity.UNKNOWN}
    no_policies = DeschedulerFacts(images=(), nodes=nodes(True, True), policies=Missing("no bus"), requested=False)
    assert set(bad(check_descheduler(no_policies)).values()) == {Severity.UNKNOWN}


@pytest.mark.parametrize(
    ("image", "is_one", "version"),
    [
        (f"{REPOSITORY}:v0.27.1", True, (0, 27, 1)),
        ("localhost:5000/descheduler:v0.30.0@sha256:1", True, (0, 30, 0)),
        ("descheduler", True, None),
        ("mine/descheduler:latest", True, None),
        ("registry.example:5000/descheduler-operator:v1.0", False, (1, 0, 0)),
        ("nginx:1.27", False, (1, 27, 0)),
    ],
)
def test_an_image_is_recognized_by_its_name(image: str, is_one: bool, version: object) -> None:
    assert is_descheduler(image) is is_one
    assert version_of(image) == version
