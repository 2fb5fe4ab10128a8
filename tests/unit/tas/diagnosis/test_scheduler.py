"""The checks of the scheduler."""

from typing import Any

import msgspec
import pytest

from tas.configuring.control_planes import SchedulerState
from tas.configuring.extenders import Extender, ExtenderKind
from tas.diagnosis.descheduler import NodeState
from tas.diagnosis.finding import Missing, Severity
from tas.diagnosis.scheduler import SchedulerFacts, check_scheduler
from tests.unit.tas.configuring.corpus import names, plugins
from tests.unit.tas.diagnosis.found import bad, one, severities

ENTRY = Extender(kind=ExtenderKind.TELEMETRY, url="https://tas:9001", resources=("telemetry/scheduling",)).entry()
GPU = Extender(kind=ExtenderKind.GPU, url="https://gas:9001", resources=("gpu.intel.com/i915",)).entry()
STATES = (SchedulerState(node="cp", digest="sha256:1", ready=True),)
NODES = (NodeState("a", ready=True, offers=False),)


def configuration(*entries: Any, version: str = "v1") -> dict[str, Any]:
    return {
        "apiVersion": f"kubescheduler.config.k8s.io/{version}",
        "kind": "KubeSchedulerConfiguration",
        "extenders": list(entries),
    }


GOOD = SchedulerFacts(configuration=configuration(ENTRY), origin="file", minor=30, control_planes=STATES, nodes=NODES)


def entry(**fields: object) -> dict[str, Any]:
    return {
        "configuration": configuration({key: value for key, value in (ENTRY | fields).items() if value is not None})
    }


def test_what_tas_configure_writes_has_no_finding() -> None:
    assert bad(check_scheduler(GOOD)) == {}
    assert len(severities(check_scheduler(GOOD))) == 8


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"configuration": configuration()}, {"scheduler.configured": Severity.ERROR}),
        ({"configuration": configuration(GPU)}, {"scheduler.configured": Severity.ERROR}),
        ({"configuration": configuration(GPU, ENTRY)}, {}),
        (entry(tlsConfig=None), {"scheduler.verifies": Severity.WARNING}),
        (entry(tlsConfig={"insecure": True, "caFile": "/ca"}), {"scheduler.verifies": Severity.WARNING}),
        (entry(tlsConfig={"caData": "LS0t"}), {}),
        (entry(enableHTTPS=False), {}),
        (entry(enableHTTPS=False, tlsConfig=None), {}),
        (entry(enableHTTPS=False, urlPrefix="http://tas:9001/scheduler"), {"scheduler.verifies": Severity.WARNING}),
        (entry(enableHTTPS=False, urlPrefix="http://127.0.0.1:9001/scheduler"), {}),
        (entry(enableHttps=True), {"scheduler.valid": Severity.ERROR}),
        (entry(weight=1), {"scheduler.weight": Severity.HINT}),
        (entry(prioritizeVerb=None), {"scheduler.weight": Severity.WARNING}),
        (entry(nodeCacheCapable=None), {"scheduler.names": Severity.WARNING}),
        # It runs, so that it has this plugin.
        (
            {"configuration": configuration(ENTRY) | plugins(filter=names("Coscheduling"))},
            {},
        ),
        (entry(ignorable=False), {}),
        (entry(managedResources=None), {}),
        (entry(managedResources=None, ignorable=None), {"scheduler.outage": Severity.WARNING}),
        (
            entry(urlPrefix="tas:9001"),
            {"scheduler.configured": Severity.ERROR, "scheduler.verifies": Severity.UNKNOWN},
        ),
        (entry(managedResources=[{"name": "telemetry/scheduling"}]), {"scheduler.resource": Severity.ERROR}),
        ({"minor": 24}, {"scheduler.valid": Severity.ERROR}),
        ({"minor": None}, {"scheduler.valid": Severity.UNKNOWN}),
        ({"configuration": configuration(ENTRY, version="v1beta3"), "minor": 29}, {"scheduler.valid": Severity.ERROR}),
        ({"configuration": None}, {"scheduler.configured": Severity.ERROR, "scheduler.valid": Severity.ERROR}),
        (
            {"control_planes": (*STATES, SchedulerState(node="cp2", digest=None, ready=True))},
            {"scheduler.alike": Severity.ERROR},
        ),
        ({"control_planes": ()}, {"scheduler.alike": Severity.UNKNOWN}),
        (
            {"control_planes": (SchedulerState(node="cp", digest=None, ready=True),)},
            {"scheduler.alike": Severity.UNKNOWN},
        ),
        ({"control_planes": Missing("403")}, {"scheduler.alike": Severity.UNKNOWN}),
    ],
)
def test_each_fault_is_found(fields: dict[str, object], found: dict[str, Severity]) -> None:
    assert bad(check_scheduler(msgspec.structs.replace(GOOD, **fields))) == found


def test_a_resource_that_counts_is_no_fault_where_nodes_offer_it() -> None:
    counted = entry(managedResources=[{"name": "telemetry/scheduling"}])
    nodes = [NodeState("a", ready=True, offers=True), NodeState("b", ready=True, offers=False)]
    some = bad(check_scheduler(msgspec.structs.replace(GOOD, nodes=nodes, **counted)))
    assert some == {"scheduler.resource": Severity.WARNING}
    assert bad(check_scheduler(msgspec.structs.replace(GOOD, nodes=nodes[:1], **counted))) == {}


def test_without_the_file_the_annotation_of_tas_configure_is_evidence_of_the_entry_only() -> None:
    findings = list(check_scheduler(msgspec.structs.replace(GOOD, configuration=Missing("elsewhere"))))
    assert severities(findings)["scheduler.configured"] is Severity.OK
    assert severities(findings)["scheduler.verifies"] is Severity.UNKNOWN
    unknown = msgspec.structs.replace(GOOD, configuration=Missing("elsewhere"), control_planes=())
    assert one(check_scheduler(unknown), "scheduler.configured").severity is Severity.UNKNOWN


def test_the_password_of_a_url_is_not_shown() -> None:
    facts = msgspec.structs.replace(GOOD, **entry(urlPrefix="https://me:secret@tas:9001/scheduler"))
    found = one(check_scheduler(facts), "scheduler.configured")
    assert found.what == "file has the extender https://tas:9001/scheduler"


@pytest.mark.parametrize(("minor", "empty"), [(32, False), (33, True), (None, True)])
def test_from_1_33_on_whole_nodes_look_empty_to_the_scheduler(minor: int | None, *, empty: bool) -> None:
    facts = msgspec.structs.replace(GOOD, **entry(nodeCacheCapable=False), minor=minor)
    assert ("see every node as empty" in one(check_scheduler(facts), "scheduler.names").what) is empty
