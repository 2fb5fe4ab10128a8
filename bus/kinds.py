"""Every kind of record on the bus, with its bucket, keys and values."""

from collections.abc import Callable
from functools import cache, partial
from typing import TypeVar

from bus import buckets, subjects
from bus.record_kind import RecordKind
from bus.records import (
    agents,
    allocations,
    breakers,
    devices,
    leases,
    nodes,
    pods,
    policies,
    refusals,
    sources,
    synced,
    verdicts,
    windows,
    workers,
    written,
)
from bus.records.codec import encode
from tas.enforcing.pod import PodKey
from tas.policy.policy import PolicyKey
from tas.processes.expected import Expected
from tas.processes.process import Process
from tas.samples.table import Table, TableKey
from tas.sources.state import SourceState
from tas.verdict.brake import Breaker, Pause
from tas.verdict.outstanding import Announcements
from tas.verdict.refused import RefusedLabel
from tas.verdict.verdict import NodeVerdict
from tas.windows.key import StoredSeries

K = TypeVar("K")
V = TypeVar("V")


def _unless(parse_key: Callable[[str], K], *others: str) -> Callable[[str], K | None]:
    """`parse_key` for a bucket that also has these keys of other kinds."""
    return lambda key: None if key in others else parse_key(key)


def _node_of(kind: subjects.NodeKind) -> Callable[[str], str | None]:
    """A parser of keys of NODES that returns the node of a key of this kind."""

    def parse_key(key: str) -> str | None:
        if subjects.parse_node_table_key(key) is not None:
            return None
        node, found = subjects.parse_node_key(key)
        return node if found == kind else None

    return _unless(parse_key, buckets.SYNCED)


def _of_nodes(
    kind: subjects.NodeKind, decode: Callable[[bytes], V], encode: Callable[[V], bytes] = encode
) -> RecordKind[str, V]:
    """The records of a kind in NODES, by node."""
    return RecordKind(
        bucket=buckets.NODES,
        key=lambda node: f"{subjects.token(node)}.{kind}",
        parse_key=_node_of(kind),
        encode=encode,
        decode=lambda _, data: decode(data),
        keys=f"*.{kind}",
    )


NODE_SAMPLES = _of_nodes("metrics", written.decode_written_samples, written.encode_written_samples)
"""The newest samples, by node."""

NODE_TABLES: RecordKind[TableKey, Table] = RecordKind(
    bucket=buckets.NODES,
    key=subjects.node_table_key,
    parse_key=subjects.parse_node_table_key,
    encode=written.encode_written_table,
    decode=written.decode_written_table,
    keys="_table.>",
)
"""The newest values of the tables of each source, by source and part of its nodes."""

NODE_FACTS = _of_nodes("facts", nodes.decode_node_facts)
"""Uid and labels, by node: separate from the samples, which change a thousand times as often."""

NODE_RELEASES = _of_nodes("released", nodes.decode_node_release)
"""Since when the last known values of a node do not count, by node."""

NODE_INVENTORY = _of_nodes("inventory", devices.decode_inventory)
"""The GPU cards, by node, and what policies say about them."""

NODE_ALLOCATION = _of_nodes("allocation", allocations.decode_allocation)
"""What the pods of a node request, by node."""

NODE_HOLDS: RecordKind[str, devices.NodeHold] = RecordKind(
    bucket=buckets.HOLDS,
    key=subjects.token,
    parse_key=_unless(partial(subjects.parse_name, "HOLDS", "node"), buckets.SYNCED),
    decode=lambda _, data: devices.decode_hold(data),
)
"""Who has which GPU cards, by node."""

POLICY_RECORDS: RecordKind[PolicyKey, policies.PolicyRecord] = RecordKind(
    bucket=buckets.POLICIES,
    key=subjects.policy_key,
    parse_key=_unless(subjects.parse_policy_key, buckets.SYNCED),
    encode=policies.encode_policy,
    decode=policies.decode_policy,
)
POD_RECORDS: RecordKind[PodKey, pods.PodRecord] = RecordKind(
    bucket=buckets.PODS,
    key=subjects.pod_key,
    parse_key=_unless(subjects.parse_pod_key, buckets.SYNCED),
    decode=lambda _, data: pods.decode_pod(data),
)
NODE_VERDICTS: RecordKind[str, NodeVerdict] = RecordKind(
    bucket=buckets.VERDICTS,
    key=subjects.token,
    parse_key=partial(subjects.parse_name, "VERDICTS", "node"),
    encode=verdicts.encode_verdict,
    decode=lambda _, data: verdicts.decode_verdict(data),
    json=verdicts.verdict_json,
)
"""By node."""

