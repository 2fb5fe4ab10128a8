"""The only definition of every subject and key.

Names of nodes and policies contain dots, but a dot separates tokens in a subject. No DNS name contains `_`, so `.`
becomes `_` and back: `ip-10-0-0-1.ec2.internal` is the token `ip-10-0-0-1_ec2_internal`.
"""

import re
from functools import lru_cache
from typing import Literal, NamedTuple, cast, get_args

from tas.enforcing.pod import PodKey
from tas.errors import InvalidInputError
from tas.events.data import ALL_POLICIES, BreakerReset, BreakerTripped, Data
from tas.events.selection import Selection
from tas.policy.policy import PolicyKey
from tas.samples.parts import parse_part
from tas.samples.table import TableKey
from tas.values.names import is_dns_label, is_metric_name, is_source_name, is_subdomain
from tas.verdict.freeze import ALL
from tas.windows.key import Family, SeriesKey

SAMPLES = "tas.samples"
TABLES = "tas.tables"
EVENTS = "tas.events"
OUTCOMES = "tas.outcomes"
OWN_RIGHTS = "$SYS.REQ.USER.INFO"
"""Where a user asks the server who it is, and what it may do."""

API = "$JS.API"
PUBLISHERS_API = "tas.api"
"""Where programs of an earlier version ask about streams, as users of the account of publishers.

Under `API` a server answers them first that their own account has no JetStream (facts.md n160).
"""

STRICT = "tas.rights.strict"
"""A right by which a server tells people that it refuses credentials of an earlier version. Nobody listens there.

A server with the configuration of an earlier version does not tell it either.
"""

EXPECTED = "_expected"
"""The first token of the keys in WORKERS that are of no process."""

_MARKS = ".marks"
_TABLE = "_table."
_PROCESS_ID = re.compile(r"[A-Za-z0-9_-]{1,300}")
_SECONDS = re.compile(r"[1-9][0-9]{1,4}")

NodeKind = Literal["metrics", "facts", "inventory", "allocation", "released"]
"""The kind of a key of NODES: the node's newest samples, its uid and labels, its GPU cards, its requests, or since when
its last known values do not count."""


def token(name: str) -> str:
    """The token of a DNS name. That of a node is its key in VERDICTS and HOLDS."""
    return name.replace(".", "_")


def name(token: str) -> str:
    """The DNS name of a token."""
    return token.replace("_", ".")


def samples_subject(node: str, source: str) -> str:
    """The subject to which `source` publishes its samples of `node`."""
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


def tables_subject(key: TableKey) -> str:
    """The subject to which a source publishes the tables of a part of its nodes."""
    return f"{TABLES}.{key.source}.{key.part}"


def parse_tables_subject(subject: str) -> TableKey:
    """The source and the part that a subject of TABLES names. Raises InvalidInputError."""
    prefix, _, rest = subject.partition(f"{TABLES}.")
    key = _table_key(rest)
    if prefix or key is None:
        raise InvalidInputError("table", "subject", subject, f"must be {TABLES}.<source>.<parts>-<number>")
    return key


def _table_key(text: str) -> TableKey | None:
    source, _, part_token = text.partition(".")
    part = parse_part(part_token)
    return TableKey(source, part) if part is not None and is_source_name(source) else None


def outcomes_subject(node: str) -> str:
    """The subject of what becomes of the pods of a node."""
    return f"{OUTCOMES}.{token(node)}"


def event_subject(data: Data) -> str:
    """The subject of the events about one thing: the channel of the data, and a token for each of its names."""
    return ".".join((EVENTS, data.CHANNEL, *map(event_token, data.names)))


def event_token(name: str) -> str:
    """The token of a DNS name, as `token`, or of a label key: the key may contain `_`, which becomes `=`."""
    return name if name == ALL_POLICIES else token(name.replace("_", "="))


def selection_filters(selection: Selection) -> list[str]:
    """Filters of EVENTS that match every selected event, and as few others as subjects can tell; no two overlap."""
    if not (selection.of or selection.node or selection.policy):
        return [f"{EVENTS}.>"]
    wanted = {"node": selection.node, "namespace": selection.namespace, "policy": selection.policy}
    found: set[str] = set()
    for data in selection.types:
        if issubclass(data, BreakerTripped | BreakerReset):  # those of all policies have fewer tokens
            found.add(f"{EVENTS}.{data.CHANNEL}.>")
            continue
        tokens = [event_token(value) if (value := wanted.get(field)) else "*" for field in data.NAMES]
        found.add(".".join((EVENTS, data.CHANNEL, *tokens)))
    return sorted(found)


def dead_letters_subject(subscription: str) -> str:
    """The subject of the events that a subscription gave up."""
    return f"tas.dead_letters.{subscription}"


def node_table_key(key: TableKey) -> str:
    """The key of the newest values of a source's tables in NODES, for a part of its nodes."""
    return f"{_TABLE}{key.source}.{key.part}"


def parse_node_table_key(key: str) -> TableKey | None:
    """The source and the part that a key of a table in NODES names; None for another key. Raises InvalidInputError."""
    if not key.startswith(_TABLE):
        return None
    if (found := _table_key(key.removeprefix(_TABLE))) is None:
        raise InvalidInputError("entry of NODES", "key", key, f"must be {_TABLE}<source>.<parts>-<number>")
    return found


def node_key(node: str, kind: NodeKind) -> str:
    """The key of a record of a node in NODES."""
    return f"{token(node)}.{kind}"


