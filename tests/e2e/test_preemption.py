"""Preemption: the requests of a real scheduler, its reaction to answers, and the answers of the product."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from . import golden
from .cluster import RESOURCE, Cluster, extender
from .processes import until
from .product import Product, product
from .recorder import (
    FILTER,
    PREEMPT,
    PRIORITIZE,
    Answer,
    Request,
    Response,
    answer_with,
    offering,
    passing,
    recording,
    scoring,
)

both_forms = pytest.mark.parametrize("names_only", [True, False], ids=["names", "nodes"])
HOSTS = ("host-1", "host-2", "host-3")
POOL = {"pool": "preemption"}
HIGH = "e2e-high"


@pytest.fixture(scope="module")
def hosts(cluster: Cluster) -> Iterator[tuple[str, ...]]:
    """Three additional nodes, and a priority class of pods that may preempt others."""
    cluster.api.create(
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {"metadata": {"name": HIGH}, "value": 1000, "globalDefault": False},
    )
    cluster.create_nodes(*HOSTS, labels=POOL)
    yield HOSTS
    cluster.delete_nodes(*HOSTS)
    cluster.api.delete(f"/apis/scheduling.k8s.io/v1/priorityclasses/{HIGH}")


def containers(**more: str) -> list[dict[str, object]]:
    """A container that uses most of a node."""
    return [{"name": "main", "image": "pause", "resources": {"requests": {"cpu": "6"}, "limits": more}}]


@contextmanager
def full(cluster: Cluster, namespace: str, hosts: Iterable[str]) -> Iterator[None]:
    """On each host a pod without priority uses most of the node: `on-HOST`."""
    for host in hosts:
        cluster.create_pod(namespace, f"on-{host}", containers=containers(), nodeName=host)
    for host in hosts:
        until(partial(cluster.is_running, namespace, f"on-{host}"), f"a pod runs on {host}")
    try:
        yield
    finally:
        cluster.delete_pods(namespace)


def create_urgent(cluster: Cluster, namespace: str, *, policy: str | None = None) -> None:
    """Creates a pod of high priority, for which the scheduler calls the extender."""
    cluster.create_pod(
        namespace,
        "urgent",
        policy=policy,
        containers=containers(**{RESOURCE: "1"}),
        nodeSelector=POOL,
        priorityClassName=HIGH,
    )


def left(cluster: Cluster, namespace: str) -> set[str]:
    """The hosts whose pods were not evicted."""
    return {host for host in HOSTS if cluster.is_running(namespace, f"on-{host}")}


def answering(preempt: Answer) -> Answer:
    def answer(request: Request) -> Response:
        if request.verb == PREEMPT:
            return preempt(request)
        return passing(request, HOSTS) if request.verb == FILTER else scoring({})

    return answer


def preempting(url: str, *, names_only: bool, **overrides: object) -> dict[str, object]:
    return dict(extender(url, names_only=names_only, preemptVerb="scheduler/preempt", **overrides))


@both_forms
def test_facts_c31_preempt_gets_the_golden_fields_in_the_configured_form_and_may_remove_nodes(
    cluster: Cluster, hosts: tuple[str, ...], names_only: bool
) -> None:
    """Also facts.md c28: then filter gets only the nominated node, and prioritize is not called."""
    where = cluster.create_namespace(f"golden-preempt-{'names' if names_only else 'nodes'}")
    with (
        full(cluster, where, hosts),
        recording(answering(lambda request: offering(request, ["host-2"]))) as recorder,
        cluster.scheduler(preempting(recorder.url, names_only=names_only)),
    ):
        create_urgent(cluster, where, policy="demo-policy")
        assert cluster.placed(where, "urgent") == "host-2"
        assert left(cluster, where) == {"host-1", "host-3"}
    request, *_ = recorder.about("urgent", PREEMPT)
    assert request.headers["Content-Type"] == "application/json"
    assert request.body.keys() == {"Pod", "NodeNameToVictims", "NodeNameToMetaVictims"}
    assert request.body["NodeNameToVictims" if names_only else "NodeNameToMetaVictims"] is None
    assert sorted(request.names) == list(hosts)
    golden.check(f"preempt-{'names' if names_only else 'nodes'}", request.body)
    last_filter = recorder.about("urgent", FILTER)[-1]
    assert last_filter.names == ["host-2"]
    assert not recorder.about("urgent", PRIORITIZE)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(
            lambda request: answer_with({"NodeNameToMetaVictims": {"stranger": {"Pods": []}}}), id="unknown-node"
        ),
        pytest.param(
            lambda request: answer_with({"NodeNameToMetaVictims": {"host-1": {"Pods": [{"UID": "stranger"}]}}}),
            id="unknown-uid",
        ),
        pytest.param(
            lambda request: answer_with({"NodeNameToMetaVictims": {"host-1": {"Pods": []}}}), id="no-victims-left"
        ),
        pytest.param(lambda request: Response(500, b""), id="facts_c3-error"),
    ],
)
def test_facts_c31_an_invalid_answer_to_preempt_evicts_no_pod_or_is_skipped_if_ignorable(
    cluster: Cluster, namespace: str, hosts: tuple[str, ...], answer: Answer
) -> None:
    with full(cluster, namespace, hosts), recording(answering(answer)) as recorder:
        with cluster.scheduler(preempting(recorder.url, names_only=True)):
            create_urgent(cluster, namespace)
            until(lambda: len(recorder.about("urgent", PREEMPT)) > 0, "preempt is called")
            cluster.rejected(namespace, "urgent")
            assert left(cluster, namespace) == set(hosts)
        before = len(recorder.about("urgent", PREEMPT))
        with cluster.scheduler(preempting(recorder.url, names_only=True, ignorable=True)):
            until(lambda: len(recorder.about("urgent", PREEMPT)) > before, "preempt is called again")


def test_facts_c31_without_a_preempt_verb_or_a_managed_resource_preempt_is_not_called(
    cluster: Cluster, namespace: str, hosts: tuple[str, ...]
) -> None:
    with full(cluster, namespace, hosts), recording(answering(lambda request: offering(request, []))) as recorder:
        silent = extender(recorder.url, names_only=True)
        other = preempting(recorder.url, names_only=True, managedResources=[{"name": "example.com/other"}])
        with cluster.scheduler(silent, other):
            create_urgent(cluster, namespace)
            assert cluster.placed(namespace, "urgent") in hosts
        assert not [request for request in recorder.requests if request.verb == PREEMPT]


@pytest.fixture(scope="module")
def tas(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with product(cluster, Path(tmp_path_factory.mktemp("tas"))) as running:
        yield running


@both_forms
def test_no_pod_is_evicted_from_a_node_that_the_policy_rejects(
    cluster: Cluster, namespace: str, hosts: tuple[str, ...], tas: Product, names_only: bool
) -> None:
    """All hosts are full, so filter is not called before the evictions: only preempt can prevent them."""
    rules = [{"metricname": "health_metric", "operator": "Equals", "target": 2}]
    tas.publish({"host-1": {"health_metric": 2}, "host-2": {"health_metric": 2}, "host-3": {"health_metric": 0}})
    with tas.policy(namespace, "demo", {"dontschedule": {"rules": rules}}):
        until(lambda: tas.passes(namespace, "demo", hosts) == {"host-3"}, "two hosts are rejected")
        with full(cluster, namespace, hosts), cluster.scheduler(preempting(tas.url, names_only=names_only)):
            create_urgent(cluster, namespace, policy="demo")
            assert cluster.placed(namespace, "urgent") == "host-3"
            assert left(cluster, namespace) == {"host-1", "host-2"}
