"""Are the policies' labels wired into pods: the pod label, the managed resource, the required node affinity?"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tas.diagnosis.finding import Finding, Missing, Severity, finding, none_checked, ok, some, unknown
from tas.diagnosis.owner import Owner
from tas.enforcing.node_resource import RESOURCE
from tas.policy.policy import LABEL_PREFIX, POD_LABEL, Policy, PolicyKey, StrategyType

VIOLATING = "violating"


class Expression(NamedTuple):
    """A requirement for labels of nodes."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    @property
    def excludes(self) -> bool:
        """Whether a node with `<key>=violating` does not match."""
        return (
            (self.operator == "NotIn" and VIOLATING in self.values)
            or self.operator == "DoesNotExist"
            or (self.operator == "In" and VIOLATING not in self.values)
        )

    @property
    def is_ours(self) -> bool:
        """Whether the requirement is for a label in our form."""
        return self.key.startswith(LABEL_PREFIX) or (
            "/" not in self.key and self.operator in ("In", "NotIn") and VIOLATING in self.values
        )


Term = tuple[Expression, ...]
"""A node matches a term if it matches all expressions."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A pod, by what matters for policies.

    Attributes:
        policy: The value of its label `telemetry-policy`; empty without it.
        resources: The names of the resources that its containers request or limit.
        required: The terms of its required node affinity, each with its nodeSelector: a node must match one of them.
            Empty if the pod requires nothing of its node.
        preferred: The requirements of its preferred node affinity, which a descheduler ignores by default.
    """

    namespace: str
    name: str
    owner: Owner
    policy: str = ""
    resources: frozenset[str] = frozenset()
    required: tuple[Term, ...] = ()
    preferred: Term = ()

    @property
    def expressions(self) -> Iterator[Expression]:
        """All requirements."""
        for term in self.required:
            yield from term
        yield from self.preferred

    @property
    def excluded(self) -> frozenset[str]:
        """The keys whose value `violating` keeps the pod off a node."""
        terms = [frozenset(each.key for each in term if each.excludes) for term in self.required]
        return frozenset.intersection(*terms) if terms else frozenset()


class DaemonSetTemplate(NamedTuple):
    """The template of the pods of a DaemonSet: the pods have another required node affinity (facts.md c50)."""

    owner: Owner
    required: tuple[Term, ...]


class WorkloadFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What runs in the cluster.

    Attributes:
        pods: Those that have not ended.
        managed: The resources of the extender's entry; empty: the extender is asked for each pod.
        changing: Policies that were created or deleted while all was read: it is not said that one does not exist.
    """

    pods: Sequence[Workload] | Missing
    daemon_sets: Sequence[DaemonSetTemplate] | Missing
    policies: Mapping[PolicyKey, Policy] | Missing
    managed: Collection[str] | Missing
    changing: Collection[PolicyKey] = frozenset()


def check_workloads(facts: WorkloadFacts) -> Iterator[Finding]:
    """The findings about pods and DaemonSets."""
    policies = facts.policies
    if isinstance(policies, Missing):
        yield from none_checked("workloads", policies)
        return
    labels = _Labels(
        frozenset(key.name for key in _with(policies, StrategyType.DESCHEDULE)),
        tuple(f"{LABEL_PREFIX}{key.name}/" for key in _with(policies, StrategyType.LABELING)),
    )
    if isinstance(facts.pods, Missing):
        yield from none_checked("workloads", facts.pods, but=("workloads.daemonset",))
    else:
        yield from _idle(facts.pods, policies)
        yield from _lost(facts.pods, policies, facts.changing)
        yield from _resource(facts.pods, facts.managed)
        yield from _affinity(facts.pods, policies, labels)
        names = sorted(key.name for key in facts.changing)
        perhaps = _Labels(frozenset(names), tuple(f"{LABEL_PREFIX}{name}/" for name in names))
        yield from _keys(facts.pods, labels, perhaps)
    yield _daemon_sets(facts.daemon_sets, labels)


class _Labels(NamedTuple):
    """The labels that policies set on nodes.

    Attributes:
        names: The keys of `deschedule`.
        prefixes: Of the keys of `labeling`.
    """

    names: frozenset[str]
    prefixes: tuple[str, ...]

    def has(self, key: str) -> bool:
        """Whether a policy sets the label."""
        return key in self.names or (bool(self.prefixes) and key.startswith(self.prefixes))


def _with(policies: Mapping[PolicyKey, Policy], strategy: StrategyType) -> list[PolicyKey]:
    return sorted(key for key, policy in policies.items() if strategy in policy.strategies)


def _idle(pods: Sequence[Workload], policies: Mapping[PolicyKey, Policy]) -> Iterator[Finding]:
    used = {PolicyKey(pod.namespace, pod.policy) for pod in pods if pod.policy}
    for_placement = {StrategyType.DONTSCHEDULE, StrategyType.SCHEDULEONMETRIC}
    idle = sorted(
        key for key, policy in policies.items() if policy.strategies.keys() & for_placement and key not in used
    )
    if not idle:
        yield ok("workloads.label", "each policy for placement is named by a pod")
        return
    key = idle[0]
    what = f"no pod has the label of {some(map(str, idle))}"
    mend = f"in the pod template of a workload: labels: {{{POD_LABEL}: {key.name}}}"
    run = Owner(key.namespace, "Deployment", "NAME").command("edit")
    yield finding("workloads.label", Severity.WARNING, what, mend, run=run)


def _lost(
    pods: Sequence[Workload], policies: Mapping[PolicyKey, Policy], changing: Collection[PolicyKey]
) -> Iterator[Finding]:
    owners: dict[PolicyKey, Owner] = {}
    for pod in pods:
        key = PolicyKey(pod.namespace, pod.policy)
        if pod.policy and key not in policies and key not in changing:
            owners[key] = min(pod.owner, owners.get(key, pod.owner))
    if not owners:
        yield ok("workloads.policy", "each policy that a pod names exists")
    for key, owner in sorted(owners.items()):
        elsewhere = sorted(other for other in policies if other.name == key.name)
        what = f"pods of {owner} name the policy {key.name}, which does not exist in {key.namespace}"
        if elsewhere:
            what += f", but in {some(other.namespace for other in elsewhere)}"
        mend = f"create the policy in {key.namespace}, or correct the label {POD_LABEL} in the pod template"
        yield finding("workloads.policy", Severity.ERROR, what, mend, run=owner.command("edit"))


def _resource(pods: Sequence[Workload], managed: Collection[str] | Missing) -> Iterator[Finding]:
    if isinstance(managed, Missing):
        yield unknown("workloads.resource", managed)
        return
    without = [pod.owner for pod in pods if pod.policy and managed and not pod.resources & set(managed)]
    if without:
        what = f"pods of {some(map(str, without))} name a policy, and request none of {some(managed)}"
        mend = f"in the pod template: resources: {{limits: {{{min(managed)}: 1}}}}"
        yield finding("workloads.resource", Severity.ERROR, what, mend, run=min(without).command("edit"))
    else:
        yield ok("workloads.resource", "the scheduler asks for each pod that names a policy")


def _affinity(pods: Sequence[Workload], policies: Mapping[PolicyKey, Policy], labels: _Labels) -> Iterator[Finding]:
    excluded = frozenset[str]().union(*(pod.excluded for pod in pods))
    mentioned = {each.key for pod in pods for each in pod.expressions}
    idle = [key for key in _with(policies, StrategyType.DESCHEDULE) if key.name not in excluded]
    for key in idle:
        what = f"no pod has a required node affinity that excludes {key.name}={VIOLATING}, the label of {key}"
        if key.name in mentioned:
            what += "; a preferred affinity has no effect, and of several nodeSelectorTerms each must exclude it"
        mend = (
            f"in the pod template, required node affinity: {{key: {key.name}, operator: NotIn, values: [{VIOLATING}]}}"
        )
        owners = [pod.owner for pod in pods if PolicyKey(pod.namespace, pod.policy) == key]
        run = min(owners, default=Owner("NAMESPACE", "Deployment", "NAME")).command("edit")
        yield finding("workloads.affinity", Severity.WARNING, what, mend, run=run)
    unused = [prefix for prefix in labels.prefixes if not any(key.startswith(prefix) for key in mentioned)]
    if unused:
        what = f"no pod has a node affinity or selector for labels under {some(unused)}"
        mend = f"use labels under {unused[0]} in a node affinity; this shows them"
        yield finding("workloads.affinity", Severity.HINT, what, mend, run="kubectl get nodes --show-labels")
    if not idle and not unused:
        yield ok("workloads.affinity", "each label of a policy is used by a pod")


def _keys(pods: Sequence[Workload], labels: _Labels, perhaps: _Labels) -> Iterator[Finding]:
    wrong: dict[str, set[Owner]] = {}
    for pod in pods:
        for each in pod.expressions:
            if each.is_ours and not labels.has(each.key) and not perhaps.has(each.key):
                wrong.setdefault(each.key, set()).add(pod.owner)
    for key, owners in sorted(wrong.items()):
        what = f"pods of {some(map(str, owners))} have a node affinity for {key}, which no policy sets"
        known = some([*labels.names, *labels.prefixes])
        mend = f"in the pod template: a key that a policy sets, such as {known}" if known else "remove the affinity"
        yield finding("workloads.key", Severity.WARNING, what, mend, run=min(owners).command("edit"))
    if not wrong:
        yield ok("workloads.key", "no pod has an affinity for a label that no policy sets")


def _daemon_sets(found: Sequence[DaemonSetTemplate] | Missing, labels: _Labels) -> Finding:
    if isinstance(found, Missing):
        return unknown("workloads.daemonset", found)
    wrong = [
        each.owner
        for each in found
        if any(one.is_ours or labels.has(one.key) for term in each.required for one in term)
    ]
    if wrong:
        what = f"{some(map(str, wrong))}: has a required node affinity for a label of a policy"
        mend = "remove the affinity from the DaemonSet"
        return finding("workloads.daemonset", Severity.ERROR, what, mend, run=min(wrong).command("edit"))
    return ok("workloads.daemonset", "no DaemonSet has such an affinity")


def requests_resource(pods: Sequence[Workload]) -> bool:
    """Whether a pod requests `telemetry/scheduling`."""
    return any(RESOURCE in pod.resources for pod in pods)
