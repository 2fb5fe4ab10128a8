"""Are there policies, are they valid, and do two of them want one label?"""

from collections.abc import Collection, Iterator, Mapping

import msgspec

from tas.diagnosis.finding import Finding, Missing, Severity, command, finding, none_checked, ok, some, unknown
from tas.policy.directory import FileProblem, FileProblems
from tas.policy.manifest import STRATEGY_FIELDS
from tas.policy.policy import Policy, PolicyKey, Problem
from tas.processes.process import NotReady
from tas.values.nouns import counted
from tas.verdict.freeze import Breaker, Pause, freeze_of
from tas.verdict.ownership import LABEL_STRATEGIES, claim_of, owner_of
from tas.verdict.refused import RefusedLabel

FROM_API = ("policies.served", "policies.crd", "policies.mirrored")
"""The checks that ask the API server: they have their findings before anything of the bus is known."""

CRD_COMMAND = "tas crd | kubectl apply -f -"


class StoredPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy as stored on the bus.

    Attributes:
        created: In seconds since 1970; None for one of a directory.
        origin: The file of the policy in the directory; empty for one of the API server.
    """

    policy: Policy
    uid: str = ""
    created: float | None = None
    problems: Collection[Problem] = ()
    origin: str = ""


class PolicyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Policies.

    Attributes:
        stored: Those on the bus.
        in_api: Those of the API server; None: it does not serve TASPolicies.
        strategy_fields: The fields of a strategy by the CRD of the cluster.
        has_api: Whether policies come from an API server, not from a directory.
        changing: Those that were created or deleted while all was read: their absence means nothing.
        breakers: By name of policies, or `ALL`.
        refused: The labels and marks that the API server refuses, by name of policies.
        file_problems: Those of the files of policies, by their last reader.
        not_ready: Those whose condition `Ready` is False, by its reason, as the process says that writes it; Missing:
            the processes are not known, or none of them has the lease of `status`.
    """

    stored: Collection[StoredPolicy] | Missing
    in_api: Collection[PolicyKey] | Missing | None
    strategy_fields: Collection[str] | Missing
    has_api: bool = True
    changing: Collection[PolicyKey] = frozenset()
    breakers: Mapping[str, Breaker] = {}
    pause: Pause | None = None
    refused: Mapping[str, Collection[RefusedLabel]] = {}
    file_problems: FileProblems = FileProblems()
    not_ready: Mapping[str, NotReady] | Missing = {}


def check_policies(facts: PolicyFacts) -> Iterator[Finding]:
    """The findings about policies."""
    if facts.has_api:
        yield _served(facts.in_api)
        if facts.in_api is not None:
            yield _current(facts.strategy_fields)
        yield _mirrored(facts)
    if isinstance(facts.stored, Missing):
        yield from none_checked("policies", facts.stored, but=FROM_API)
        return
    if facts.stored:
        yield ok("policies.any", f"{counted(len(facts.stored), 'policy is', 'policies are')} in force")
    else:
        where = "with kubectl apply" if facts.has_api else "as a file in the directory of --policies"
        mend = f"create a policy {where}: docs/start/policies.md"
        yield finding("policies.any", Severity.WARNING, "the bus has no policy", mend)
    yield from _valid(facts.stored, facts.file_problems)
    yield from _labels(facts.stored)
    yield from _frozen(facts.stored, facts)
    yield from _written(facts.stored, facts)


def _served(in_api: Collection[PolicyKey] | Missing | None) -> Finding:
    if isinstance(in_api, Missing):
        return unknown("policies.served", in_api)
    if in_api is None:
        what = "the API server serves no TASPolicies"
        return finding("policies.served", Severity.ERROR, what, run=CRD_COMMAND)
    return ok("policies.served", "the API server serves TASPolicies")


