"""Every kind of record on the bus, with its bucket, keys and values."""

from collections.abc import Callable
from functools import cache
from typing import TypeVar

from bus.buckets import (
    AGENTS,
    BREAKERS,
    HOLDS,
    LEASES,
    NODES,
    OUTSTANDING_KEY,
    PAUSED,
    PODS,
    POLICIES,
    REFUSALS,
    SOURCES,
    SYNCED,
    VERDICTS,
    WINDOWS,
    WORKERS,
    Bucket,
)
from bus.record_kind import RecordKind
from bus.records.agents import LearnedState, decode_learned, encode_learned, learned_json
from bus.records.allocations import decode_allocation
from bus.records.breakers import decode_breaker, decode_pause, encode_breaker, encode_pause
from bus.records.codec import encode
from bus.records.devices import NodeHold, NodeInventory, decode_hold, decode_inventory
from bus.records.leases import LeaseRecord, decode_lease
from bus.records.nodes import (
    NodeFacts,
    NodeRelease,
    StoredSamples,
    decode_node_facts,
    decode_node_release,
)
from bus.records.outstanding import decode_outstanding, encode_outstanding
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
from bus.subjects import (
    EXPECTED,
    NodeKind,
    ProcessKey,
    WindowKey,
    breaker_key,
    expected_key,
    hold_key,
    node_allocation_key,
    node_facts_key,
    node_inventory_key,
    node_metrics_key,
    node_released_key,
    node_table_key,
    parse_agent_key,
    parse_breaker_key,
    parse_expected_key,
    parse_hold_key,
    parse_node_key,
    parse_node_table_key,
    parse_pod_key,
    parse_policy_key,
    parse_process_key,
    parse_refusals_key,
    parse_refused_marks_key,
    parse_verdict_key,
    parse_window_key,
    pod_key,
    policy_key,
    process_key,
    refusals_key,
    refused_marks_key,
    verdict_key,
    window_key,
)
from tas.allocation.node import NodeAllocation
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


def _unless_synced(parse_key: Callable[[str], K]) -> Callable[[str], K | None]:
    """`parse_key` for a bucket that also has the key `_synced`."""
    return lambda key: None if key == SYNCED else parse_key(key)


def _node_of(kind: NodeKind) -> Callable[[str], str | None]:
    """A parser of keys of NODES that returns the node of a key of this kind."""

    def parse_key(key: str) -> str | None:
        if parse_node_table_key(key) is not None:
            return None
        node, found = parse_node_key(key)
        return node if found == kind else None

    return _unless_synced(parse_key)


NODE_SAMPLES: RecordKind[str, StoredSamples] = RecordKind(
    bucket=NODES,
    key=node_metrics_key,
    parse_key=_node_of("metrics"),
    encode=encode_written_samples,
    decode=lambda _, data: decode_written_samples(data),
    keys="*.metrics",
)
"""The newest samples, by node."""

NODE_TABLES: RecordKind[TableKey, Table] = RecordKind(
    bucket=NODES,
    key=node_table_key,
    parse_key=parse_node_table_key,
    encode=encode_written_table,
    decode=decode_written_table,
    keys="_table.>",
)
"""The newest values of the tables of each source, by source and part of its nodes."""

NODE_FACTS: RecordKind[str, NodeFacts] = RecordKind(
    bucket=NODES,
    key=node_facts_key,
    parse_key=_node_of("facts"),
    encode=encode,
    decode=lambda _, data: decode_node_facts(data),
    keys="*.facts",
)
"""Uid and labels, by node: separate from the samples, which change a thousand times as often."""

NODE_RELEASES: RecordKind[str, NodeRelease] = RecordKind(
    bucket=NODES,
    key=node_released_key,
    parse_key=_node_of("released"),
    encode=encode,
    decode=lambda _, data: decode_node_release(data),
    keys="*.released",
)
"""Since when the last known values of a node do not count, by node."""

NODE_INVENTORY: RecordKind[str, NodeInventory] = RecordKind(
    bucket=NODES,
    key=node_inventory_key,
    parse_key=_node_of("inventory"),
    encode=encode,
    decode=lambda _, data: decode_inventory(data),
    keys="*.inventory",
)
"""The GPU cards, by node, and what policies say about them."""

NODE_ALLOCATION: RecordKind[str, NodeAllocation] = RecordKind(
    bucket=NODES,
    key=node_allocation_key,
    parse_key=_node_of("allocation"),
    encode=encode,
    decode=lambda _, data: decode_allocation(data),
    keys="*.allocation",
)
"""What the pods of a node request, by node."""

NODE_HOLDS: RecordKind[str, NodeHold] = RecordKind(
    bucket=HOLDS,
    key=hold_key,
    parse_key=_unless_synced(parse_hold_key),
    encode=encode,
    decode=lambda _, data: decode_hold(data),
)
"""Who has which GPU cards, by node."""

