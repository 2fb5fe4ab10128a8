"""Every subject and key, written once.

Names of nodes and policies hold dots, which separate tokens in a subject; `_` is in no DNS name. So `.` becomes `_`
and back: `ip-10-0-0-1.ec2.internal` is the token `ip-10-0-0-1_ec2_internal`.
"""

from typing import Literal, cast

from tas.errors import InvalidInputError
from tas.names import is_dns_label, is_source_name, is_subdomain
from tas.pod import PodKey
from tas.policy import PolicyKey

SAMPLES = "tas.samples"

NodeKind = Literal["metrics", "facts"]
"""What a key of NODES holds: the node's newest samples, or what the API server said of it."""


def token(name: str) -> str:
    """The token of a DNS name."""
    return name.replace(".", "_")


def name(token: str) -> str:
    """The DNS name of a token."""
    return token.replace("_", ".")


def samples_subject(node: str, source: str) -> str:
    """Where `source` publishes its samples of `node`."""
    return f"{SAMPLES}.{token(node)}.{source}"


def parse_samples_subject(subject: str) -> tuple[str, str]:
    """The node and the source that a subject of SAMPLES names. Raises InvalidInputError."""
    prefix, _, rest = subject.partition(f"{SAMPLES}.")
    node_token, dot, source = rest.partition(".")
    if prefix or not dot:
        raise InvalidInputError("sample", "subject", subject, f"must be {SAMPLES}.<node>.<source>")
    node = name(node_token)
    if not is_subdomain(node):
        raise InvalidInputError(
            "sample", "subject", subject, "its node must be a lowercase DNS subdomain (RFC 1123) with _ for ."
        )
    if not is_source_name(source):
        raise InvalidInputError("sample", "subject", subject, "its source must be of a-z, 0-9 and -, at most 63")
    return node, source


def node_metrics_key(node: str) -> str:
    """Where in NODES a node's newest samples stand."""
    return f"{token(node)}.metrics"


def node_facts_key(node: str) -> str:
    """Where in NODES a node's uid and labels stand."""
    return f"{token(node)}.facts"


NODE_FACTS_KEYS = "*.facts"
"""The keys in NODES of what the API server said of nodes: samples come a thousand times as often."""


def parse_node_key(key: str) -> tuple[str, NodeKind]:
    """The node that a key of NODES names, and what stands there. Raises InvalidInputError."""
    node_token, _, kind = key.partition(".")
    node = name(node_token)
    if kind not in ("metrics", "facts") or not is_subdomain(node):
        raise InvalidInputError("entry of NODES", "key", key, "must be <node>.metrics or <node>.facts")
    return node, cast("NodeKind", kind)


def verdict_key(node: str) -> str:
    """Where in VERDICTS a node's verdict stands."""
    return token(node)


def parse_verdict_key(key: str) -> str:
    """The node that a key of VERDICTS names. Raises InvalidInputError."""
    node = name(key)
    if "." in key or not is_subdomain(node):
        raise InvalidInputError("entry of VERDICTS", "key", key, "must be <node>")
    return node


def policy_key(key: PolicyKey) -> str:
    """Where in POLICIES a policy stands."""
    return f"{key.namespace}.{token(key.name)}"


def pod_key(key: PodKey) -> str:
    """Where in PODS a pod stands."""
    return f"{key.namespace}.{token(key.name)}"


def parse_pod_key(key: str) -> PodKey:
    """The pod that a key of PODS names. Raises InvalidInputError."""
    namespace, _, pod_token = key.partition(".")
    pod = name(pod_token)
    if "." in pod_token or not is_dns_label(namespace) or not is_subdomain(pod):
        raise InvalidInputError("entry of PODS", "key", key, "must be <namespace>.<pod>")
    return PodKey(namespace, pod)


def parse_policy_key(key: str) -> PolicyKey:
    """The policy that a key of POLICIES names. Raises InvalidInputError."""
    namespace, _, policy_token = key.partition(".")
    policy = name(policy_token)
    if "." in policy_token or not is_dns_label(namespace) or not is_subdomain(policy):
        raise InvalidInputError("entry of POLICIES", "key", key, "must be <namespace>.<policy>")
    return PolicyKey(namespace, policy)
