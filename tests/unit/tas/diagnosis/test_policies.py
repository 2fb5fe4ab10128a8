"""The checks of policies."""

import json

import msgspec

from tas.diagnosis.finding import Missing, Severity
from tas.diagnosis.overview import overview
from tas.diagnosis.policies import PolicyFacts, StoredPolicy, check_policies, strategy_fields
from tas.policy.directory import LAST_GOOD, FileProblem, FileProblems
from tas.policy.manifest import STRATEGY_FIELDS
from tas.policy.policy import PolicyKey, Problem
from tas.processes.process import NotReady
from tas.verdict.refused import RefusedLabel
from tests.unit.tas.diagnosis.found import bad, one, severities
from tests.unit.tas.diagnosis.samples import policy

KEY = PolicyKey("default", "demo")
DEMO = StoredPolicy(policy=policy("demo", "deschedule"), uid="1", created=10.0)
OTHER = StoredPolicy(policy=policy("demo", "deschedule", namespace="other"), uid="2", created=5.0)


def in_files(*stored: StoredPolicy) -> PolicyFacts:
    """Policies of a directory."""
    return PolicyFacts(stored=stored, in_api=None, strategy_fields=STRATEGY_FIELDS, has_api=False)


def test_a_policy_that_is_mirrored_has_no_finding() -> None:
    findings = list(check_policies(PolicyFacts(stored=[DEMO], in_api=[KEY], strategy_fields=STRATEGY_FIELDS)))
    assert bad(findings) == {}
    assert len(severities(findings)) == 8


def test_without_a_cluster_nothing_is_compared() -> None:
    assert "policies.mirrored" not in severities(check_policies(in_files(DEMO)))


def test_policies_of_two_namespaces_that_want_one_label_are_found_with_the_owner() -> None:
    found = one(check_policies(in_files(DEMO, OTHER)), "policies.label")
    assert found.severity is Severity.WARNING
    assert "other/demo sets the label" in found.what
    assert found.mend.startswith("give default/demo another name")
    assert found.run == "kubectl get taspolicy --namespace default demo -o yaml"


def test_policies_of_one_name_without_labels_share_nothing() -> None:
    quiet = [StoredPolicy(policy=policy("demo", "dontschedule", namespace=name)) for name in ("a", "b")]
    assert bad(check_policies(in_files(*quiet))) == {}


def test_what_is_wrong_with_the_store_is_found() -> None:
    absent = PolicyFacts(stored=[], in_api=[KEY], strategy_fields=STRATEGY_FIELDS)
    assert bad(check_policies(absent)) == {"policies.any": Severity.WARNING, "policies.mirrored": Severity.ERROR}
    assert "not on the bus: default/demo" in one(check_policies(absent), "policies.mirrored").what
    extra = one(
        check_policies(PolicyFacts(stored=[DEMO], in_api=[], strategy_fields=STRATEGY_FIELDS)), "policies.mirrored"
    )
    assert extra.what == "not in the API server: default/demo"
    unserved = list(check_policies(PolicyFacts(stored=[DEMO], in_api=None, strategy_fields=STRATEGY_FIELDS)))
    assert one(unserved, "policies.served").run == "tas crd | kubectl apply -f -"
    assert bad(unserved) == {"policies.served": Severity.ERROR, "policies.mirrored": Severity.UNKNOWN}


def schemas(*fields: str, **extra: object) -> bytes:
    """As an API server publishes them, with this CRD and a schema without it."""
    strategy = {"type": "object", "properties": {name: {"type": "string"} for name in fields}}
    spec = {"properties": {"strategies": {"type": "object", "additionalProperties": strategy}}}
    found = {"TASPolicy": {"properties": {"spec": spec, "status": {}}}, "DeleteOptions": {"properties": {"kind": {}}}}
    return json.dumps({"openapi": "3.0.0", "components": {"schemas": found | extra}}).encode()


def test_a_crd_of_an_earlier_version_is_named() -> None:
    old = strategy_fields(schemas(*(field for field in STRATEGY_FIELDS if field != "keepFor")))
    (found,) = (
        each
        for each in check_policies(PolicyFacts(stored=[], in_api=[], strategy_fields=old))
        if each.check == "policies.crd"
    )
    assert (found.severity, found.run) == (Severity.WARNING, "tas crd | kubectl apply -f -")
    assert "keepFor" in found.what
    assert "onStale: keep" in found.what
    current = strategy_fields(schemas(*STRATEGY_FIELDS, "later"))
    assert (
        one(check_policies(PolicyFacts(stored=[], in_api=[], strategy_fields=current)), "policies.crd").severity
        is Severity.OK
    )


def test_a_schema_that_says_nothing_is_not_an_old_one() -> None:
    for data in (b"", b"{}", b'{"components": 5}', schemas()):
        assert isinstance(strategy_fields(data), Missing)


def test_a_policy_that_is_created_or_deleted_meanwhile_is_no_difference() -> None:
    for stored, in_api in (([], [KEY]), ([DEMO], [])):
        facts = PolicyFacts(stored=stored, in_api=in_api, strategy_fields=STRATEGY_FIELDS, changing={KEY})
        assert one(check_policies(facts), "policies.mirrored").severity is Severity.OK
        other = PolicyFacts(
            stored=stored, in_api=in_api, strategy_fields=STRATEGY_FIELDS, changing={PolicyKey("default", "other")}
        )
        assert one(check_policies(other), "policies.mirrored").severity is Severity.ERROR


