"""Processes that do not run are errors, whatever the bus still has of their work; not known is never ok."""

import msgspec
import pytest

from tas.diagnosis.finding import Missing, Severity, exit_code
from tas.diagnosis.metrics import MetricFacts, check_metrics, health_with, late_sources
from tas.diagnosis.overview import Verdict, verdict_of, worst_first
from tas.diagnosis.processes import ProcessFacts, check_answers, check_processes
from tas.processes.expected import Expected
from tas.processes.process import MOST_CLOCKS, LastAnswer, Process, Running, clocks_ahead
from tas.samples.pace import LateMetric
from tas.samples.sample import Scrape
from tas.sources.state import Health, LostNodes, SourceMetric, SourceState
from tas.values.quantity import parse_quantity
from tests.unit.tas.diagnosis.found import bad, one, severities
from tests.unit.tas.diagnosis.samples import policy, policy_of
from tests.unit.tas.processes.samples import running

NOW = 1_000_000.0
LABELLED = policy("demo", "deschedule", "dontschedule")
ALL = ("evaluate", "extender", "labels", "materialize")


def facts(*processes: Running, **changes: object) -> ProcessFacts:
    found = ProcessFacts(
        running=processes or [each for worker in ALL for each in running(worker, 2)],
        expected={worker: Expected(count=2) for worker in ALL},
        policies=[LABELLED],
        cluster=True,
        now=NOW,
    )
    return msgspec.structs.replace(found, **changes)


def test_all_run_and_nothing_is_found() -> None:
    assert bad(check_processes(facts())) == {}
    assert verdict_of(check_processes(facts())) is Verdict.WELL


def test_both_replicas_of_evaluate_and_labels_are_stopped() -> None:
    """What the night on call had: everything on the bus looks as before."""
    left = [*running("extender", 2), *running("materialize", 2)]
    found = one(check_processes(facts(*left)), "workers.running")
    assert found.severity is Severity.ERROR
    assert found.what.startswith("none of 2 processes runs evaluate, labels: no verdict follows a value")
    assert "tas dismiss evaluate and tas dismiss labels" in found.mend
    assert found.run == "tas run evaluate --bus nats://HOST:4222"


def test_one_of_two_replicas_is_a_warning_and_a_third_one_is_none() -> None:
    rest = [each for worker in ALL[1:] for each in running(worker, 2)]
    found = one(check_processes(facts(*rest, *running("evaluate", 1))), "workers.running")
    assert (found.severity, found.what) == (Severity.WARNING, "1 of 2 processes runs evaluate")
    updating = [*rest, *running("evaluate", 2), *running("evaluate", 1, version="2")]
    assert bad(check_processes(facts(*updating))) == {}


@pytest.mark.parametrize(
    ("expected", "processes"),
    [
        pytest.param({}, [each for worker in ALL for each in running(worker, 2)], id="after a wipe"),
        pytest.param({}, [], id="an empty bucket, without policies"),
    ],
)
def test_what_is_not_known_yet_is_never_well(expected: dict[str, Expected], processes: list[Running]) -> None:
    found = list(check_processes(facts(running=processes, expected=expected, policies=[])))
    assert bad(found) == {"workers.expected": Severity.UNKNOWN}
    assert verdict_of(found) is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("age", "other", "severity"),
    [
        pytest.param(5.0, 5.0, Severity.HINT, id="a new installation"),
        pytest.param(655.0, -30.0, Severity.HINT, id="the number is written, and a clock is ahead"),
        pytest.param(700.0, 700.0, Severity.UNKNOWN, id="after a wipe, or nobody counts"),
        pytest.param(700.0, 5.0, Severity.UNKNOWN, id="after a wipe one of two was started again"),
        pytest.param(-86_400.0, 5.0, Severity.UNKNOWN, id="a clock of tomorrow"),
    ],
)
def test_a_new_installation_is_a_hint_for_ten_minutes(age: float, other: float, severity: Severity) -> None:
    processes = [
        each._replace(process=msgspec.structs.replace(each.process, started=NOW - seconds))
        for each, seconds in zip(running("evaluate", 2), (age, other), strict=True)
    ]
    found = list(check_processes(facts(*processes, expected={}, policies=[])))
    assert bad(found) == {"workers.expected": severity}
    assert exit_code(found) == (severity is Severity.UNKNOWN)
    assert verdict_of(found) is Verdict.UNKNOWN, "the screen never says that all is well"


