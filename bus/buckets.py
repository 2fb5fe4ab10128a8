"""Every stream and bucket of the product, as plain data. `bus.connection` creates what is missing.

A bucket is a stream `KV_<bucket>` with subjects `$KV.<bucket>.>` (facts.md n5). All are created with `first_seq` =
microseconds since 1970, so revisions of two epochs never overlap (facts.md n34).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

NANOSECONDS = 10**9
"""JetStream's unit for durations, in a second."""

HEADER_BYTES = 1024
"""Space reserved for the headers of a message, which count towards the server's `max_payload`."""

TOMBSTONE_SECONDS = 60
"""How long the server keeps the tombstone of an expired key."""

LEAST_WINDOW_NANOSECONDS = NANOSECONDS // 10
"""The shortest duplicate window that a server accepts. For two minutes, the default, it would keep ids of 60 KB of each
message of a publisher that sets some."""

INACTIVE_SECONDS = 600.0
"""After so long without a request, or without a subscription, a server deletes a consumer; none may have more.

Long enough for the ephemeral consumers of every client (those of nats.go have 5 minutes), and as long as SAMPLES and
TABLES keep messages: a consumer of `materialize` that begins anew after this time has missed nothing that is left.
"""

ABSENT_SECONDS = 30 * 24 * 3600.0
"""The same for EVENTS, whose durable consumers are the memory of subscriptions and sinks: far longer than it keeps
events, so one that comes back late still gets all that is left."""

FORGET_SECONDS = 1800.0
"""How long the tombstone of a deleted key is kept at least, in a bucket whose tombstones are purged."""

FIRST_SEQUENCE_MICROSECONDS = 10**15
"""The first sequence of a stream of TAS is above this (September 2001); of any other stream it is far below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A stream; limits of 0 mean no limit.

    It stores what is published on `subjects`, or an ordered copy of its `sources` with limits of its own. With
    `identifies` its publishers set `Nats-Msg-Id`, and the server remembers these ids for two minutes (facts.md n41).
    `flood_messages` is as `max_messages_per_subject`, but no worker relies on it: it protects the subjects of others.
    A consumer that nobody uses lives at most for `inactive_seconds`.
    """

    name: str
    subjects: tuple[str, ...] = ()
    sources: "tuple[Stream | Bucket, ...]" = ()
    max_age_seconds: float = 0
    max_bytes: int = 0
    max_message_bytes: int = 0
    max_messages_per_subject: int = 0
    flood_messages: int = 0
    inactive_seconds: float = INACTIVE_SECONDS
    identifies: bool = False

    @property
    def stream(self) -> str:
        """The name on the server."""
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A key-value bucket; `ttl` allows a TTL per key, and with `marks` an expired key leaves a tombstone.

    Watches deliver this tombstone. Its price: who may write one key of the bucket can delete all others (facts.md n46).
    At `max_bytes` a server refuses new keys and longer values, and takes others (facts.md n79): so who fills one bucket
    takes no room of another one. A key that nobody has written for `max_age_seconds` is gone, without a tombstone.
    All work goes on without an `optional` one: that a connection cannot have it is no problem of the connection.
    """

    name: str
    history: int = 1
    max_age_seconds: float = 0
    max_bytes: int = 0
    max_message_bytes: int = 0
    ttl: bool = False
    marks: bool = True
    optional: bool = False

    @property
    def stream(self) -> str:
        """The name of the bucket's stream on the server."""
        return f"KV_{self.name}"

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subjects of all its keys."""
        return (self.subject(">"),)

    def subject(self, key: str) -> str:
        """The subject of a key."""
        return f"$KV.{self.name}.{key}"

    def key(self, subject: str) -> str:
        """The key of a subject. A subject of another bucket comes back as it is, and is no valid key."""
        return subject.removeprefix(self.subject(""))


SAMPLES = Stream(
    name="SAMPLES",
    subjects=("tas.samples.*.*",),
    max_age_seconds=600,
    max_bytes=1 << 30,
    max_message_bytes=256 << 10,
)
SAMPLES_CONSUMER = "materialize"
"""The durable consumer of SAMPLES that all replicas of `materialize` share."""
TABLES = Stream(
    name="TABLES",
    subjects=("tas.tables.*.*",),
    max_age_seconds=600,
    max_bytes=256 << 20,
    max_message_bytes=256 << 10,
)
"""Samples of many nodes in one message.

A stream of its own: a program that may publish for one node has no right to it, and a worker of an earlier version does
not acknowledge what it cannot read. Its size lets the limits of all streams fit a volume of 8 GiB, as before.
"""
TABLES_CONSUMER = "materialize"
"""The durable consumer of TABLES that all replicas of `materialize` share."""
NODES = Bucket(name="NODES", max_bytes=304 << 20)
"""For 15,000 nodes with 200 metrics at 100 bytes each.

