"""Every kind of record on the bus, with its bucket, keys and values."""

from collections.abc import Callable
from functools import cache, partial
from typing import TypeVar

from bus import buckets, subjects
from bus.record_kind import RecordKind
from bus.records.agents import LearnedState, decode_learned, encode_learned, learned_json
from bus.records.allocations import decode_allocation
from bus.records.breakers import (
    decode_breaker,
    decode_outstanding,
    decode_pause,
    encode_breaker,
    encode_outstanding,
    encode_pause,
)
from bus.records.codec import encode
from bus.records.devices import NodeHold, decode_hold, decode_inventory
from bus.records.leases import LeaseRecord, decode_lease
from bus.records.nodes import decode_node_facts, decode_node_release
from bus.records.pods import PodRecord, decode_pod
from bus.records.policies import PolicyRecord, decode_policy, encode_policy
from bus.records.refusals import (
    decode_refused_labels,
    decode_refused_marks,
    encode_refused_labels,
    encode_refused_marks,
)
from bus.records.sources import decode_source_state, encode_source_state
from bus.records.synced import Synced, decode_synced, encode_synced
from bus.records.verdicts import decode_verdict, encode_verdict, verdict_json
from bus.records.windows import decode_series
from bus.records.workers import decode_expected, decode_process, encode_expected, encode_process
from bus.records.written import (
    decode_written_samples,
    decode_written_table,
    encode_written_samples,
    encode_written_table,
)
from tas.enforcing.pod import PodKey
from tas.policy.policy import PolicyKey
from tas.processes.expected import Expected
from tas.processes.process import Process
from tas.samples.table import Table, TableKey
from tas.sources.state import SourceState
from tas.verdict.freeze import Breaker, Pause
from tas.verdict.outstanding import Announcements
from tas.verdict.refused import RefusedLabel
from tas.verdict.verdict import NodeVerdict
from tas.windows.key import StoredSeries

K = TypeVar("K")
V = TypeVar("V")


def _but_not(parse_key: Callable[[str], K], *others: str) -> Callable[[str], K | None]:
    """`parse_key`, with None for these keys of other kinds in the same bucket."""
    return lambda key: None if key in others else parse_key(key)


def _node_of(kind: subjects.NodeKind) -> Callable[[str], str | None]:
    """A parser of keys of NODES that returns the node of a key of this kind."""

    def parse_key(key: str) -> str | None:
        if subjects.parse_node_table_key(key) is not None:
            return None
        node, found = subjects.parse_node_key(key)
        return node if found == kind else None

    return _but_not(parse_key, buckets.SYNCED)


def _of_nodes(
    kind: subjects.NodeKind, decode: Callable[[bytes], V], encode: Callable[[V], bytes] = encode
) -> RecordKind[str, V]:
    """The records of a kind in NODES, by node."""
    return RecordKind(
        bucket=buckets.NODES,
        key=lambda node: subjects.node_key(node, kind),
        parse_key=_node_of(kind),
        encode=encode,
        decode=lambda _, data: decode(data),
        keys=subjects.node_key("*", kind),
    )


NODE_SAMPLES = _of_nodes("metrics", decode_written_samples, encode_written_samples)
"""The newest samples, by node."""

NODE_TABLES: RecordKind[TableKey, Table] = RecordKind(
    bucket=buckets.NODES,
    key=subjects.node_table_key,
    parse_key=subjects.parse_node_table_key,
    encode=encode_written_table,
    decode=decode_written_table,
    keys="_table.>",
)
"""The newest values of the tables of each source, by source and part of its nodes."""

NODE_FACTS = _of_nodes("facts", decode_node_facts)
"""Uid and labels, by node: separate from the samples, which change a thousand times as often."""

NODE_RELEASES = _of_nodes("released", decode_node_release)
"""Since when the last known values of a node do not count, by node."""

NODE_INVENTORY = _of_nodes("inventory", decode_inventory)
"""The GPU cards, by node, and what policies say about them."""

NODE_ALLOCATION = _of_nodes("allocation", decode_allocation)
"""What the pods of a node request, by node."""

NODE_HOLDS: RecordKind[str, NodeHold] = RecordKind(
    bucket=buckets.HOLDS,
    key=subjects.token,
    parse_key=_but_not(partial(subjects.parse_name, "HOLDS", "node"), buckets.SYNCED),
    decode=lambda _, data: decode_hold(data),
)
"""Who has which GPU cards, by node."""