def test_what_policies_need_and_nobody_runs_is_an_error_also_if_it_never_ran() -> None:
    found = severities(check_processes(facts(*running("watch", 1), expected={"watch": Expected(count=1)})))
    assert found["workers.running"] is Severity.ERROR
    other = facts(*running("watch", 1), expected={"watch": Expected(count=1)}, policies=[])
    assert bad(check_processes(other)) == {}


@pytest.mark.parametrize(("cluster", "severity"), [(True, {"workers.running": Severity.ERROR}), (False, {})])
def test_labels_are_needed_only_on_a_cluster(cluster: bool, severity: dict[str, Severity]) -> None:
    others = {worker: Expected(count=2) for worker in ALL if worker != "labels"}
    processes = [each for worker in others for each in running(worker, 2)]
    assert bad(check_processes(facts(*processes, expected=others, cluster=cluster))) == severity


def test_the_certificate_that_a_process_shows_to_the_bus_is_found_before_it_expires() -> None:
    (first, second) = running("labels", 2)
    soon = {"bus": NOW + 90 * 86400, "bus-cert": NOW + 5 * 86400}
    ending = second._replace(process=msgspec.structs.replace(second.process, expires=soon))
    found = one(check_processes(facts(first, ending)), "workers.expires")
    assert (found.severity, found.run) == (Severity.WARNING, "")
    assert found.what == f"the certificate in --bus-cert of {second.process.name} expires in 5 days"
    assert found.mend == "renew the certificate, and replace the file, which is read again"


def test_the_certificate_of_a_kubeconfig_is_found_and_is_none_of_tas_certs() -> None:
    """A process reads the file once."""
    (first,) = running("labels", 1)
    ended = first._replace(process=msgspec.structs.replace(first.process, expires={"kubeconfig": NOW - 2 * 86400}))
    found = one(check_processes(facts(ended, expected={})), "workers.expires")
    assert (found.severity, found.run) == (Severity.ERROR, "")
    assert found.what.startswith(f"the certificate in --kubeconfig of {first.process.name} expired 2 days ago")
    assert found.mend == "renew the certificate, and restart the process"


def test_a_dismissed_worker_is_not_missed() -> None:
    found = facts(expected={"marks": Expected(count=0, dismissed="anna"), **facts().expected})
    assert bad(check_processes(found)) == {}


def test_a_worker_that_is_not_ready_is_an_error_unless_another_replica_is() -> None:
    late = running("evaluate", 1, unready="NODES: not caught up")
    rest = [each for worker in ALL[1:] for each in running(worker, 2)]
    only = facts(*rest, *late, expected={})
    assert severities(check_processes(only))["workers.ready"] is Severity.ERROR
    other = facts(*rest, *late, *running("evaluate", 1, version="2"), expected={})
    assert severities(check_processes(other))["workers.ready"] is Severity.WARNING


def test_a_bus_without_workers_makes_each_check_unknown() -> None:
    missing = Missing("the bus has no WORKERS")
    found = [*check_processes(missing), *check_answers(missing)]
    assert set(severities(found).values()) == {Severity.UNKNOWN}
    assert verdict_of(found) is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("answer", "severity"),
    [
        (LastAnswer(time=NOW - 5), Severity.OK),
        (LastAnswer(time=NOW + 86_400), Severity.OK),  # by its own clock, which is of tomorrow
        (LastAnswer(time=NOW - 100_000), Severity.HINT),
        (LastAnswer(time=NOW - 5, status=503), Severity.ERROR),
        (None, Severity.WARNING),
    ],
)
def test_when_a_scheduler_last_asked(answer: LastAnswer | None, severity: Severity) -> None:
    answers = {} if answer is None else {"filter": answer}
    process = Process(version="1", name="h", started=0.0, workers={"extender": ""}, answers=answers, time=NOW)
    found = one(check_answers(facts(Running("extender", "a", process, NOW))), "extender.asked")
    assert found.severity is severity


def test_the_worst_is_first_and_ok_is_left_out() -> None:
    found = worst_first(check_processes(facts(*running("labels", 1, unready="no"), expected={})))
    assert [each.severity for each in found] == sorted(
        (each.severity for each in found), key=[*reversed(list(Severity))].index
    )
    assert Severity.OK not in {each.severity for each in found}


def source(kind: str, **fields: object) -> SourceState:
    state = SourceState(
        kind=kind, holder="h", since=0.0, time=NOW, period=5.0, polls=1, metrics={"load1": SourceMetric(nodes=300)}
    )
    return msgspec.structs.replace(state, **fields)


