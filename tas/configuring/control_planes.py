"""Whether the schedulers of all control plane nodes are configured, and alike."""

from collections.abc import Sequence
from dataclasses import dataclass

ROLES = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
"""The label and the taint of a node of the control plane, now and before Kubernetes 1.25."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """The scheduler of a control plane node, as its pod shows.

    Attributes:
        digest: Of its configuration and certificates; None: `tas configure` has not configured it, or not since the
            manifest was written anew.
        ready: Whether the pod is ready; None: there is no pod.
    """

    node: str
    digest: str | None
    ready: bool | None

    @property
    def shown(self) -> str:
        """What this is in a word or two."""
        if self.ready is None:
            return "no scheduler"
        if self.digest is None:
            return "not configured"
        return "configured" if self.ready else "configured, not ready"


def differences(states: Sequence[SchedulerState]) -> list[str]:
    """Why pods may be placed without policies; empty if all schedulers are configured, ready and alike."""
    found = [f"{state.node}: {state.shown}" for state in states if not (state.ready and state.digest)]
    digests = sorted({state.digest for state in states if state.digest is not None})
    if len(digests) > 1:
        found.append(f"{len(digests)} different configurations or certificates: the leader decides which one counts")
    return found if states else ["no control plane nodes"]
