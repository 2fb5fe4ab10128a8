"""Whether Kubernetes has the node of a sample."""


def is_unknown_node(*, listed: bool, cluster: bool | None) -> bool:
    """Whether a node's samples are refused because Kubernetes has no node of this name.

    `listed`: whether the node is in the list of nodes. `cluster`: whether this list comes from a Kubernetes API; None
    while it is not complete. Without a complete list of a cluster, every valid node name is accepted.
    """
    return cluster is True and not listed