def strategy_fields(schemas: bytes) -> frozenset[str] | Missing:
    """The fields of a strategy in the schemas of the CRD's version, as the API server publishes them (OpenAPI v3)."""
    try:
        published = _schemas.decode(schemas)
    except msgspec.MsgspecError:
        return Missing("the API server publishes a schema of TASPolicies that cannot be read")
    for schema in published.components.schemas.values():
        strategies = schema.properties.get("spec", _Schema()).properties.get("strategies", _Schema())
        found = [strategies.additional_properties, *strategies.properties.values()]
        fields = [frozenset(each.properties) for each in found if isinstance(each, _Schema) and each.properties]
        if fields:
            return frozenset.intersection(*fields)
    return Missing("the API server publishes no schema of a strategy")


def _current(fields: Collection[str] | Missing) -> Finding:
    if isinstance(fields, Missing):
        return unknown("policies.crd", fields)
    lacking = sorted(set(STRATEGY_FIELDS).difference(fields))
    if not lacking:
        return ok("policies.crd", "the CRD of the cluster has all fields")
    what = f"the CRD of the cluster is of an earlier version: it drops {', '.join(lacking)} of a strategy"
    if "keepFor" in lacking:
        what += ", and refuses onStale: keep"
    return finding("policies.crd", Severity.WARNING, what, "helm upgrade never does this", run=CRD_COMMAND)


class _Schema(msgspec.Struct, frozen=True, rename="camel"):
    properties: "dict[str, _Schema]" = {}
    additional_properties: "_Schema | bool" = False


class _Components(msgspec.Struct, frozen=True):
    schemas: dict[str, _Schema] = {}


class _Published(msgspec.Struct):
    components: _Components = _Components()


_schemas = msgspec.json.Decoder(_Published)


def _mirrored(facts: PolicyFacts) -> Finding:
    in_api, known = facts.in_api, facts.stored
    if in_api is None:
        in_api = Missing("the API server serves no TASPolicies")
    if isinstance(in_api, Missing):
        return unknown("policies.mirrored", in_api)
    if isinstance(known, Missing):
        return unknown("policies.mirrored", known)
    stored = {each.policy.key for each in known}
    lacking, left_over = (each.difference(facts.changing) for each in (set(in_api) - stored, stored - set(in_api)))
    if lacking or left_over:
        what = "; ".join(
            text
            for text in (
                f"not on the bus: {some(map(str, lacking))}" if lacking else "",
                f"not in the API server: {some(map(str, left_over))}" if left_over else "",
            )
            if text
        )
        mend = "run this worker for this cluster, on this bus; tas run all contains it"
        run = command("tas", "run", "watch", "--kubeconfig", "FILE", "--bus", "nats://HOST:4222")
        return finding("policies.mirrored", Severity.ERROR, what, mend, run=run)
    return ok("policies.mirrored", "the bus has the policies of the API server")


def _valid(stored: Collection[StoredPolicy], files: FileProblems) -> Iterator[Finding]:
    wrong = [each for each in stored if each.problems]
    for each in sorted(wrong, key=lambda one: one.policy.key):
        key = each.policy.key
        first, more = min(each.problems, key=lambda problem: not problem.refused), len(each.problems) - 1
        what = f"{key}: {first}" + (f", and {more} more" if more else "")
        mend = "correct each field that this names"
        run = command("tas", "policy", "lint", each.origin)
        if not each.origin:
            get = command("kubectl", "get", "taspolicy", "--namespace", key.namespace, key.name, "-o", "yaml")
            run = f"{get} | tas policy lint -"
        yield finding("policies.valid", Severity.WARNING, what, mend, run=run)
    yield from _files(files)
    if not wrong and files == FileProblems():
        yield ok("policies.valid", "no policy has a problem")


def _files(problems: FileProblems) -> Iterator[Finding]:
    of_file: dict[str, list[FileProblem]] = {}
    for each in problems.listed:
        of_file.setdefault(each.origin, []).append(each)
    for origin, (first, *others) in sorted(of_file.items()):
        what = f"{first}; in force: {first.in_force}" + (f"; and {len(others)} more" if others else "")
        mend, run = "correct what this names, or delete the file", command("tas", "policy", "lint", origin)
        yield finding("policies.valid", Severity.WARNING, what, mend, run=run)
    if problems.others:
        what = f"{counted(problems.others, 'more problem')} of policy files"
        mend = "GET /problems of tas run policies, or /problems/files of tas up, has them"
        yield finding("policies.valid", Severity.WARNING, what, mend)


