"""What the workers of one process follow of the API server: one reflector for each form of a resource.

The process builds it and hands it to its workers, which do not know whether they share. Metadata of nodes and whole
nodes are two forms: the latter has ten times the bytes, and is followed only while somebody needs it.
"""

from functools import partial

import structlog

from tas.policy.policy import POD_LABEL
from workers.kubernetes.admission import PolicyAdmission
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.reflector import Reflector
from workers.kubernetes.resources import (
    LABELLED_NODES,
    PODS,
    POLICIES,
    WHOLE_NODES,
    LabelledNode,
    PodObject,
    PolicyObject,
    WholeNode,
)
from workers.process.logs import ThrottledLog


class Reflectors:
    """The reflectors over one client. Each does nothing until a worker follows by it.

    Attributes:
        client: For requests beside them.
        policies: The TASPolicies.
        nodes: The metadata of the nodes.
        whole_nodes: The nodes with taints, conditions and resources.
        pods: The pods that name a policy.
    """

    def __init__(self, client: KubernetesClient) -> None:
        self.client = client
        client.metrics.silent.labels(client.worker).set_function(lambda: client.silence.age)
        self.policies: Reflector[PolicyObject] = Reflector(
            client,
            POLICIES,
            admission=partial(PolicyAdmission, ThrottledLog(structlog.get_logger("kubernetes"), seconds=60.0)),
        )
        self.nodes: Reflector[LabelledNode] = Reflector(client, LABELLED_NODES)
        self.whole_nodes: Reflector[WholeNode] = Reflector(client, WHOLE_NODES)
        self.pods: Reflector[PodObject] = Reflector(client, PODS, label_selector=POD_LABEL)
