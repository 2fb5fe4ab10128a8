"""The extenders in a scheduler's configuration: valid and invalid entries (facts.md c6, c7, c8, c9, c11, c12)."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from workers.process.manifests import read_yaml

from .cluster import NODES, RESOURCE, Cluster, extender
from .recorder import FILTER, PRIORITIZE, Request, Response, passing, recording, scoring

NOWHERE = "http://127.0.0.1:1"


def entry(**overrides: object) -> Mapping[str, object]:
    """An extender that is not called, since the scheduler does not start."""
    return dict(extender(NOWHERE, names_only=True, **overrides))


OTHER = [{"name": "example.com/other"}]


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        pytest.param(
            [entry(enableHttps=False)],
            r"strict decoding error: unknown field \"extenders[0].enableHttps\"",
            id="facts_c6-legacy-name",
        ),
        pytest.param([entry(weight=0)], "must have a positive weight applied to it", id="facts_c7-no-weight"),
        pytest.param(
            [entry(bindVerb="bind"), entry(bindVerb="bind", managedResources=OTHER)],
            "only one extender can implement bind",
            id="facts_c8-two-binders",
        ),
        pytest.param([entry(), entry()], "duplicate extender managed resource name", id="facts_c9-one-resource-twice"),
        pytest.param(
            [entry(managedResources=[{"name": "no-domain"}])],
            "is an invalid extended resource name",
            id="facts_c9-no-resource",
        ),
    ],
)
def test_with_an_invalid_configuration_the_scheduler_does_not_start(
    cluster: Cluster, entries: list[Mapping[str, object]], complaint: str
) -> None:
    with pytest.raises(RuntimeError, match=r"kube-scheduler.* ended") as caught, cluster.scheduler(*entries):
        pass

    assert complaint in str(caught.value)


@pytest.mark.parametrize("version", ["v1beta3", "v1beta2", "v1beta1", "v1alpha2", "v1alpha1"])
def test_another_form_than_v1_ends_the_scheduler(cluster: Cluster, version: str) -> None:
    form = f"kubescheduler.config.k8s.io/{version}"
    with pytest.raises(RuntimeError, match=r"kube-scheduler.* ended") as caught, cluster.scheduler(apiVersion=form):
        pass

    assert f'registered for version \\"{form}\\"' in str(caught.value)


def test_with_the_entry_of_docs_scheduler_the_scheduler_calls_the_extender(cluster: Cluster, namespace: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "start" / "scheduler.md").read_text()
    (document,) = read_yaml(re.findall(r"```yaml\n(apiVersion.*?)```", page, re.DOTALL)[0].encode())
    assert isinstance(document, dict)
    (entry,) = document["extenders"]

    def answer(request: Request) -> Response:
        return passing(request, ["node-2"]) if request.verb == FILTER else scoring({})

    with recording(answer) as recorder:
        # As on the page, except the address and a longer time limit for a slow machine.
        changed = entry | {"urlPrefix": f"{recorder.url}/scheduler", "httpTimeout": "30s"}
        with cluster.scheduler(changed):
            cluster.create_pod(namespace, "web", policy="demo-policy")
            assert cluster.placed(namespace, "web") == "node-2"
            assert recorder.about("web", FILTER)


def test_facts_c11_all_profiles_call_the_same_extenders(cluster: Cluster, namespace: str) -> None:
    def answer(request: Request) -> Response:
        return passing(request, ["node-2"]) if request.verb == FILTER else scoring({})

    profiles = [{"schedulerName": "default-scheduler"}, {"schedulerName": "second"}]
    with recording(answer) as recorder, cluster.scheduler(extender(recorder.url, names_only=True), profiles=profiles):
        cluster.create_pod(namespace, "first")
        cluster.create_pod(namespace, "second", schedulerName="second")
        assert cluster.placed(namespace, "first") == "node-2"
        assert cluster.placed(namespace, "second") == "node-2"


@pytest.mark.parametrize("place", ["containers", "initContainers"])
def test_facts_c12_the_extender_is_called_if_any_container_has_the_managed_resource(
    cluster: Cluster, namespace: str, place: str
) -> None:
    def answer(request: Request) -> Response:
        return passing(request, ["node-2"]) if request.verb == FILTER else scoring({})

    managed = {"name": "managed", "image": "pause", "resources": {"limits": {RESOURCE: "1"}}}
    plain = {"name": "main", "image": "pause"}
    containers = [plain, managed] if place == "containers" else [plain]
    with recording(answer) as recorder, cluster.scheduler(extender(recorder.url, names_only=True)):
        init_containers = [] if place == "containers" else [managed]
        cluster.create_pod(namespace, "web", containers=containers, initContainers=init_containers)
        assert cluster.placed(namespace, "web") == "node-2"
        assert recorder.about("web", FILTER)


def test_facts_c12_without_managed_resources_the_extender_is_called_for_every_pod(
    cluster: Cluster, namespace: str
) -> None:
    def answer(request: Request) -> Response:
        return passing(request, NODES) if request.verb == FILTER else scoring({})

    with (
        recording(answer) as recorder,
        cluster.scheduler(extender(recorder.url, names_only=True, managedResources=[])),
    ):
        cluster.create_pod(namespace, "plain", managed=False)
        cluster.placed(namespace, "plain")
        assert {request.verb for request in recorder.about("plain")} == {FILTER, PRIORITIZE}