def _frozen(stored: Collection[StoredPolicy], facts: PolicyFacts) -> Iterator[Finding]:
    freezes: dict[str, list[PolicyKey]] = {}
    for each in stored:
        if set(LABEL_STRATEGIES) & each.policy.strategies.keys():
            freeze = freeze_of(each.policy.key, facts.breakers, facts.pause)
            if freeze is not None:
                freezes.setdefault(freeze.text, []).append(each.policy.key)
    for text, keys in sorted(freezes.items()):
        what, _, run = text.rpartition("; no label is set or removed until: ")
        severity = Severity.WARNING if facts.pause is not None else Severity.ERROR
        mend = "find out why, and then let labels change again"
        yield finding("policies.frozen", severity, f"{some(map(str, keys))}: {what}", mend, run=run)
    if not freezes:
        yield ok("policies.frozen", "no breaker has tripped, and nothing is paused")


NOT_WRITTEN = ("LabelsNotWritten", "MarksNotWritten")
"""The reasons of the condition `Ready` that say that nodes are not as a policy wants."""


def _written(stored: Collection[StoredPolicy], facts: PolicyFacts) -> Iterator[Finding]:
    refused: set[str] = set()  # policies
    found = False
    mend = (
        "docs/background/labels.md and docs/how-to/marks.md say what the API server refuses; "
        "docs/reference/health.md has the other reasons"
    )
    for name, labels in sorted(facts.refused.items()):
        keys = [str(each.policy.key) for each in stored if each.policy.key.name == name]
        for each in labels if keys else ():
            found = True
            refused.update(keys)
            what = f"{each.label} of {some(keys)}: {each}"
            yield finding("policies.written", Severity.WARNING, what, mend, run="tas get policies")
    if isinstance(facts.not_ready, Missing):
        if not found:
            yield unknown("policies.written", facts.not_ready)
        return
    for reason in NOT_WRITTEN:
        policies = facts.not_ready.get(reason, NotReady(0, ()))
        others = set(policies.policies) - refused
        more = policies.count - len(policies.policies)
        if others or more > 0:
            found = True
            named = some(others, more=more) if others else f"{more} more"
            what = f"{named}: Ready is False, {reason}"
            run = "kubectl get taspolicies --all-namespaces"
            yield finding("policies.written", Severity.WARNING, what, mend, run=run)
    if not found:
        yield ok("policies.written", "the API server accepts all labels and marks of policies")


def _labels(stored: Collection[StoredPolicy]) -> Iterator[Finding]:
    names: dict[str, dict[PolicyKey, StoredPolicy]] = {}
    for each in stored:
        names.setdefault(each.policy.key.name, {})[each.policy.key] = each
    shared = False
    for name, policies in sorted(names.items()):
        claims = {key: claim_of(each.policy, uid=each.uid, created=each.created) for key, each in policies.items()}
        for strategy in LABEL_STRATEGIES:
            wanting = sorted(key for key, claim in claims.items() if strategy in claim.strategies)
            if len(wanting) < 2:
                continue
            shared = True
            owner = owner_of(strategy, claims)
            others = [key for key in wanting if key != owner]
            what = f"{strategy} of {some(map(str, wanting))} want the label {name}: {owner} sets the label"
            mend = f"give {some(map(str, others))} another name: create it anew, and delete the one with this name"
            run = command("kubectl", "get", "taspolicy", "--namespace", others[0].namespace, name, "-o", "yaml")
            yield finding("policies.label", Severity.WARNING, what, mend, run=run)
    if not shared:
        yield ok("policies.label", "no two policies want one label")