All buckets and streams together fit three quarters of a volume of 8 GiB, as before they had limits.
"""
POLICIES = Bucket(name="POLICIES", max_bytes=32 << 20)
"""For 500 policies of 64 KiB each, the largest."""
PODS = Bucket(name="PODS", max_bytes=32 << 20)
"""For 100,000 pods with a policy."""
VERDICTS = Bucket(name="VERDICTS", history=64, max_bytes=512 << 20)
"""The only bucket with a history: so many revisions of a key can wait until they are copied to `VERDICT_LOG`.

`evaluate` purges what was copied of a large history. What is not copied may grow without end, so the bucket has a
limit, at which `evaluate` purges all history.
"""
VERDICT_LOG = Stream(name="VERDICT_LOG", sources=(VERDICTS,), max_age_seconds=24 * 3600, max_bytes=1 << 30)
"""For a day with 1.7 changes a second if a verdict has 7 KB, as one of 50 policies with three strategies each."""
EVENTS = Stream(
    name="EVENTS",
    subjects=("tas.events.>", "tas.announced.>"),
    max_age_seconds=7 * 24 * 3600,
    max_bytes=1 << 30,
    inactive_seconds=ABSENT_SECONDS,
)
"""The public events. Below `tas.announced` the publisher stores up to which change of the bus all is announced."""
SINK_CONSUMERS = tuple(f"_sink_{place}" for place in range(1, 33))
"""The names of the durable consumers of EVENTS that sinks may have: the credentials of `notify` take no other place.

No user may have such a name, so these are of no subscription, and of no person.
"""
ANNOUNCED = Stream(name="ANNOUNCED", sources=(EVENTS,), max_messages_per_subject=1, max_bytes=256 << 20)
"""The last event of each subject, also when EVENTS no longer has it: a violation may last longer than that."""
DEAD_LETTERS = Stream(
    name="DEAD_LETTERS",
    subjects=("tas.dead_letters.*",),
    max_age_seconds=30 * 24 * 3600,
    max_bytes=256 << 20,
    max_message_bytes=80 << 10,
    flood_messages=100,
)
"""Events that a subscription gave up: the last 100 of each, so 32 subscriptions can fill theirs.

A public event has at most 64 KiB and its headers. Without ids: one subscription could guess those of another, and a
repetition is rare and says which event it is.
"""
OUTCOMES = Stream(
    name="OUTCOMES",
    subjects=("tas.outcomes.*",),
    max_age_seconds=7 * 24 * 3600,
    max_bytes=256 << 20,
    max_message_bytes=16 << 10,
    identifies=True,
)
"""What becomes of pods, for agents that learn: as long as such an agent remembers, if there is room."""
LEASE_BYTES = 1 << 10
"""The most bytes of a lease, with its headers: twice what the lease of a host with the longest name has."""
LEASES = Bucket(
    name="LEASES", ttl=True, marks=False, max_age_seconds=60, max_bytes=16 << 20, max_message_bytes=LEASE_BYTES
)
"""Every process writes its own key, and none watches: so no key can delete the others.

Who has a lease writes it every two seconds. In a full bucket nobody could have one that was free, and any user can fill
it with acknowledgements of the server, which have no TTL: so they are gone after a minute (facts.md n81).
"""
SOURCES = Bucket(name="SOURCES", ttl=True, max_bytes=16 << 20)
"""A key expires when its source is no longer configured. For 32 sources with a state of 512 KiB, the largest."""
REFUSALS = Bucket(name="REFUSALS", ttl=True, max_bytes=8 << 20)
"""A key expires when no replica of `labels` renews it."""
BREAKERS = Bucket(name="BREAKERS", max_bytes=8 << 20)
AGENTS = Bucket(name="AGENTS", ttl=True, max_bytes=16 << 20)
"""What agents have learned, at most 1 MiB each. A key expires when no replica has written it for a month."""
HOLDS = Bucket(name="HOLDS", max_bytes=8 << 20)
"""One key for each node with GPU cards: a conditional write of it assigns cards."""
WINDOWS = Bucket(name="WINDOWS", ttl=True, max_bytes=1 << 30)
"""What the worker `windows` has of each series, so that another replica can go on with it.

A key expires when its series gets no values any more. At the limit writes are refused: then a restart costs accuracy.
"""

WORKERS = Bucket(name="WORKERS", ttl=True, max_bytes=64 << 20, optional=True)
"""Which processes run. A key expires when its process no longer writes it.