@pytest.mark.parametrize(
    ("state", "measured", "arrived", "severity"),
    [
        pytest.param(source("prometheus"), 3, 3, {}, id="fresh"),
        pytest.param(source("prometheus"), 20, 3, {"metrics.late": Severity.WARNING}, id="20 s late"),
        pytest.param(source("prometheus"), 67, 67, {"metrics.late": Severity.WARNING}, id="67 s late"),
        pytest.param(source("custom-metrics"), 50, 3, {}, id="an adapter that measures once a minute"),
        pytest.param(source("custom-metrics"), 50, 50, {"metrics.late": Severity.WARNING}, id="nothing new comes"),
        pytest.param(source("prometheus", behind=40.0), 45, 45, {"metrics.sources": Severity.WARNING}, id="behind"),
        pytest.param(source("prometheus", problem="refused"), 20, 20, {"metrics.sources": Severity.ERROR}, id="dead"),
    ],
)
def test_values_that_come_late_are_found_though_they_are_fresh_for_the_rules(
    state: SourceState, measured: float, arrived: float, severity: dict[str, Severity]
) -> None:
    scrape = Scrape(
        source="prometheus",
        measured=NOW - measured,
        arrived=NOW - arrived,
        sequence=1,
        metrics={"load1": parse_quantity("1")},
    )
    found = MetricFacts(
        policies=[policy_of("load1")],
        samples={"a": (scrape,)},
        nodes={"a": {}},
        sources={"prometheus": state},
        held=["prometheus"],
        now=NOW,
        stale_after=120.0,
    )
    assert bad(check_metrics(found)) == severity
    for each in check_metrics(found):
        if each.check == "metrics.late" and severity == {"metrics.late": Severity.WARNING}:
            assert (each.run, "does the source answer" in each.mend) == ("tas get sources", True)
    for others_come, alert in ((True, "TasMetricLate"), (False, "TasSourceSilent")):
        late = [LateMetric("heat", "agent", NOW - 40, others_come=others_come)]
        of_evaluate = msgspec.structs.replace(found, late=late, sources={}, held=[])
        assert one(check_metrics(of_evaluate), "metrics.late").run == f"tas runbook {alert}"


@pytest.mark.parametrize(
    ("ahead", "text"),
    [
        (3600.0, "the clock of a (labels) is 3600 s ahead of that of the nats-server"),
        (5.5, "the clock of a (labels) is 6 s ahead of that of the nats-server"),
        (5.0, ""),
        (-10.0, ""),  # the record may have been on its way for some seconds
        (-3605.0, "the clock of a (labels) is 3600 s or more behind that of the nats-server"),
    ],
)
def test_a_wrong_clock_of_a_process_is_found(ahead: float, text: str) -> None:
    """A replica whose clock was an hour ahead took all values for stale, and all was well."""
    own = described("labels", "a", time=NOW + ahead)
    found = check_processes(facts(own._replace(stored=NOW), described("labels", "b", time=NOW), expected={}))
    assert [each.what for each in found if each.check == "workers.clocks" and each.severity is not Severity.OK] == (
        [text] if text else []
    )


def test_the_clocks_that_differ_most_are_named_of_the_processes_that_a_stranger_invents() -> None:
    clocks = range(MOST_CLOCKS + 5)
    found = clocks_ahead(described("labels", f"p{each:03}", time=NOW + each)._replace(stored=NOW) for each in clocks)
    assert found == {f"p{number:03}": number for number in range(5, MOST_CLOCKS + 5)}
    twice = [described("labels", "a", time=NOW + ahead)._replace(stored=NOW) for ahead in (3.0, -3600.0, 9.0)]
    assert clocks_ahead(twice) == {"a": -3595.0}, "two processes of one name"


def test_the_clock_of_a_process_that_does_not_say_its_time_is_unknown() -> None:
    found = check_processes(facts(described("labels", "a", time=None), described("labels", "b"), expected={}))
    (clocks,) = [each for each in found if each.check == "workers.clocks"]
    assert (clocks.severity, "a of an earlier version" in clocks.what) == (Severity.UNKNOWN, True)


def test_metrics_that_come_late_are_named_with_their_source_unless_it_is_known_to_fail() -> None:
    late = [
        LateMetric("heat", "prometheus", NOW - 40, 5.0, others_come=True),
        LateMetric("load", "prometheus", NOW - 30, 5.0, others_come=True),
        LateMetric("power", "agent", NOW - 130),
        LateMetric("free", "failing", NOW - 40, 5.0),
    ]
    sources = {"prometheus": source("prometheus"), "failing": source("prometheus", problem="down")}
    found = late_sources(sources, sources.keys(), {}, late, now=NOW)
    every = ", and before there was a new one every 5 s; load is late, too"
    assert found == {
        "prometheus": f"the newest value of heat by prometheus is 40 s old{every}",
        "agent": "the newest value of power by agent is 130 s old",
    }
    assert health_with(found, "prometheus", Health.HEALTHY) is Health.LATE