POLICY_RECORDS: RecordKind[PolicyKey, PolicyRecord] = RecordKind(
    bucket=buckets.POLICIES,
    key=subjects.policy_key,
    parse_key=_but_not(subjects.parse_policy_key, buckets.SYNCED),
    encode=encode_policy,
    decode=decode_policy,
)
POD_RECORDS: RecordKind[PodKey, PodRecord] = RecordKind(
    bucket=buckets.PODS,
    key=subjects.pod_key,
    parse_key=_but_not(subjects.parse_pod_key, buckets.SYNCED),
    decode=lambda _, data: decode_pod(data),
)
NODE_VERDICTS: RecordKind[str, NodeVerdict] = RecordKind(
    bucket=buckets.VERDICTS,
    key=subjects.token,
    parse_key=partial(subjects.parse_name, "VERDICTS", "node"),
    encode=encode_verdict,
    decode=lambda _, data: decode_verdict(data),
    json=verdict_json,
)
"""By node."""

WINDOW_SERIES: RecordKind[subjects.WindowKey, StoredSeries] = RecordKind(
    bucket=buckets.WINDOWS,
    key=subjects.window_key,
    parse_key=subjects.parse_window_key,
    decode=decode_series,
)
"""By node and series."""

SOURCE_STATES: RecordKind[str, SourceState] = RecordKind(
    bucket=buckets.SOURCES,
    key=str,
    parse_key=str,
    encode=encode_source_state,
    decode=lambda _, data: decode_source_state(data),
)
"""By source."""

REFUSED_LABELS: RecordKind[str, tuple[RefusedLabel, ...]] = RecordKind(
    bucket=buckets.REFUSALS,
    key=subjects.refusals_key,
    parse_key=lambda key: None if subjects.parse_refused_marks_key(key) else subjects.parse_refusals_key(key),
    encode=encode_refused_labels,
    decode=lambda _, data: decode_refused_labels(data),
)
"""By name of the policies, which share these labels."""

REFUSED_MARKS: RecordKind[str, tuple[RefusedLabel, ...]] = RecordKind(
    bucket=buckets.REFUSALS,
    key=subjects.refused_marks_key,
    parse_key=subjects.parse_refused_marks_key,
    encode=encode_refused_marks,
    decode=lambda _, data: decode_refused_marks(data),
    keys="*.marks",
)
"""By name of the policies, which share these marks."""

BREAKER_RECORDS: RecordKind[str, Breaker] = RecordKind(
    bucket=buckets.BREAKERS,
    key=subjects.breaker_key,
    parse_key=_but_not(subjects.parse_breaker_key, buckets.OUTSTANDING_KEY, buckets.PAUSED, buckets.SYNCED),
    encode=encode_breaker,
    decode=lambda _, data: decode_breaker(data),
)
"""By name of the policies, and the breaker over all policies by `tas.verdict.freeze.ALL`."""

PAUSE_RECORDS: RecordKind[str, Pause] = RecordKind(
    bucket=buckets.BREAKERS,
    key=str,
    parse_key=lambda key: key if key == buckets.PAUSED else None,
    encode=encode_pause,
    decode=lambda _, data: decode_pause(data),
    keys=buckets.PAUSED,
)
"""`_paused`, its only key."""

OUTSTANDING: RecordKind[str, Announcements] = RecordKind(
    bucket=buckets.BREAKERS,
    key=str,
    parse_key=lambda key: key if key == buckets.OUTSTANDING_KEY else None,
    encode=encode_outstanding,
    decode=lambda _, data: decode_outstanding(data),
    keys=buckets.OUTSTANDING_KEY,
)
"""`_outstanding`, its only key."""

LEARNED_STATES: RecordKind[str, LearnedState] = RecordKind(
    bucket=buckets.AGENTS,
    key=str,
    parse_key=subjects.parse_agent_key,
    encode=encode_learned,
    decode=lambda _, data: decode_learned(data),
    json=learned_json,
)
"""By name of the agent."""

LEASE_RECORDS: RecordKind[str, LeaseRecord] = RecordKind(
    bucket=buckets.LEASES, key=str, parse_key=str, decode=lambda _, data: decode_lease(data)
)
"""By name of the lease."""

PROCESSES: RecordKind[subjects.ProcessKey, Process] = RecordKind(
    bucket=buckets.WORKERS,
    key=subjects.process_key,
    parse_key=subjects.parse_process_key,
    encode=encode_process,
    decode=lambda _, data: decode_process(data),
)
"""By role and id."""

EXPECTED_NUMBERS: RecordKind[str, Expected] = RecordKind(
    bucket=buckets.WORKERS,
    key=subjects.expected_key,
    parse_key=subjects.parse_expected_key,
    encode=encode_expected,
    decode=lambda _, data: decode_expected(data),
    keys=f"{subjects.EXPECTED}.*",
)
"""By worker."""


@cache
def synced_of(bucket: buckets.Bucket) -> RecordKind[str, Synced]:
    """`_synced` in a bucket, its only key."""
    return RecordKind(
        bucket=bucket,
        key=str,
        parse_key=lambda key: key if key == buckets.SYNCED else None,
        encode=encode_synced,
        decode=lambda _, data: decode_synced(data),
        keys=buckets.SYNCED,
    )
