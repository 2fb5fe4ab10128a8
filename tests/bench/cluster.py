"""A simulated cluster: nodes, samples, policies and requests of a scheduler. The same in every run."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from tas.policy.manifest import parse_policy
from tas.policy.policy import POD_LABEL, Policy, PolicyKey
from tas.samples.sample import Scrape
from tas.values.quantity import Quantity, parse_quantity
from tas.view.view import View

METRICS = 20
POLICIES = 50
SOURCE = "bench"
NAMESPACE = "default"

VALUES = 100.0
"""Values lie between 0 and this."""

VIOLATING = 95.0
"""Beyond this a rule is violated. A policy has two, so about a tenth of the nodes violates it."""

# Longer than any run, so that no sample becomes stale.
STALE_AFTER = "1h"

METRIC_NAMES = tuple(f"node_metric_{number:02}" for number in range(METRICS))

_POD = Path(__file__).parents[1] / "contract" / "golden" / "extender" / "filter-names.json"


def node_names(count: int) -> list[str]:
    """Names in the form of a cloud provider."""
    return [f"ip-10-{n >> 16}-{n >> 8 & 255}-{n & 255}.ec2.internal" for n in range(count)]


def policies() -> list[Policy]:
    """`POLICIES` policies over the same `METRICS` metrics: each filters by two of them and scores by a third."""
    found = []
    for number in range(POLICIES):
        policy, problems = parse_policy(PolicyKey(NAMESPACE, policy_name(number)), policy_spec(number))
        assert not problems, problems
        found.append(policy)
    return found


def policy_spec(number: int) -> dict[str, Any]:
    """The spec of a TASPolicy: two rules of `dontschedule`, one of `scheduleonmetric`."""
    first, second, third = (METRIC_NAMES[(number + step) % METRICS] for step in (0, 7, 3))
    return {
        "staleAfter": STALE_AFTER,
        "strategies": {
            "dontschedule": {
                "logicalOperator": "anyOf",
                "rules": [
                    {"metricname": metric, "operator": "GreaterThan", "target": int(VIOLATING)}
                    for metric in (first, second)
                ],
            },
            "scheduleonmetric": {"rules": [{"metricname": third, "operator": "LessThan"}]},
        },
    }


def policy_name(number: int) -> str:
    """The name of a policy."""
    return f"policy-{number % POLICIES:02}"


def metrics(chance: random.Random) -> dict[str, Quantity]:
    """A value for every metric, to a thousandth: nearly all nodes differ, which is the hardest case of ranking."""
    return {name: parse_quantity(f"{chance.uniform(0, VALUES):.3f}") for name in METRIC_NAMES}


def scrape(values: dict[str, Quantity], now: float, sequence: int = 0) -> Scrape:
    """A scrape of a node by the only source."""
    return Scrape(source=SOURCE, measured=now, arrived=now, sequence=sequence, metrics=values)


def filled_view(names: Sequence[str], now: float, *, verdicts: bool = False) -> View:
    """A view with a sample of every node, and all policies; with `verdicts` as in `evaluate`."""
    chance = random.Random(0)
    view = View(verdicts=verdicts)
    for name in names:
        view.add_samples(name, (scrape(metrics(chance), now),), now)
    view.set_policies(policies(), now)
    return view


def pod(policy: int) -> dict[str, Any]:
    """A pod that names a policy, otherwise as recorded from a real scheduler."""
    found: dict[str, Any] = orjson.loads(_POD.read_bytes())["Pod"]
    found["metadata"] |= {"namespace": NAMESPACE, "labels": {POD_LABEL: policy_name(policy)}}
    return found


def requesting(number: int, names: Sequence[str], *, more: int = 0) -> bytes:
    """A request for a pod with requests and limits, as agents read them: `more` millicores and MiB than usual."""
    asked = pod(number)
    asked["metadata"]["labels"]["app"] = "web"
    (container,) = asked["spec"]["containers"]
    container["resources"] = {
        "requests": {"cpu": f"{500 + more}m", "memory": f"{1024 + more}Mi"},
        "limits": {"cpu": "1", "memory": "2Gi"},
    }
    return orjson.dumps({"Pod": asked, "Nodes": None, "NodeNames": names})


def names_only(policy: int, names: Sequence[str]) -> bytes:
    """The request with `nodeCacheCapable: true`."""
    return orjson.dumps({"Pod": pod(policy), "Nodes": None, "NodeNames": names})


def full_nodes(policy: int, nodes: Sequence[bytes]) -> bytes:
    """The request with `nodeCacheCapable: false`; `nodes` are objects as JSON."""
    head = b'{"Pod":' + orjson.dumps(pod(policy)) + b',"Nodes":{"metadata":{},"items":['
    return head + b",".join(nodes) + b']},"NodeNames":null}'


def lists_of_names(names: Sequence[str], size: int, *, seed: int) -> Iterator[list[str]]:
    """Endless lists of `size` successive names, each with another start, as a scheduler iterates over nodes."""
    chance = random.Random(seed)
    while True:
        begin = chance.randrange(len(names))
        yield [*names[begin : begin + size], *names[: max(0, begin + size - len(names))]]


def node_object(name: str) -> bytes:
    """A node as written by kubelet and controllers, about 7 KB."""
    number = int.from_bytes(name.encode(), "big")
    chance = random.Random(number)
    return orjson.dumps(
        {
            "metadata": {
                "name": name,
                "uid": f"{chance.getrandbits(32):08x}-5a1e-4a53-9d2b-{chance.getrandbits(48):012x}",
                "resourceVersion": str(chance.randrange(10**8)),
                "creationTimestamp": _TIME,
                "labels": _labels(name, chance),
                "annotations": _annotations(chance),
                "managedFields": [_managed("kubelet", "status", _STATUS_FIELDS), _managed("kubelet", "", _META_FIELDS)],
            },
            "spec": {
                "podCIDR": f"10.{chance.randrange(256)}.{chance.randrange(256)}.0/24",
                "podCIDRs": [f"10.{chance.randrange(256)}.{chance.randrange(256)}.0/24"],
                "providerID": f"aws:///eu-central-1a/i-{chance.getrandbits(68):017x}",
            },
            "status": _status(name, chance),
        }
    )


_TIME = "2026-01-01T00:00:00Z"


def _labels(name: str, chance: random.Random) -> dict[str, str]:
    return {
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/instance-type": "m6i.2xlarge",
        "beta.kubernetes.io/os": "linux",
        "eks.amazonaws.com/capacityType": "ON_DEMAND",
        "eks.amazonaws.com/nodegroup": f"workers-{chance.randrange(8)}",
        "eks.amazonaws.com/nodegroup-image": f"ami-{chance.getrandbits(68):017x}",
        "failure-domain.beta.kubernetes.io/region": "eu-central-1",
        "failure-domain.beta.kubernetes.io/zone": f"eu-central-1{'abc'[chance.randrange(3)]}",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "m6i.2xlarge",
        "topology.kubernetes.io/region": "eu-central-1",
        "topology.kubernetes.io/zone": f"eu-central-1{'abc'[chance.randrange(3)]}",
    }


def _annotations(chance: random.Random) -> dict[str, str]:
    return {
        "alpha.kubernetes.io/provided-node-ip": f"10.0.{chance.randrange(256)}.{chance.randrange(256)}",
        "csi.volume.kubernetes.io/nodeid": f'{{"ebs.csi.aws.com":"i-{chance.getrandbits(68):017x}"}}',
        "node.alpha.kubernetes.io/ttl": "0",
        "volumes.kubernetes.io/controller-managed-attach-detach": "true",
    }


def _managed(manager: str, subresource: str, fields: dict[str, Any]) -> dict[str, Any]:
    entry = {"manager": manager, "operation": "Update", "apiVersion": "v1", "time": _TIME, "fieldsType": "FieldsV1"}
    return entry | {"fieldsV1": fields} | ({"subresource": subresource} if subresource else {})


_CONDITIONS = {
    "MemoryPressure": ("False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
}
_STATUS_FIELDS: dict[str, Any] = {
    "f:status": {
        "f:conditions": {
            f'k:{{"type":"{name}"}}': {"f:lastHeartbeatTime": {}, "f:lastTransitionTime": {}} for name in _CONDITIONS
        },
        "f:images": {},
    }
}
_META_FIELDS: dict[str, Any] = {
    "f:metadata": {
        "f:annotations": {".": {}, "f:volumes.kubernetes.io/controller-managed-attach-detach": {}},
        "f:labels": {".": {}, "f:kubernetes.io/arch": {}, "f:kubernetes.io/hostname": {}, "f:kubernetes.io/os": {}},
    }
}
_IMAGES = 14


def _status(name: str, chance: random.Random) -> dict[str, Any]:
    resources = {"cpu": "8", "ephemeral-storage": "83873772Ki", "hugepages-1Gi": "0", "hugepages-2Mi": "0"}
    return {
        "capacity": resources | {"memory": "32386544Ki", "pods": "58"},
        "allocatable": resources | {"cpu": "7910m", "memory": "31369712Ki", "pods": "58"},
        "conditions": [
            {
                "type": kind,
                "status": status,
                "lastHeartbeatTime": _TIME,
                "lastTransitionTime": _TIME,
                "reason": reason,
                "message": message,
            }
            for kind, (status, reason, message) in _CONDITIONS.items()
        ],
        "addresses": [
            {"type": "InternalIP", "address": f"10.0.{chance.randrange(256)}.{chance.randrange(256)}"},
            {"type": "InternalDNS", "address": name},
            {"type": "Hostname", "address": name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": {
            "machineID": f"{chance.getrandbits(128):032x}",
            "systemUUID": f"{chance.getrandbits(128):032x}",
            "bootID": f"{chance.getrandbits(128):032x}",
            "kernelVersion": "6.12.40-64.114.amzn2023.x86_64",
            "osImage": "Amazon Linux 2023",
            "containerRuntimeVersion": "containerd://2.1.4",
            "kubeletVersion": "v1.36.3",
            "kubeProxyVersion": "v1.36.3",
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
        "images": [_image(chance) for _ in range(_IMAGES)],
    }


def _image(chance: random.Random) -> dict[str, Any]:
    name = (
        f"602401143452.dkr.ecr.eu-central-1.amazonaws.com/team-{chance.randrange(20)}/service-{chance.randrange(500)}"
    )
    names = [f"{name}@sha256:{chance.getrandbits(256):064x}", f"{name}:v1.{chance.randrange(40)}"]
    return {"names": names, "sizeBytes": chance.randrange(10**8)}
