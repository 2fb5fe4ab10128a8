"""The worker `watch` with a real API server."""

from functools import partial
from pathlib import Path

from tests.kubernetes.watch_scenarios import WatchScenarios, watched

from .cluster import NODES, Cluster
from .processes import until
from .product import Product, product

__all__ = ["watched"]

POLICY = """
apiVersion: telemetry.intel.com/v1alpha1
kind: TASPolicy
metadata: {{name: demo-policy, namespace: {namespace}}}
spec:
  strategies:
    dontschedule:
      rules: [{{metricname: health_metric, operator: Equals, target: {target}}}]
"""


class TestWatch(WatchScenarios):
    pass


def test_a_policy_that_kubectl_applies_takes_effect_and_its_deletion_too(
    cluster: Cluster, kubeconfig: Path, namespace: str, tmp_path: Path
) -> None:
    """`tas run all --kubeconfig`, from `kubectl apply` to the extender's answer and back."""
    with product(cluster, tmp_path, kubeconfig=kubeconfig) as running:
        running.publish(
            {"node-1": {"health_metric": 2}, "node-2": {"health_metric": 1}, "node-3": {"health_metric": 0}}
        )
        assert passes(running, namespace, set(NODES))
        for target, rejected in ((2, "node-1"), (1, "node-2")):
            cluster.apply(POLICY.format(namespace=namespace, target=target))
            until(partial(passes, running, namespace, set(NODES) - {rejected}), f"{rejected} is rejected")
        cluster.kubectl("delete", "taspolicy", "demo-policy", f"--namespace={namespace}")
        until(partial(passes, running, namespace, set(NODES)), "all pass again")


def passes(tas: Product, namespace: str, nodes: set[str]) -> bool:
    """Whether exactly these nodes pass."""
    return tas.passes(namespace, "demo-policy", NODES) == nodes