POLICY_RECORDS: RecordKind[PolicyKey, PolicyRecord] = RecordKind(
    bucket=POLICIES,
    key=policy_key,
    parse_key=_unless_synced(parse_policy_key),
    encode=encode_policy,
    decode=decode_policy,
)
POD_RECORDS: RecordKind[PodKey, PodRecord] = RecordKind(
    bucket=PODS,
    key=pod_key,
    parse_key=_unless_synced(parse_pod_key),
    encode=encode,
    decode=lambda _, data: decode_pod(data),
)
NODE_VERDICTS: RecordKind[str, NodeVerdict] = RecordKind(
    bucket=VERDICTS,
    key=verdict_key,
    parse_key=parse_verdict_key,
    encode=encode_verdict,
    decode=lambda _, data: decode_verdict(data),
    json=verdict_json,
)
"""By node."""

WINDOW_SERIES: RecordKind[WindowKey, StoredSeries] = RecordKind(
    bucket=WINDOWS,
    key=window_key,
    parse_key=parse_window_key,
    encode=encode,
    decode=decode_series,
)
"""By node and series."""

SOURCE_STATES: RecordKind[str, SourceState] = RecordKind(
    bucket=SOURCES,
    key=str,
    parse_key=str,
    encode=encode_source_state,
    decode=lambda _, data: decode_source_state(data),
)
"""By source."""

REFUSED_LABELS: RecordKind[str, tuple[RefusedLabel, ...]] = RecordKind(
    bucket=REFUSALS,
    key=refusals_key,
    parse_key=lambda key: None if parse_refused_marks_key(key) else parse_refusals_key(key),
    encode=encode_refused_labels,
    decode=lambda _, data: decode_refused_labels(data),
)
"""By name of the policies, which share these labels."""

REFUSED_MARKS: RecordKind[str, tuple[RefusedLabel, ...]] = RecordKind(
    bucket=REFUSALS,
    key=refused_marks_key,
    parse_key=parse_refused_marks_key,
    encode=encode_refused_marks,
    decode=lambda _, data: decode_refused_marks(data),
    keys="*.marks",
)
"""By name of the policies, which share these marks."""

BREAKER_RECORDS: RecordKind[str, Breaker] = RecordKind(
    bucket=BREAKERS,
    key=breaker_key,
    parse_key=lambda key: None if key in (OUTSTANDING_KEY, PAUSED, SYNCED) else parse_breaker_key(key),
    encode=encode_breaker,
    decode=lambda _, data: decode_breaker(data),
)
"""By name of the policies, and the breaker over all policies by `tas.verdict.brake.ALL`."""

PAUSE_RECORDS: RecordKind[str, Pause] = RecordKind(
    bucket=BREAKERS,
    key=str,
    parse_key=lambda key: key if key == PAUSED else None,
    encode=encode_pause,
    decode=lambda _, data: decode_pause(data),
    keys=PAUSED,
)
"""`_paused`, its only key."""

OUTSTANDING: RecordKind[str, Announcements] = RecordKind(
    bucket=BREAKERS,
    key=str,
    parse_key=lambda key: key if key == OUTSTANDING_KEY else None,
    encode=encode_outstanding,
    decode=lambda _, data: decode_outstanding(data),
    keys=OUTSTANDING_KEY,
)
"""`_outstanding`, its only key."""

LEARNED_STATES: RecordKind[str, LearnedState] = RecordKind(
    bucket=AGENTS,
    key=str,
    parse_key=parse_agent_key,
    encode=encode_learned,
    decode=lambda _, data: decode_learned(data),
    json=learned_json,
)
"""By name of the agent."""

LEASE_RECORDS: RecordKind[str, LeaseRecord] = RecordKind(
    bucket=LEASES, key=str, parse_key=str, encode=encode, decode=lambda _, data: decode_lease(data)
)
"""By name of the lease."""


PROCESSES: RecordKind[ProcessKey, Process] = RecordKind(
    bucket=WORKERS,
    key=process_key,
    parse_key=parse_process_key,
    encode=encode_process,
    decode=lambda _, data: decode_process(data),
)
"""By role and id."""

EXPECTED_NUMBERS: RecordKind[str, Expected] = RecordKind(
    bucket=WORKERS,
    key=expected_key,
    parse_key=parse_expected_key,
    encode=encode_expected,
    decode=lambda _, data: decode_expected(data),
    keys=f"{EXPECTED}.*",
)
"""By worker."""


@cache
def synced_of(bucket: Bucket) -> RecordKind[str, Synced]:
    """`_synced` in a bucket, its only key."""
    return RecordKind(
        bucket=bucket,
        key=str,
        parse_key=lambda key: key if key == SYNCED else None,
        encode=encode_synced,
        decode=lambda _, data: decode_synced(data),
        keys=SYNCED,
    )
