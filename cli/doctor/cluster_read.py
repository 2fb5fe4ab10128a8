"""What `tas doctor` knows of the API server: what `cli.doctor.cluster_facts` has read, or why it has not."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tas.configuring.control_planes import SchedulerState
from tas.diagnosis.clocks import Offset
from tas.diagnosis.descheduler import Descheduler, NodeState
from tas.diagnosis.finding import Missing
from tas.diagnosis.rights import Reviewed
from tas.diagnosis.workloads import DaemonSetTemplate, Workload
from tas.policy.policy import PolicyKey

ADMINISTRATOR = "give the kubeconfig of a user who may do this"


class Pods(NamedTuple):
    """The pods of the cluster.

    Attributes:
        running: Those that have not ended.
        deschedulers: Also those in pods that have ended, as of a CronJob.
    """

    running: list[Workload]
    deschedulers: frozenset[Descheduler]


class ClusterRead(NamedTuple):
    """All facts from the API server.

    Attributes:
        is_asked: Whether there was an API server to ask.
        address: The URL of the API server, whether it answers or not; empty if that is not known.
        minor: The minor version of the API server.
        policies: None: the API server does not serve TASPolicies.
        strategy_fields: The fields of a strategy by the CRD of the cluster.
        environment: That of a kube-scheduler.
    """

    is_asked: bool
    address: str
    server: str | Missing
    minor: int | None
    clock: Offset | Missing
    nodes: Sequence[NodeState] | Missing
    node_clocks: Mapping[str, float] | Missing
    pods: Pods | Missing
    daemon_sets: Sequence[DaemonSetTemplate] | Missing
    environment: Mapping[str, str] | Missing
    control_planes: Sequence[SchedulerState] | Missing
    policies: frozenset[PolicyKey] | Missing | None
    strategy_fields: frozenset[str] | Missing
    offered: frozenset[str] | Missing
    rights: list[Reviewed] | Missing


def unread(server: Missing, other: Missing, *, is_asked: bool, address: str = "") -> ClusterRead:
    """The facts of an API server that does not answer; `other` is why all the rest is not known."""
    known: dict[str, Any] = {"is_asked": is_asked, "address": address, "server": server, "minor": None}
    return ClusterRead(**dict.fromkeys(ClusterRead._fields, other) | known)
