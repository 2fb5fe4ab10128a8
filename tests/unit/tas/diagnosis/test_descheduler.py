"""The checks of the descheduler."""

from collections.abc import Collection
from typing import Any

import pytest

from tas.diagnosis.descheduler import (
    Descheduler,
    DeschedulerFacts,
    NodeState,
    check_descheduler,
    is_descheduler,
    version_of,
)
from tas.diagnosis.finding import Finding, Missing, Severity
from tas.diagnosis.owner import Owner
from tests.unit.tas.diagnosis.found import bad, one
from tests.unit.tas.diagnosis.samples import policy

REPOSITORY = "registry.k8s.io/descheduler/descheduler"


def nodes(*ready: bool, offers: bool = False) -> list[NodeState]:
    return [NodeState(f"n{number}", each, offers) for number, each in enumerate(ready)]


OWNER = Owner("kube-system", "Deployment", "descheduler")


def findings(
    images: Collection[str] | Missing = (f"{REPOSITORY}:v0.36.0",),
    *,
    of: Any = None,
    requested: bool = False,
    strategy: str = "deschedule",
) -> list[Finding]:
    facts = DeschedulerFacts(
        found=images if isinstance(images, Missing) else [Descheduler(image, OWNER) for image in images],
        nodes=of or nodes(True, True),
        policies=[policy("demo", strategy)],
        requested=requested,
    )
    return list(check_descheduler(facts))


def found(images: Collection[str] | Missing = (f"{REPOSITORY}:v0.36.0",), **facts: Any) -> dict[str, Severity]:
    return bad(findings(images, **facts))


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
    which = "descheduler.version" if broken else "descheduler.resource"
    assert found([f"{REPOSITORY}:{version}"], requested=True) == {which: Severity.ERROR}
    # They work if no pod requests the resource, or if nodes offer it.
    assert found([f"{REPOSITORY}:{version}"]) == {}
    assert found([f"{REPOSITORY}:{version}"], of=nodes(True, True, offers=True), requested=True) == {}


def test_the_owner_of_a_descheduler_is_named() -> None:
    old = one(findings([f"{REPOSITORY}:v0.25.0"], requested=True), "descheduler.version")
    assert old.what.startswith(f"kube-system/descheduler runs {REPOSITORY}:v0.25.0")


def test_facts_c35_a_resource_that_no_node_offers_is_found() -> None:
    assert found(requested=True) == {"descheduler.resource": Severity.ERROR}
    assert found(requested=True, of=nodes(True, True, offers=True)) == {}
    half = [*nodes(True, offers=True), *nodes(True)]
    assert found(requested=True, of=half) == {"descheduler.resource": Severity.ERROR}


@pytest.mark.parametrize("ready", [(), (True,), (True, False)])
def test_fewer_than_two_ready_nodes_are_found(ready: tuple[bool, ...]) -> None:
    facts = DeschedulerFacts(found=(), nodes=nodes(*ready), policies=[policy("demo", "deschedule")], requested=False)
    assert bad(check_descheduler(facts))["descheduler.nodes"] is Severity.WARNING


def test_no_descheduler_is_a_hint_and_needless_without_the_strategy() -> None:
    assert found(()) == {"descheduler.present": Severity.HINT}
    assert found((), strategy="dontschedule") == {}


def test_what_cannot_be_known_is_not_ok() -> None:
    assert found([f"{REPOSITORY}@sha256:0"]) == {"descheduler.version": Severity.UNKNOWN}
    assert set(found(Missing("forbidden")).values()) == {Severity.UNKNOWN}
    assert set(found(of=Missing("forbidden")).values()) == {Severity.UNKNOWN}
    no_policies = DeschedulerFacts(found=(), nodes=nodes(True, True), policies=Missing("no bus"), requested=False)
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