def test_the_worst_problem_of_a_policy_is_named() -> None:
    problems = [
        Problem(field="a", value="1", reason="is ignored", refused=False),
        Problem(field="b", value="2", reason="must be x", refused=True),
    ]
    found = one(check_policies(in_files(StoredPolicy(policy=policy("demo"), problems=problems))), "policies.valid")
    assert found.what == "default/demo: b = 2: must be x, and 1 more"
    assert found.run == "kubectl get taspolicy --namespace default demo -o yaml | tas policy lint -"
    filed = StoredPolicy(policy=policy("demo"), problems=problems, origin="my demo.yaml")
    assert one(check_policies(in_files(filed)), "policies.valid").run == "tas policy lint 'my demo.yaml'"


def test_without_facts_nothing_is_ok() -> None:
    findings = check_policies(
        PolicyFacts(stored=Missing("no bus"), in_api=Missing("forbidden"), strategy_fields=Missing("forbidden"))
    )
    assert set(severities(findings).values()) == {Severity.UNKNOWN}
    half = check_policies(PolicyFacts(stored=Missing("no bus"), in_api=[KEY], strategy_fields=STRATEGY_FIELDS))
    assert severities(half)["policies.mirrored"] is Severity.UNKNOWN


def refused(*nodes: str, label: str = "demo") -> RefusedLabel:
    return RefusedLabel(label=label, value="violating", reason="denied by NODE", count=len(nodes), nodes=nodes)


def test_what_the_api_server_refuses_is_found_by_the_name_of_the_policies() -> None:
    facts = msgspec.structs.replace(
        in_files(DEMO),
        refused={"demo": [refused("a", "b"), refused("a", label="taint x/demo")], "gone": [refused("a")]},
    )
    found = [each.what for each in check_policies(facts) if each.check == "policies.written"]
    assert found == [
        "demo of default/demo: the API server refuses the label on 2 nodes (a, b): denied by NODE",
        "taint x/demo of default/demo: the API server refuses the taint on 1 node (a): denied by NODE",
    ]
    assert bad(check_policies(facts)) == {"policies.written": Severity.WARNING}


def test_a_condition_that_labels_are_not_written_is_found() -> None:
    """Of whatever cause: `labels` may wait, or an API server that does not answer."""
    facts = msgspec.structs.replace(
        in_files(DEMO), not_ready={"LabelsNotWritten": NotReady(5, ("default/demo", "x/y"))}
    )
    found = one(check_policies(facts), "policies.written")
    assert (found.severity, found.what) == (
        Severity.WARNING,
        "default/demo, x/y and 3 more: Ready is False, LabelsNotWritten",
    )
    other = msgspec.structs.replace(in_files(DEMO), not_ready={"Suspended": NotReady(1, ("default/demo",))})
    assert bad(check_policies(other)) == {}


def test_a_refusal_of_one_policy_hides_no_condition_of_another_and_no_reason_hides_the_other() -> None:
    facts = msgspec.structs.replace(
        in_files(DEMO),
        refused={"demo": [refused("a")]},
        not_ready={
            "LabelsNotWritten": NotReady(2, ("default/demo", "x/y")),
            "MarksNotWritten": NotReady(1, ("x/z",)),
        },
    )
    found = [each.what for each in check_policies(facts) if each.check == "policies.written"]
    assert found == [
        "demo of default/demo: the API server refuses the label on 1 node (a): denied by NODE",
        "x/y: Ready is False, LabelsNotWritten",
        "x/z: Ready is False, MarksNotWritten",
    ]
    named = msgspec.structs.replace(facts, not_ready={"LabelsNotWritten": NotReady(1, ("default/demo",))})
    assert "LabelsNotWritten" not in one(check_policies(named), "policies.written").what
    more = msgspec.structs.replace(facts, not_ready={"LabelsNotWritten": NotReady(4, ("default/demo",))})
    assert "3 more: Ready is False, LabelsNotWritten" in [each.what for each in check_policies(more)]


def test_while_the_processes_are_not_known_it_is_not_known_whether_labels_are_written() -> None:
    facts = msgspec.structs.replace(in_files(DEMO), not_ready=Missing("no WORKERS"))
    assert bad(check_policies(facts)) == {"policies.written": Severity.UNKNOWN}
    known = msgspec.structs.replace(facts, refused={"demo": [refused("a")]})
    assert bad(check_policies(known)) == {"policies.written": Severity.WARNING}


def test_a_file_of_policies_that_cannot_be_used_is_found_with_what_is_in_force_instead() -> None:
    """Its policies on the bus have no problem: they are those of the last good version."""
    stored = msgspec.structs.replace(DEMO, origin="a b.yaml")
    problems = [
        FileProblem(origin="a b.yaml", subject="file", field="content", value="9 bytes", reason=reason, in_force=force)
        for reason, force in (("no YAML", LAST_GOOD), ("and more", LAST_GOOD))
    ]
    facts = msgspec.structs.replace(in_files(stored), file_problems=FileProblems(listed=tuple(problems), others=3))
    first, rest = (each for each in check_policies(facts) if each.check == "policies.valid")
    text = "file a b.yaml: file: content = 9 bytes: no YAML; in force: last good version; and 1 more"
    assert (first.severity, first.what) == (Severity.WARNING, text)
    assert first.run == "tas policy lint 'a b.yaml'"
    assert (rest.severity, rest.what) == (Severity.WARNING, "3 more problems of policy files")
    missing = Missing("the bus does not say it")
    found = overview(bus=missing, policies=facts, metrics=missing, processes=missing, leases={}, address="")
    assert [(each.policy, each.why) for each in found.not_in_force] == [
        ("default/demo", "the file a b.yaml cannot be used: its last good version is in force")
    ]