@lru_cache(maxsize=1)  # each kind of record of a node is asked about the same key
def parse_node_key(key: str) -> tuple[str, NodeKind]:
    """The node and the kind of a key of NODES. Raises InvalidInputError."""
    node_token, _, kind = key.partition(".")
    node = name(node_token)
    if kind not in get_args(NodeKind) or not is_subdomain(node):
        reason = "must be <node>.metrics, .facts, .inventory, .allocation or .released"
        raise InvalidInputError("entry of NODES", "key", key, reason)
    return node, cast("NodeKind", kind)


def parse_agent_key(key: str) -> str:
    """The agent that a key of AGENTS names. Raises InvalidInputError."""
    if not is_dns_label(key):
        raise InvalidInputError("entry of AGENTS", "key", key, "must be <agent>")
    return key


class WindowKey(NamedTuple):
    """A series of a node, from which statistics of windows are computed."""

    node: str
    series: SeriesKey


def window_key(key: WindowKey) -> str:
    """The key of a series in WINDOWS: a metric's name may contain `:`, which becomes `=`."""
    return f"{token(key.node)}.{_series(key.series)}"


def window_keys(series: SeriesKey) -> str:
    """The pattern of the keys of a series in WINDOWS, of all nodes."""
    return f"*.{_series(series)}"


def _series(series: SeriesKey) -> str:
    return f"{series.metric.replace(':', '=')}.{series.seconds:.0f}.{series.family.value}"


def parse_window_key(key: str) -> WindowKey:
    """The series that a key of WINDOWS names. Raises InvalidInputError."""
    match key.split("."):
        case [node_token, metric_token, seconds, family]:
            node, metric = name(node_token), metric_token.replace("=", ":")
            if is_subdomain(node) and is_metric_name(metric) and _SECONDS.fullmatch(seconds) and family in set(Family):
                return WindowKey(node, SeriesKey(metric, float(seconds), Family(family)))
    raise InvalidInputError("entry of WINDOWS", "key", key, "must be <node>.<metric>.<seconds>.<family>")


class ProcessKey(NamedTuple):
    """A process: its role on the bus, and an id that no other process has."""

    role: str
    id: str


def process_key(key: ProcessKey) -> str:
    """The key of a process in WORKERS."""
    return f"{key.role}.{key.id}"


def parse_process_key(key: str) -> ProcessKey | None:
    """The process that a key of WORKERS names; None for a key of another kind. Raises InvalidInputError."""
    role, _, identity = key.partition(".")
    if role == EXPECTED:
        return None
    if not is_dns_label(role) or not _PROCESS_ID.fullmatch(identity):
        raise InvalidInputError("entry of WORKERS", "key", key, "must be <role>.<id>")
    return ProcessKey(role, identity)


def expected_key(worker: str) -> str:
    """The key in WORKERS of how many processes should run a worker."""
    return f"{EXPECTED}.{worker}"


def parse_expected_key(key: str) -> str | None:
    """The worker that such a key of WORKERS names; None for a key of another kind. Raises InvalidInputError."""
    first, _, worker = key.partition(".")
    if first != EXPECTED:
        return None
    if not is_dns_label(worker):
        raise InvalidInputError("entry of WORKERS", "key", key, f"must be {EXPECTED}.<worker>")
    return worker


def policy_key(key: PolicyKey) -> str:
    """The key of a policy in POLICIES."""
    return f"{key.namespace}.{token(key.name)}"


def refusals_key(policy: str) -> str:
    """The key of the refused labels of all policies of a name in REFUSALS."""
    return token(policy)


def parse_refusals_key(key: str) -> str:
    """The name of policies that a key of REFUSALS names. Raises InvalidInputError."""
    return parse_name("REFUSALS", "policy", key)


def refused_marks_key(policy: str) -> str:
    """The key of the refused marks of all policies of a name in REFUSALS."""
    return refusals_key(policy) + _MARKS


def parse_refused_marks_key(key: str) -> str | None:
    """The name of policies that a key of refused marks in REFUSALS names; None for another key.

    Raises InvalidInputError.
    """
    return parse_refusals_key(key.removesuffix(_MARKS)) if key.endswith(_MARKS) else None


def breaker_key(policy: str) -> str:
    """The key of the breaker of all policies of a name, or of `ALL`, in BREAKERS."""
    return policy if policy == ALL else token(policy)


def parse_breaker_key(key: str) -> str:
    """The name of policies that a key of BREAKERS names, or `ALL`. Raises InvalidInputError."""
    return key if key == ALL else parse_name("BREAKERS", "policy", key)


def pod_key(key: PodKey) -> str:
    """The key of a pod in PODS."""
    return f"{key.namespace}.{token(key.name)}"


def parse_pod_key(key: str) -> PodKey:
    """The pod that a key of PODS names. Raises InvalidInputError."""
    return PodKey(*_parse_namespaced("PODS", "pod", key))


def parse_policy_key(key: str) -> PolicyKey:
    """The policy that a key of POLICIES names. Raises InvalidInputError."""
    return PolicyKey(*_parse_namespaced("POLICIES", "policy", key))


def parse_name(bucket: str, what: str, key: str) -> str:
    """The DNS name that a key of a bucket names, as a node in VERDICTS and HOLDS. Raises InvalidInputError."""
    found = name(key)
    if "." in key or not is_subdomain(found):
        raise InvalidInputError(f"entry of {bucket}", "key", key, f"must be <{what}>")
    return found


def _parse_namespaced(bucket: str, what: str, key: str) -> tuple[str, str]:
    namespace, _, name_token = key.partition(".")
    if "." in name_token or not is_dns_label(namespace) or not is_subdomain(name(name_token)):
        raise InvalidInputError(f"entry of {bucket}", "key", key, f"must be <namespace>.<{what}>")
    return namespace, name(name_token)
