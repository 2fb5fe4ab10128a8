"""Where the Service of the extender is reached."""

import pytest

from tas.diagnosis.finding import Missing
from tas.diagnosis.service import NoService, ServiceFacts, ServiceName, from_elsewhere, reached_at, service_of
from tas.diagnosis.url import Url

NAME = ServiceName("tas", "extender")
GOOD = {"address": "10.96.0.9", "ports": [9001], "ready": ["10.0.0.7"]}


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("extender.tas.svc", NAME),
        ("extender.tas.svc.cluster.local", NAME),
        ("extender.tas.svc.corp.example", NAME),
        ("extender.tas", None),
        ("extender.tas.svcs", None),
        ("a.extender.tas.svc", None),
        ("svc", None),
        ("10.96.0.9", None),
    ],
)
def test_a_name_in_the_cluster_is_that_of_a_service(host: str, name: ServiceName | None) -> None:
    assert service_of(host) == name


@pytest.mark.parametrize(
    ("fields", "at"),
    [
        (GOOD, "10.96.0.9"),
        ({"external": "localhost"}, "localhost"),
        (GOOD | {"address": "None"}, "10.0.0.7"),
        (GOOD | {"address": "None", "ports": []}, "10.0.0.7"),
        (GOOD | {"ready": []}, NoService("the Service tas/extender has no ready endpoint")),
        (GOOD | {"ports": [8080, 443]}, NoService("the Service tas/extender has no port 9001, but 443, 8080")),
        (GOOD | {"ready": Missing("forbidden")}, Missing("forbidden")),
    ],
)
def test_a_service_is_reached_without_the_dns_of_the_cluster(fields: dict[str, object], at: object) -> None:
    assert reached_at(NAME, 9001, ServiceFacts(**fields)) == at  # type: ignore[arg-type]


def test_without_the_service_nobody_reaches_it() -> None:
    assert reached_at(NAME, 9001, None) == NoService("the cluster has no Service tas/extender")


def test_from_elsewhere_a_port_is_forwarded() -> None:
    mend, run = from_elsewhere(NAME, Url("https", "extender.tas.svc", 9001))
    assert "'127.0.0.1 extender.tas.svc' to /etc/hosts" in mend
    assert run == "kubectl --namespace tas port-forward service/extender 9001"
