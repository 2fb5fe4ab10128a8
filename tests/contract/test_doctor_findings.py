"""What scripts and people rely on in the findings of `tas doctor`: fields, ids, and commands that a shell accepts."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.doctor.cluster_facts import rights_of
from tas.configuring.control_planes import SchedulerState
from tas.diagnosis.bus import WrongStream
from tas.diagnosis.checks import CHECKS
from tas.diagnosis.clocks import Offset
from tas.diagnosis.descheduler import Descheduler, NodeState
from tas.diagnosis.diagnosis import diagnose
from tas.diagnosis.extender import Asked, Distrust, Reach, Request
from tas.diagnosis.finding import Finding, Missing, Severity
from tas.diagnosis.policies import StoredPolicy
from tas.diagnosis.rights import ORIGINAL, SELF, Reviewed
from tas.diagnosis.workloads import DaemonSetTemplate, Expression
from tas.policy.directory import FileProblem, FileProblems
from tas.policy.policy import Problem
from tas.processes.expected import Expected
from tas.processes.process import NotReady, Running
from tas.samples.sample import Scrape
from tas.sources.result import SuspectReason
from tas.sources.state import RefusedValues, SourceMetric, SourceState
from tas.values.quantity import parse_quantity
from tas.verdict.freeze import Breaker, Pause, Trip
from tas.verdict.refused import RefusedLabel
from tests.contract.test_pages import accepts, calls
from tests.unit.tas.diagnosis.found import bad
from tests.unit.tas.diagnosis.samples import policy, policy_of
from tests.unit.tas.diagnosis.test_diagnosis import DEMO, GOOD, NOW, PROCESS, SCRAPE
from tests.unit.tas.diagnosis.test_scheduler import ENTRY, configuration
from tests.unit.tas.diagnosis.test_workloads import WEB, bare, excluding, pod

GOLDEN = json.loads((Path(__file__).parent / "golden" / "doctor" / "json.json").read_text())
HOSTILE = "a'; reboot #\x1b[2J\n\u202e$(reboot)`reboot`"
"""A name that only a text from elsewhere can have."""

PROXY = {"HTTPS_PROXY": "http://me:secret@proxy:3128"}
PROBLEM = Problem(field="spec", value="1", reason="is ignored", refused=False)
IDLE = [NodeState("a", ready=False, offers=False)]
OLD = Descheduler("descheduler:v0.25.0", WEB)
SOURCE = SourceState(
    kind="prometheus",
    holder="h",
    since=0.0,
    time=NOW,
    period=1.0,
    problem="connection refused",
    polls=1,
    metrics={"health_metric": SourceMetric(nodes=1)},
)

SUSPECT = msgspec.structs.replace(
    SOURCE, suspect={SuspectReason.JUMP: RefusedValues(count=1, example=HOSTILE, time=NOW)}
)
OTHER_VALUE = Scrape(
    source="other", measured=NOW, arrived=NOW, sequence=1, metrics={"health_metric": parse_quantity("99")}
)


LATE = msgspec.structs.replace(SOURCE, problem="", behind=0.0)
BAD_PROCESS = msgspec.structs.replace(
    PROCESS,
    name=HOSTILE,
    workers=dict.fromkeys(PROCESS.workers, HOSTILE),
    behind={HOSTILE: {HOSTILE: 9.0}},
    lag={HOSTILE: 10_000},
    bus=HOSTILE,
    expires={HOSTILE: NOW - 1, "bus": NOW + 1},
    concerns={HOSTILE: (HOSTILE,)},
    newest_pods={"waiting": NOW + 99},
)

BAD_FILE = FileProblem(origin=HOSTILE, subject=HOSTILE, field=HOSTILE, value=HOSTILE, reason=HOSTILE, in_force=HOSTILE)


def changed(group: str, **fields: Any) -> list[Finding]:
    """The findings about an installation in which one group of facts differs from a good one."""
    facts = GOOD
    if group in ("scheduler", "descheduler"):
        assert facts.cluster is not None
        fields = {group: msgspec.structs.replace(getattr(facts.cluster, group), **fields)}
        group = "cluster"
    return diagnose(msgspec.structs.replace(facts, **{group: msgspec.structs.replace(getattr(facts, group), **fields)}))


def entry(**fields: object) -> list[Finding]:
    return changed("scheduler", configuration=configuration({**ENTRY, **fields}))


def request(**fields: object) -> list[Finding]:
    assert isinstance(GOOD.extender.request, Request)
    return changed("extender", request=msgspec.structs.replace(GOOD.extender.request, **fields))


def reviewed(account: str) -> list[Finding]:
    return changed("cluster", rights=[Reviewed(account=account, allowed=dict.fromkeys(rights_of(account), False))])


def asked(**fields: object) -> list[Finding]:
    answer = Asked(time=NOW, status=200, error="", namespace="default", pod="web-1")
    extender = msgspec.structs.replace(GOOD.extender, asked=[msgspec.structs.replace(answer, **fields)])
    # No other process has been asked later.
    return diagnose(msgspec.structs.replace(GOOD, extender=extender, processes=Missing(HOSTILE)))


OTHER = StoredPolicy(policy=policy("demo", "deschedule", namespace="other"), created=5.0)
BROKEN: list[list[Finding]] = [
    diagnose(msgspec.structs.replace(GOOD, bus=Missing(HOSTILE, HOSTILE))),
    changed("bus", version="2.9.0", sync=False, absent=["SAMPLES"], cluster=HOSTILE, copies={"SAMPLES": 1}),
    changed("bus", cluster=HOSTILE, copies={"SAMPLES": 3}, stuck=["SAMPLES"], silent=[HOSTILE]),
    changed("bus", cluster=HOSTILE, copies={"SAMPLES": 3}, late={HOSTILE: ["SAMPLES"]}),
    changed("bus", embedded=True, wrong=[WrongStream("KV_NODES", HOSTILE), WrongStream("EVENTS", "x", "the events")]),
    changed("bus", consumers={HOSTILE: (9, 9)}),
    changed("bus", consumers={"SAMPLES": (5, 9)}, weak={HOSTILE: [HOSTILE]}, closed=True, earlier=True),
    changed("policies", in_api=None),
    changed("policies", in_api=[], stored=[]),
    changed("policies", strategy_fields={"rules"}),
    changed("policies", stored=[StoredPolicy(policy=DEMO, problems=[PROBLEM]), OTHER]),
    changed("policies", stored=[StoredPolicy(policy=DEMO, problems=[PROBLEM], origin=HOSTILE)]),
    changed("policies", file_problems=FileProblems(listed=(BAD_FILE,), others=2)),
    changed("metrics", policies=[policy_of("node_health_metric")]),
    changed("metrics", policies=[policy_of("health_metric", source="other")]),
    changed("metrics", policies=[policy_of("node_health_metric")], in_files=True),
    changed("metrics", policies=[policy_of("power")], offered=["power"]),
    changed("metrics", policies=[policy_of("power")], sources={"p": SOURCE}, held=["p"]),
    changed("metrics", now=NOW + 999),
    changed("metrics", sources={"p": SUSPECT}, held=["p"]),
    changed("metrics", samples={"a": (SCRAPE, OTHER_VALUE)}),
    changed("metrics", nodes={"a": {}, "b": {}, "c": {}}),
    changed("metrics", sources={"agent": LATE}, held=["agent"], now=NOW + 60),
    changed("policies", pause=Pause(by=HOSTILE, since=NOW)),
    changed("policies", breakers={"demo": Breaker(trip=Trip(since=NOW, limit=1, wanted=2, selected=3))}),
    changed("policies", refused={"demo": [RefusedLabel(label=HOSTILE, reason=HOSTILE, count=1, nodes=(HOSTILE,))]}),
    changed("policies", not_ready={"MarksNotWritten": NotReady(2, (HOSTILE,))}),
    changed("processes", running=[]),
    changed("processes", running=[], expected={}),
    changed("processes", running=[Running("all", "x", BAD_PROCESS, NOW)], expected={"labels": Expected(count=9)}),
    changed("processes", running=[Running("all", "x", BAD_PROCESS, NOW), Running("all", "y", PROCESS, NOW)]),
    changed("cluster", pods=[bare(policy="")]),
    changed(
        "cluster", pods=[bare(limit=False, policy="gone")], daemon_sets=[DaemonSetTemplate(WEB, ((excluding(),),))]
    ),
    changed(
        "cluster",
        pods=[msgspec.structs.replace(pod((excluding("gone"),)), owner=WEB._replace(kind=HOSTILE, name=HOSTILE))],
    ),
    changed("cluster", pods=[pod((Expression("demo", "Exists"),))]),
    changed("descheduler", found=()),
    changed("descheduler", found=[OLD], nodes=IDLE),
    changed("descheduler", nodes=IDLE),
    changed(
        "scheduler", configuration=configuration(), control_planes=[SchedulerState(node="c", digest=None, ready=None)]
    ),
    changed("scheduler", configuration=configuration(ENTRY, version="v1alpha9"), origin=HOSTILE),
    changed("scheduler", configuration=configuration(ENTRY, version="v1beta3")),
    changed("scheduler", control_planes=[SchedulerState(node="c", digest=None, ready=True)], minor=None),
    entry(tlsConfig=None, weight=1, nodeCacheCapable=False, ignorable=False, managedResources=[]),
    entry(urlPrefix=HOSTILE, prioritizeVerb=""),
    entry(urlPrefix="http://tas:9001", managedResources=[{"name": "telemetry/scheduling"}]),
    changed(
        "scheduler",
        configuration=configuration({**ENTRY, "managedResources": [{"name": "telemetry/scheduling"}]}),
        nodes=IDLE,
    ),
    request(reach=Reach.FAILED, reason=HOSTILE),
    request(ours=False),
    request(via=HOSTILE),
    *(request(reach=Reach.UNTRUSTED, reason=HOSTILE, distrust=each) for each in Distrust),
    request(reach=Reach.REFUSED, reason=HOSTILE),
    request(expires=NOW - 9, client_expires=NOW + 9),
    request(expires=None),
    changed("extender", unready={"extender": HOSTILE}, asked=[], environment=PROXY, own_environment=PROXY),
    asked(status=503, error=HOSTILE),
    asked(pod=HOSTILE),
    asked(time=NOW - 999_999),
    changed("clocks", api_server=Offset(99.0), bus=Offset(99.0), extender=Offset(99.0)),
    changed(
        "clocks",
        nodes={"a": 99.0},
        samples={"a": (msgspec.structs.replace(SCRAPE, measured=NOW + 9),)},
    ),
    *(reviewed(account) for account in ("tas-labels", ORIGINAL, SELF)),
    changed("cluster", server=Missing(HOSTILE, HOSTILE)),
]
FOUND = {(each.check, each.run): each for findings in BROKEN for each in findings if each.severity is not Severity.OK}


def test_each_check_can_find_something_and_says_what_mends_it() -> None:
    for findings in BROKEN:
        assert bad(findings)
    assert {check for check, _ in FOUND} == set(CHECKS)


def test_scripts_find_the_fields_the_severities_and_the_checks_that_they_know() -> None:
    """Each of these may grow, and nothing of it may change or go."""
    fields = [each.name for each in msgspec.structs.fields(Finding)]
    assert fields[: len(GOLDEN["fields"])] == GOLDEN["fields"]
    assert [each for each in Severity if each in GOLDEN["severities"]] == GOLDEN["severities"]
    assert set(GOLDEN["checks"]) == set(CHECKS)
    for each in FOUND.values():
        assert all(isinstance(value, str) for value in msgspec.to_builtins(each).values())


@pytest.mark.parametrize("found", FOUND.values(), ids=lambda found: found.check)
def test_no_text_from_elsewhere_controls_a_terminal(found: Finding) -> None:
    for text in (found.what, found.why, found.mend, found.run):
        assert text.isprintable(), text


@pytest.mark.parametrize("run", sorted({run for _, run in FOUND if run}))
def test_no_name_from_elsewhere_is_a_command_of_the_shell(run: str) -> None:
    """Runs the command with programs that do nothing, and a program that nobody wants to run."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    nothing = "".join(f"{name}() {{ :; }}; " for name in ("curl", "kubectl", "nats", "tas", "timedatectl"))
    script = f"PATH=; reboot() {{ echo rebooted >&2; }}; {nothing}{run}"
    done = subprocess.run([bash, "-c", script], text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    sorted({tuple(call) for _, run in FOUND for part in run.split(" && ") for call in calls(part)}),
    ids=" ".join,
)
def test_each_command_of_ours_that_mends_is_accepted(arguments: tuple[str, ...]) -> None:
    accepts(list(arguments), whole=True)
