"""What creates a pod: the place where people correct it."""

from collections.abc import Mapping
from typing import NamedTuple

from tas.diagnosis.finding import command

HASH_LABEL = "pod-template-hash"
"""The label of pods of a Deployment; its value is the end of the name of their ReplicaSet."""


class Owner(NamedTuple):
    """What creates a pod; the pod itself if it has no controller."""

    namespace: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def command(self, *words: str) -> str:
        """A command of kubectl about it, such as `edit`; `words` after the first follow the name."""
        first, *more = words
        return command("kubectl", "--namespace", self.namespace, first, self.kind.lower(), self.name, *more)


def owner_of(namespace: str, name: str, *, controller: tuple[str, str] | None, labels: Mapping[str, str]) -> Owner:
    """The owner of a pod. `controller` is the kind and name of its controller."""
    if controller is None:
        return Owner(namespace, "Pod", name)
    kind, above = controller
    suffix = f"-{labels.get(HASH_LABEL, '')}"
    if kind == "ReplicaSet" and suffix != "-" and above.endswith(suffix):
        return Owner(namespace, "Deployment", above.removesuffix(suffix))
    return Owner(namespace, kind, above)
