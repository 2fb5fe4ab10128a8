"""A sandbox with two nodes for each test, as for the client."""

from tests.integration.workers.kubernetes.conftest import (
    admin,
    client,
    kubeconfig,
    long_limits,
    namespace,
    node,
    sandbox,
)

__all__ = ["admin", "client", "kubeconfig", "long_limits", "namespace", "node", "sandbox"]
