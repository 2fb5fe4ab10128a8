"""Every check of `tas doctor`, and why it matters. docs/doctor.md has a row for each."""

from collections.abc import Mapping
from typing import NamedTuple


class Check(NamedTuple):
    """A check.

    Attributes:
        why: What goes wrong if the check finds something.
    """

    why: str


CHECKS: Mapping[str, Check] = {
    "bus.reached": Check("without the bus no worker gets samples or policies"),
    "bus.version": Check("an older nats-server can lose data when the members of its cluster change (facts.md n30)"),
    "bus.sync": Check("after a loss of power, writes of up to two minutes are gone: a breaker or a pause may be lost"),
    "bus.streams": Check("a worker does not use a stream with other settings"),
    "bus.replicas": Check("with one copy, the loss of one server stops all workers"),
    "policies.served": Check("without the CRD nobody can create a policy"),
    "policies.any": Check("without a policy nothing is filtered, scored or labelled"),
    "policies.valid": Check("the invalid part of a policy has no effect"),
    "policies.mirrored": Check("the extender decides by the policies on the bus, not by those in the API server"),
    "policies.label": Check("labels of nodes have no namespace: only one of the policies sets the label"),
    "metrics.present": Check("a rule without a value is unknown: no node is rejected or labelled by the rule"),
    "metrics.fresh": Check("a stale value is unknown: no node is rejected or labelled by the rule"),
    "metrics.nodes": Check("on these nodes the rule is unknown"),
    "metrics.sources": Check("values that the source should bring are missing or become stale"),
    "workloads.label": Check("a policy applies only to pods with the label telemetry-policy in its own namespace"),
    "workloads.policy": Check("a pod whose policy does not exist is placed as if it had none"),
    "workloads.resource": Check("the scheduler asks the extender only for pods that request a managed resource"),
    "workloads.affinity": Check("a descheduler moves only pods whose required node affinity excludes the label"),
    "workloads.key": Check("an affinity for a label that no policy sets never moves the pod"),
    "workloads.daemonset": Check("the pod of a DaemonSet is deleted at once when its affinity fails (facts.md c38)"),
    "descheduler.present": Check("this product labels nodes, and moves no pod by itself"),
    "descheduler.version": Check("some versions of the descheduler never evict pods of this product (facts.md c48)"),
    "descheduler.resource": Check("the descheduler evicts a pod only if the pod fits another node (facts.md c35)"),
    "descheduler.nodes": Check(
        "the descheduler does nothing in a cluster with fewer than two ready nodes (facts.md c47)"
    ),
    "scheduler.configured": Check("a scheduler without the extender places pods without policies"),
    "scheduler.alike": Check("after a change of the leader, another scheduler places the pods"),
    "scheduler.valid": Check("a scheduler does not start with a configuration that it refuses"),
    "scheduler.verifies": Check("a scheduler without a CA accepts answers of any server (facts.md c10)"),
    "scheduler.weight": Check("with a low weight, the scheduler's own scores outvote the metric (facts.md c27)"),
    "scheduler.names": Check("whole nodes in each request slow down the scheduler (facts.md c14)"),
    "scheduler.outage": Check("the scheduler asks for every pod: if no extender answers, no pod starts, ours included"),
    "scheduler.resource": Check("pods wait for a resource that no node offers (facts.md c34)"),
    "extender.reached": Check("the scheduler gets no answer from an extender that cannot be reached"),
    "extender.ca": Check("the scheduler refuses an extender whose certificate its CA did not sign"),
    "extender.client": Check("the extender refuses a scheduler whose certificate it does not trust"),
    "extender.expires": Check("an expired certificate ends all answers at once"),
    "extender.ready": Check("an extender that is not ready answers with code 503"),
    "extender.asked": Check("policies have no effect while the scheduler does not ask"),
    "proxy.scheduler": Check("the scheduler sends its requests to the proxy, not to the extender (facts.md c49)"),
    "proxy.extender": Check("a proxy can change, delay or refuse the requests of the scheduler"),
    "proxy.here": Check("requests to the API server go through the proxy: watches may break"),
    "clocks.api_server": Check("ages of samples and times of pods are compared across machines"),
    "clocks.bus": Check("ages of samples are compared across machines"),
    "clocks.extender": Check("a sample can look stale or too new to the extender"),
    "clocks.nodes": Check("samples of a node whose clock is ahead are refused after 10 s (facts.md n52)"),
    "clocks.samples": Check("a sample from the future counts as arrived, and is refused when it is 10 s ahead"),
    "rights.accounts": Check("a worker without a right does a part of its work, or nothing"),
    "cluster.reached": Check("without the API server no policy is read, and no node is labelled"),
}
"""By id: the group, a full stop and a name. An id never changes its meaning."""