Every process may write here, so there is a limit: 10,000 processes need half of it.
"""

ALL: tuple[Stream | Bucket, ...] = (
    SAMPLES,
    TABLES,
    NODES,
    POLICIES,
    PODS,
    VERDICTS,
    VERDICT_LOG,
    LEASES,
    SOURCES,
    REFUSALS,
    EVENTS,
    ANNOUNCED,
    DEAD_LETTERS,
    OUTCOMES,
    BREAKERS,
    AGENTS,
    HOLDS,
    WINDOWS,
    WORKERS,
)
"""Every stream and bucket that a connection creates if it is missing."""

SYNCED = "_synced"
"""The key that marks NODES, POLICIES, PODS, BREAKERS or HOLDS as complete."""

PAUSED = "_paused"
"""The key of the pause in BREAKERS."""

OUTSTANDING_KEY = "_outstanding"
"""The key of the announcements of outstanding verdicts in BREAKERS."""


def configuration(of: Stream | Bucket, *, first_sequence: int, replicas: int) -> dict[str, Any]:
    """The configuration with which a stream or a bucket is created, as JSON of the JetStream API."""
    inactive = of.inactive_seconds if isinstance(of, Stream) else INACTIVE_SECONDS
    common: dict[str, Any] = {
        "name": of.stream,
        "subjects": of.subjects,
        "retention": "limits",
        "storage": "file",
        "num_replicas": replicas,
        "max_bytes": of.max_bytes or -1,
        "first_seq": first_sequence,
        "consumer_limits": {"inactive_threshold": int(inactive * NANOSECONDS)},
    }
    if not (isinstance(of, Stream) and of.identifies):
        common["duplicate_window"] = LEAST_WINDOW_NANOSECONDS
    if isinstance(of, Stream):
        stream = common | {
            "discard": "old",
            "max_age": int(of.max_age_seconds * NANOSECONDS),
            "max_msg_size": of.max_message_bytes or -1,
        }
        if most := of.max_messages_per_subject or of.flood_messages:
            stream["max_msgs_per_subject"] = most
        if of.sources:
            stream["sources"] = [{"name": source.stream} for source in of.sources]
        return stream
    bucket = common | {
        "discard": "new",
        "max_msgs_per_subject": of.history,
        # With a header `Nats-Rollup`, who may write one key could delete all others.
        "allow_rollup_hdrs": False,
        "deny_delete": True,
        "allow_direct": True,
    }
    if of.max_age_seconds:
        bucket["max_age"] = int(of.max_age_seconds * NANOSECONDS)
    if of.max_message_bytes:
        bucket["max_msg_size"] = of.max_message_bytes
    if of.ttl:
        bucket["allow_msg_ttl"] = True
    if of.ttl and of.marks:
        bucket["subject_delete_marker_ttl"] = TOMBSTONE_SECONDS * NANOSECONDS
    return bucket


def differences(of: Stream | Bucket, actual: Mapping[str, Any], *, replicas: int) -> Iterator[str]:
    """Texts about each setting of an existing stream that TAS relies on and that differs; limits are not compared.

    `actual` is the configuration that the server reported.
    """
    required = configuration(of, first_sequence=0, replicas=replicas)
    for field in ("subjects", "retention", "discard", "max_msgs_per_subject", "allow_msg_ttl"):
        if field not in required or (field == "max_msgs_per_subject" and isinstance(of, Stream) and of.flood_messages):
            continue
        found, needed = actual.get(field), required[field]
        if (sorted(found or ()) if field == "subjects" else found) != (
            sorted(needed) if field == "subjects" else needed
        ):
            yield f"{field} is {found}, must be {needed}"
    found, needed = (sorted(source["name"] for source in config.get("sources") or ()) for config in (actual, required))
    if found != needed:
        yield f"sources are {found}, must be {needed}"
    if actual.get("first_seq", 0) < FIRST_SEQUENCE_MICROSECONDS:
        yield "first_seq must be a time in microseconds, so that revisions of two epochs differ"
    if actual.get("num_replicas", 1) < replicas:
        yield f"num_replicas is {actual.get('num_replicas', 1)}, must be {replicas}"


def weaknesses(of: Stream | Bucket, actual: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings of an existing stream that let one user do more harm than those of a new one: as it is, and as new.

    Everything works without them, so no worker demands them: `tas bus mend` sets them. A setting that an operator has
    made stricter stays.
    """
    needed = configuration(of, first_sequence=0, replicas=1)
    found: dict[str, tuple[Any, Any]] = {}
    if isinstance(of, Bucket) and "subject_delete_marker_ttl" not in needed:
        # With the second, a server sets the first.
        for field, new in (("allow_rollup_hdrs", False), ("subject_delete_marker_ttl", 0)):
            if actual.get(field):
                found[field] = (actual[field], new)
    most = {
        "duplicate_window": None if isinstance(of, Stream) and of.identifies else LEAST_WINDOW_NANOSECONDS,
        "max_msgs_per_subject": of.flood_messages if isinstance(of, Stream) else None,
        "max_msg_size": of.max_message_bytes if isinstance(of, Bucket) or of.flood_messages else None,
        "max_age": needed.get("max_age") if isinstance(of, Bucket) else None,
    }
    for field, limit in most.items():
        if limit and not 0 < actual.get(field, 0) <= limit:
            found[field] = (actual.get(field), limit)
    if isinstance(of, Bucket) and of.max_bytes and actual.get("max_bytes", -1) <= 0:
        found["max_bytes"] = (actual.get("max_bytes"), of.max_bytes)
    limits, needed_limits = actual.get("consumer_limits") or {}, needed["consumer_limits"]
    if not 0 < limits.get("inactive_threshold", 0) <= needed_limits["inactive_threshold"]:
        found["consumer_limits"] = (limits, {**limits, **needed_limits})
    return found
