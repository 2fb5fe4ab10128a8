"""Writes `deploy/rbac/all.yaml`: one account for `tas run all`, with the rights of its parts in the other files."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from workers.registry import WORKERS

FOLDER = Path(__file__).parents[1] / "deploy" / "rbac"
FILE = FOLDER / "all.yaml"
PARTS = tuple(name for name, spec in WORKERS.items() if spec.account and spec.in_all is not None)
"""The workers of `tas run all` that use the API server."""

ACCOUNT = "tas-all"
NAMESPACE = "telemetry-aware-scheduling"
METRICS = "custom.metrics.k8s.io"
VERBS = ("get", "list", "watch", "create", "patch")
GROUP = "rbac.authorization.k8s.io"
HEADER = f"""\
# Permissions of `tas run all` with one account: those of its workers that use the API server, together.
# `python release/account_of_all.py` writes this file from {", ".join(f"{part}.yaml" for part in PARTS)}.
"""


class Key(NamedTuple):
    """A resource of a group."""

    group: str
    resource: str


Rights = dict[str, dict[Key, set[str]]]
"""Verbs by resource by namespace; the empty namespace is the whole cluster."""


def rights(part: str) -> Rights:
    """What the file of a worker grants."""
    found: Rights = defaultdict(lambda: defaultdict(set))
    for document in yaml.safe_load_all((FOLDER / f"{part}.yaml").read_text()):
        if document["kind"] not in ("ClusterRole", "Role"):
            continue
        for rule in document["rules"]:
            if rule.keys() != {"apiGroups", "resources", "verbs"}:
                raise ValueError(f"{part}.yaml: {rule}: has other fields than apiGroups, resources, verbs")
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    found[document["metadata"].get("namespace", "")][Key(group, resource)].update(rule["verbs"])
    return found


def rendered() -> str:
    """The content of the file."""
    together: Rights = defaultdict(lambda: defaultdict(set))
    for part in PARTS:
        for namespace, verbs in rights(part).items():
            for key, found in verbs.items():
                together[namespace][key] |= found
    account = {"name": ACCOUNT, "namespace": NAMESPACE}
    documents: list[dict[str, Any]] = [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}]
    for namespace in sorted(together):
        kind = "Role" if namespace else "ClusterRole"
        metadata = {"name": ACCOUNT} | ({"namespace": namespace} if namespace else {})
        documents += (
            {
                "apiVersion": f"{GROUP}/v1",
                "kind": kind,
                "metadata": metadata,
                "rules": list(_rules(together[namespace])),
            },
            {
                "apiVersion": f"{GROUP}/v1",
                "kind": f"{kind}Binding",
                "metadata": metadata,
                "roleRef": {"apiGroup": GROUP, "kind": kind, "name": ACCOUNT},
                "subjects": [{"kind": "ServiceAccount"} | account],
            },
        )
    return HEADER + yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120)


def _rules(verbs: dict[Key, set[str]]) -> Iterator[dict[str, Any]]:
    """One rule for the resources of a group that have the same verbs."""
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    # The metrics come first, as in the file of `collect`: a page has a command that adds one.
    for key in sorted(verbs, key=lambda key: (key.group != METRICS, key)):
        alike[key.group, tuple(sorted(verbs[key], key=VERBS.index))].append(key.resource)
    for (group, allowed), resources in alike.items():
        yield {"apiGroups": [group], "resources": resources, "verbs": list(allowed)}


class _Dumper(yaml.SafeDumper):
    """Indents lists as the other files do, writes those of few texts in one line, and repeats what is the same."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: FBT001, FBT002
        super().increase_indent(flow, indentless=False)

    def in_one_line(self, data: list[Any]) -> yaml.Node:
        short = len(data) <= 5 and all(isinstance(each, str) for each in data)
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=short)


_Dumper.add_representer(list, _Dumper.in_one_line)


if __name__ == "__main__":
    FILE.write_text(rendered())