def test_nodes_that_vanish_from_the_answers_of_a_healthy_source_are_found_before_they_are_stale() -> None:
    """Half of the nodes were missing, and for two minutes the source was healthy and all was well."""
    lost = LostNodes(metric="load1", count=150, nodes=300, since=NOW - 40, names=("a", "b", "c"))
    what = "gives no new load1 of 150 of 300 nodes for 40 s: a, b, c and 147 more"
    polled = source("prometheus", lost=lost)
    sources = {
        "prometheus": polled,
        "failing": msgspec.structs.replace(polled, problem="down"),
        "received": msgspec.structs.replace(polled, period=None),
        "whole": source("prometheus"),
    }
    late = late_sources(sources, sources.keys(), {}, [], now=NOW)
    assert late == {
        "prometheus": f"prometheus {what}, and the source is polled every 5 s",
        "received": f"received {what}",
    }
    assert health_with(late, "prometheus", Health.HEALTHY) is Health.LATE
    assert health_with(late, "whole", Health.HEALTHY) is Health.HEALTHY
    assert health_with(late, "prometheus", Health.PARTIAL) is Health.PARTIAL


def described(worker: str, name: str, **fields: object) -> Running:
    process = Process(version="1", name=name, started=0.0, workers={worker: ""}, time=NOW)
    return Running(worker, name, msgspec.structs.replace(process, **fields), NOW)


def test_what_both_replicas_see_is_one_finding() -> None:
    """Zeros with fresh times removed labels for a night, and the screen said that all is well."""
    concern = "2 labels of policies on nodes are set and removed again and again"
    both = [described("labels", name, concerns={"labels": (concern,)}) for name in ("a", "b")]
    other = [each for worker in ALL if worker != "labels" for each in running(worker, 2)]
    found = list(check_processes(facts(*other, *both)))
    assert bad(found) == {"workers.concerns": Severity.WARNING}
    assert one(found, "workers.concerns").what == f"labels of a, b: {concern}"
    assert verdict_of(found) is Verdict.WRONG


ASKED_AT = NOW - 300.0


@pytest.mark.parametrize(
    ("pods", "severity"),
    [
        ({}, Severity.OK),
        ({"placed": ASKED_AT + 9, "waiting": ASKED_AT}, Severity.OK),  # clocks differ
        ({"placed": ASKED_AT + 11}, Severity.ERROR),
        ({"waiting": ASKED_AT + 11}, Severity.ERROR),
    ],
)
def test_a_pod_newer_than_the_last_request_was_placed_without_us(pods: dict[str, float], severity: Severity) -> None:
    """Of two extenders one was asked, and the scheduler has another address since."""
    one_asked = described("extender", "a", answers={"filter": LastAnswer(time=ASKED_AT)})
    other = described("extender", "b")
    watch = described("watch", "c", newest_pods=pods)
    found = one(check_processes(facts(one_asked, other, watch, expected={}, policies=[])), "workers.asked")
    assert found.severity is severity
    if severity is Severity.ERROR:
        (state,) = pods
        assert found.what == f"pods with a policy are {state}, and for 300 s no scheduler has asked any extender"


def test_an_extender_that_has_just_started_and_a_pod_placed_long_ago_prove_nothing() -> None:
    for started, created in ((NOW - 100.0, NOW - 300.0), (0.0, NOW - 1000.0)):
        process = Process(version="1", name="a", started=started, workers={"extender": ""}, time=NOW)
        watch = described("watch", "c", newest_pods={"placed": created})
        found = check_processes(facts(Running("extender", "a", process, NOW), watch, expected={}, policies=[]))
        assert one(found, "workers.asked").severity is Severity.OK


@pytest.mark.parametrize(
    ("failing", "what", "mend"),
    [
        ({}, "collect of a is 40 s behind with prometheus", "When there is too much to do"),
        ({"other": "down"}, "collect of a is 40 s behind with prometheus", "When there is too much to do"),
        (
            {"prometheus": "connection refused"},
            "collect of a is 40 s behind with prometheus, since the source fails: connection refused",
            "when nothing comes",
        ),
    ],
)
def test_what_is_behind_since_its_source_fails_is_not_blamed_on_the_load(
    failing: dict[str, str], what: str, mend: str
) -> None:
    behind = described("collect", "a", behind={"collect": {"prometheus": 40.0}})
    found = one(check_processes(msgspec.structs.replace(facts(behind), failing=failing)), "workers.behind")
    assert found.what == what
    assert mend in found.mend
