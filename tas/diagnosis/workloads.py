"""Are the policies' labels wired into pods: the pod label, the managed resource, the required node affinity?"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tas.diagnosis.finding import Finding, Missing, Severity, finding, ok, some, unknown
from tas.enforcing.node_resource import RESOURCE
from tas.policy.policy import LABEL_PREFIX, POD_LABEL, Policy, PolicyKey, StrategyType

VIOLATING = "violating"
DAEMON_SET = "DaemonSet"
CHECKS = tuple(f"workloads.{name}" for name in ("label", "policy", "resource", "affinity", "key", "daemonset"))


class Expression(NamedTuple):
    """A requirement for labels of nodes."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A pod, by what matters for policies.

    Attributes:
        owner: The kind and name of its controller, such as `ReplicaSet web-5d`; the pod itself without one.
        policy: The value of its label `telemetry-policy`; empty without it.
        resources: The names of the resources that its containers request or limit.
        required: The requirements of its required node affinity and its nodeSelector.
        preferred: The requirements of its preferred node affinity, which a descheduler ignores by default.
    """

    namespace: str
    name: str
    owner: str = ""
    policy: str = ""
    resources: frozenset[str] = frozenset()
    required: tuple[Expression, ...] = ()
    preferred: tuple[Expression, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def workload_of(*, namespace: str, name: str, owner: str, labels: Mapping[str, str], spec: object) -> Workload:
    """A pod of its spec as decoded JSON. What is not as it should be counts as absent."""
    affinity = _at(spec, "affinity", "nodeAffinity")
    terms = _list(_at(affinity, "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"))
    preferences = _list(_at(affinity, "preferredDuringSchedulingIgnoredDuringExecution"))
    selector = _at(spec, "nodeSelector")
    exact = [
        Expression(key, "In", (str(value),)) for key, value in (selector if isinstance(selector, dict) else {}).items()
    ]
    return Workload(
        namespace=namespace,
        name=name,
        owner=owner,
        policy=labels.get(POD_LABEL, ""),
        resources=frozenset(_resources(spec)),
        required=(*(each for term in terms for each in _expressions(term)), *exact),
        preferred=tuple(each for one in preferences for each in _expressions(_at(one, "preference"))),
    )


def check_workloads(
    pods: Sequence[Workload] | Missing,
    policies: Mapping[PolicyKey, Policy] | Missing,
    managed: Collection[str] | Missing,
) -> Iterator[Finding]:
    """The findings about pods. `managed`: the resources of the extender's entry; empty: it is asked for each pod."""
    for each in (pods, policies):
        if isinstance(each, Missing):
            for check in CHECKS:
                yield unknown(check, each)
            return
    assert not isinstance(pods, Missing)
    assert not isinstance(policies, Missing)
    yield from _labels(pods, policies)
    yield from _resource(pods, managed)
    yield from _affinity(pods, policies)
    yield from _keys(pods, policies)
    yield from _daemon_sets(pods)


def _labels(pods: Sequence[Workload], policies: Mapping[PolicyKey, Policy]) -> Iterator[Finding]:
    used = {PolicyKey(pod.namespace, pod.policy) for pod in pods if pod.policy}
    idle = [
        key
        for key, policy in policies.items()
        if policy.strategies.keys() & {StrategyType.DONTSCHEDULE, StrategyType.SCHEDULEONMETRIC} and key not in used
    ]
    if idle:
        key = min(idle)
        what = f"no pod has the label of {some(map(str, idle))}"
        mend = f"in the pod template of a workload in namespace {key.namespace}: labels: {{{POD_LABEL}: {key.name}}}"
        yield finding("workloads.label", Severity.WARNING, what, mend)
    else:
        yield ok("workloads.label", "each policy for placement is named by a pod")
    lost = sorted(used - policies.keys())
    if not lost:
        yield ok("workloads.policy", "each policy that a pod names exists")
    for key in lost:
        elsewhere = sorted(other for other in policies if other.name == key.name)
        what = f"pods of {key.namespace} name the policy {key.name}, which does not exist there"
        if elsewhere:
            what += f", but in {some(other.namespace for other in elsewhere)}"
        mend = f"kubectl get taspolicies -A; kubectl get pods -n {key.namespace} -l {POD_LABEL}={key.name}"
        yield finding("workloads.policy", Severity.ERROR, what, mend)


def _resource(pods: Sequence[Workload], managed: Collection[str] | Missing) -> Iterator[Finding]:
    if isinstance(managed, Missing):
        yield unknown("workloads.resource", managed)
        return
    without = [pod for pod in pods if pod.policy and managed and not pod.resources & set(managed)]
    if without:
        what = f"{some(_owners(without))} name a policy, and request none of {some(managed)}"
        mend = f"in the pod template: resources: {{limits: {{{min(managed)}: 1}}}}"
        yield finding("workloads.resource", Severity.ERROR, what, mend)
    else:
        yield ok("workloads.resource", "the scheduler asks for each pod that names a policy")


