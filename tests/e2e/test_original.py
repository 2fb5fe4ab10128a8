"""The command line of the original's deployment works as it is."""

from functools import partial
from pathlib import Path

import pytest

from .cluster import Cluster
from .original import ACCOUNT, NAMESPACE, account, containers, deployed
from .processes import until
from .test_rights import is_allowed

__all__ = ["account", "containers"]

RBAC = Path(__file__).parents[2] / "deploy" / "rbac"

POLICY = """
apiVersion: telemetry.intel.com/v1alpha1
kind: TASPolicy
metadata: {{name: demo-policy, namespace: {namespace}}}
spec:
  strategies:
    deschedule:
      rules: [{{metricname: health_metric, operator: Equals, target: 2}}]
"""


def conditions(cluster: Cluster, namespace: str) -> list[str]:
    path = f"/apis/telemetry.intel.com/v1alpha1/namespaces/{namespace}/taspolicies/demo-policy"
    return [each["type"] for each in cluster.api.get(path).get("status", {}).get("conditions", [])]


@pytest.mark.usefixtures("crd")
def test_the_command_of_the_originals_deployment_works_with_our_roles_and_names_each_missing_right(
    cluster: Cluster, account: Path, namespace: str
) -> None:
    # Another test of this control plane may have granted all rights.
    bindings = [f"tas-original-{worker}" for worker in ("watch", "labels", "collect")]
    cluster.kubectl("delete", "clusterrolebindings", "--ignore-not-found", *bindings)
    until(lambda: not is_allowed(cluster, ACCOUNT, "list", "pods", ""), "the account has no rights")
    cluster.apply(POLICY.format(namespace=namespace))
    with deployed(cluster, account) as original:

        def refused() -> set[str]:
            return {line["resource"] for line in original.logged("kubernetes_permission_missing")}

        until(lambda: {"taspolicies.telemetry.intel.com", "nodes", "pods"} <= refused(), "each missing right is named")
        assert not original.is_ready()
        for name in ("watch", "labels", "collect", "original"):
            cluster.apply(RBAC / f"{name}.yaml")
        until(original.is_ready, "the product is ready")

        (stored,) = original.logged("bus_in_shared_memory")
        assert stored["free"] > 0
        assert original.status_of_filter() == 200
        until(partial(conditions, cluster, namespace), "the policy has a status")
    user = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"

    def used() -> set[str]:
        return {call.verb for call in cluster.audit.calls(user=user) if call.status < 300}

    # The effect of a patch may be visible before its entry in the audit log.
    until(lambda: used() >= {"list", "watch", "patch"}, "the audit log has the requests")