WINDOW_SERIES: RecordKind[subjects.WindowKey, StoredSeries] = RecordKind(
    bucket=buckets.WINDOWS,
    key=subjects.window_key,
    parse_key=subjects.parse_window_key,
    decode=windows.decode_series,
)
"""By node and series."""

SOURCE_STATES: RecordKind[str, SourceState] = RecordKind(
    bucket=buckets.SOURCES,
    key=str,
    parse_key=str,
    encode=sources.encode_source_state,
    decode=lambda _, data: sources.decode_source_state(data),
)
"""By source."""

REFUSED_LABELS: RecordKind[str, tuple[RefusedLabel, ...]] = RecordKind(
    bucket=buckets.REFUSALS,
    key=subjects.refusals_key,
    parse_key=lambda key: None if subjects.parse_refused_marks_key(key) else subjects.parse_refusals_key(key),
    encode=refusals.encode_refused_labels,
    decode=lambda _, data: refusals.decode_refused_labels(data),
)
"""By name of the policies, which share these labels."""

REFUSED_MARKS: RecordKind[str, tuple[RefusedLabel, ...]] = RecordKind(
    bucket=buckets.REFUSALS,
    key=subjects.refused_marks_key,
    parse_key=subjects.parse_refused_marks_key,
    encode=refusals.encode_refused_marks,
    decode=lambda _, data: refusals.decode_refused_marks(data),
    keys="*.marks",
)
"""By name of the policies, which share these marks."""

BREAKER_RECORDS: RecordKind[str, Breaker] = RecordKind(
    bucket=buckets.BREAKERS,
    key=subjects.breaker_key,
    parse_key=_unless(subjects.parse_breaker_key, buckets.OUTSTANDING_KEY, buckets.PAUSED, buckets.SYNCED),
    encode=breakers.encode_breaker,
    decode=lambda _, data: breakers.decode_breaker(data),
)
"""By name of the policies, and the breaker over all policies by `tas.verdict.brake.ALL`."""

PAUSE_RECORDS: RecordKind[str, Pause] = RecordKind(
    bucket=buckets.BREAKERS,
    key=str,
    parse_key=lambda key: key if key == buckets.PAUSED else None,
    encode=breakers.encode_pause,
    decode=lambda _, data: breakers.decode_pause(data),
    keys=buckets.PAUSED,
)
"""`_paused`, its only key."""

OUTSTANDING: RecordKind[str, Announcements] = RecordKind(
    bucket=buckets.BREAKERS,
    key=str,
    parse_key=lambda key: key if key == buckets.OUTSTANDING_KEY else None,
    encode=breakers.encode_outstanding,
    decode=lambda _, data: breakers.decode_outstanding(data),
    keys=buckets.OUTSTANDING_KEY,
)
"""`_outstanding`, its only key."""

LEARNED_STATES: RecordKind[str, agents.LearnedState] = RecordKind(
    bucket=buckets.AGENTS,
    key=str,
    parse_key=subjects.parse_agent_key,
    encode=agents.encode_learned,
    decode=lambda _, data: agents.decode_learned(data),
    json=agents.learned_json,
)
"""By name of the agent."""

LEASE_RECORDS: RecordKind[str, leases.LeaseRecord] = RecordKind(
    bucket=buckets.LEASES, key=str, parse_key=str, decode=lambda _, data: leases.decode_lease(data)
)
"""By name of the lease."""

PROCESSES: RecordKind[subjects.ProcessKey, Process] = RecordKind(
    bucket=buckets.WORKERS,
    key=subjects.process_key,
    parse_key=subjects.parse_process_key,
    encode=workers.encode_process,
    decode=lambda _, data: workers.decode_process(data),
)
"""By role and id."""

EXPECTED_NUMBERS: RecordKind[str, Expected] = RecordKind(
    bucket=buckets.WORKERS,
    key=subjects.expected_key,
    parse_key=subjects.parse_expected_key,
    encode=workers.encode_expected,
    decode=lambda _, data: workers.decode_expected(data),
    keys=f"{subjects.EXPECTED}.*",
)
"""By worker."""


@cache
def synced_of(bucket: buckets.Bucket) -> RecordKind[str, synced.Synced]:
    """`_synced` in a bucket, its only key."""
    return RecordKind(
        bucket=bucket,
        key=str,
        parse_key=lambda key: key if key == buckets.SYNCED else None,
        encode=synced.encode_synced,
        decode=lambda _, data: synced.decode_synced(data),
        keys=buckets.SYNCED,
    )