def _affinity(pods: Sequence[Workload], policies: Mapping[PolicyKey, Policy]) -> Iterator[Finding]:
    required = {each.key for pod in pods for each in pod.required if _excludes(each)}
    preferred = {each.key for pod in pods for each in pod.preferred}
    idle = sorted(
        {key.name for key, policy in policies.items() if StrategyType.DESCHEDULE in policy.strategies} - required
    )
    for name in idle:
        what = f"no pod has a required node affinity that excludes {name}={VIOLATING}"
        if name in preferred:
            what += "; a preferred one has no effect"
        mend = f"in the pod template, required node affinity: {{key: {name}, operator: NotIn, values: [{VIOLATING}]}}"
        yield finding("workloads.affinity", Severity.WARNING, what, mend)
    labels = {
        f"{LABEL_PREFIX}{key.name}/": key
        for key, policy in policies.items()
        if StrategyType.LABELING in policy.strategies
    }
    all_keys = {each.key for pod in pods for each in (*pod.required, *pod.preferred)}
    unused = sorted(prefix for prefix in labels if not any(key.startswith(prefix) for key in all_keys))
    if unused:
        what = f"no pod has a node affinity or selector for labels under {some(unused)}"
        mend = f"kubectl get nodes --show-labels shows the labels under {unused[0]}"
        yield finding("workloads.affinity", Severity.HINT, what, mend)
    if not idle and not unused:
        yield ok("workloads.affinity", "each label of a policy is used by a pod")


def _excludes(expression: Expression) -> bool:
    """Whether a node with `<key>=violating` does not match."""
    return (
        (expression.operator == "NotIn" and VIOLATING in expression.values)
        or expression.operator == "DoesNotExist"
        or (expression.operator == "In" and VIOLATING not in expression.values)
    )


def _is_ours(expression: Expression) -> bool:
    """Whether the requirement is for a label in our form."""
    return expression.key.startswith(LABEL_PREFIX) or (
        "/" not in expression.key and expression.operator in ("In", "NotIn") and VIOLATING in expression.values
    )


def _keys(pods: Sequence[Workload], policies: Mapping[PolicyKey, Policy]) -> Iterator[Finding]:
    names = {key.name for key, policy in policies.items() if StrategyType.DESCHEDULE in policy.strategies}
    prefixes = tuple(
        f"{LABEL_PREFIX}{key.name}/" for key, policy in policies.items() if StrategyType.LABELING in policy.strategies
    )
    wrong: dict[str, list[Workload]] = {}
    for pod in pods:
        for each in (*pod.required, *pod.preferred):
            if _is_ours(each) and each.key not in names and not (prefixes and each.key.startswith(prefixes)):
                wrong.setdefault(each.key, []).append(pod)
    for key, found in sorted(wrong.items()):
        what = f"{some(_owners(found))} have a node affinity for {key}, which no policy sets"
        known = some(names) or "none"
        yield finding("workloads.key", Severity.WARNING, what, f"in the pod template: a key of {known}")
    if not wrong:
        yield ok("workloads.key", "no pod has an affinity for a label that no policy sets")


def _daemon_sets(pods: Sequence[Workload]) -> Iterator[Finding]:
    wrong = [pod for pod in pods if pod.owner.startswith(DAEMON_SET) and any(_is_ours(each) for each in pod.required)]
    if wrong:
        what = f"{some(_owners(wrong))}: has a required node affinity for a label of a policy"
        yield finding("workloads.daemonset", Severity.ERROR, what, "remove the affinity from the DaemonSet")
    else:
        yield ok("workloads.daemonset", "no DaemonSet has such an affinity")


def _owners(pods: Collection[Workload]) -> list[str]:
    return [f"{pod.namespace}/{pod.owner.partition(' ')[2] or pod.name}" for pod in pods]


def requests_resource(pods: Sequence[Workload]) -> bool:
    """Whether a pod requests `telemetry/scheduling`."""
    return any(RESOURCE in pod.resources for pod in pods)


def _resources(spec: object) -> Iterator[str]:
    for field in ("containers", "initContainers"):
        for container in _list(_at(spec, field)):
            for kind in ("requests", "limits"):
                named = _at(container, "resources", kind)
                yield from named if isinstance(named, dict) else ()


def _expressions(term: object) -> Iterator[Expression]:
    for each in _list(_at(term, "matchExpressions")):
        key, operator, values = _at(each, "key"), _at(each, "operator"), _list(_at(each, "values"))
        if isinstance(key, str) and isinstance(operator, str):
            yield Expression(key, operator, tuple(str(value) for value in values))


def _at(value: object, *path: str) -> object:
    """What is at a path of decoded JSON; None if it is absent."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
