"""Every stream and bucket of the product, as plain data. `bus.connection` creates what is missing.

A bucket is a stream `KV_<bucket>` with subjects `$KV.<bucket>.>` (n5). All are created with `first_seq` = microseconds
since 1970, so revisions of two lives of a bus never meet (n34).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

NANOSECONDS = 10**9
"""JetStream tells durations in them."""

MARKER_SECONDS = 60
"""How long the marker of an expired key stands in a bucket with TTLs."""

FIRST_SEQUENCE_MICROSECONDS = 10**15
"""No stream of ours begins below this (September 2001), and every stream created by others begins far below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A stream; `max_age_seconds` and `max_bytes` of 0 mean no limit, as does `max_message_bytes`.

    It holds what is published on `subjects`, or what `sources` hold: a copy in order, with limits of its own.
    """

    name: str
    subjects: tuple[str, ...] = ()
    sources: "tuple[Stream | Bucket, ...]" = ()
    max_age_seconds: float = 0
    max_bytes: int = 0
    max_message_bytes: int = 0

    @property
    def stream(self) -> str:
        """What the server calls it."""
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A key-value bucket; `ttl` allows a TTL per message, whose expiry then leaves a marker."""

    name: str
    history: int = 1
    max_bytes: int = 0
    ttl: bool = False

    @property
    def stream(self) -> str:
        """What the server calls the stream behind it."""
        return f"KV_{self.name}"

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subjects of all its keys."""
        return (self.subject(">"),)

    def subject(self, key: str) -> str:
        """The subject of a key."""
        return f"$KV.{self.name}.{key}"

    def key(self, subject: str) -> str:
        """The key of a subject."""
        return subject[len(self.name) + 5 :]


SAMPLES = Stream(
    name="SAMPLES",
    subjects=("tas.samples.*.*",),
    max_age_seconds=600,
    max_bytes=1 << 30,
    max_message_bytes=256 << 10,
)
NODES = Bucket(name="NODES")
POLICIES = Bucket(name="POLICIES")
PODS = Bucket(name="PODS")
VERDICTS = Bucket(name="VERDICTS", history=64, max_bytes=512 << 20)
"""So many revisions of a key may wait to be copied to `VERDICT_LOG`: a bucket alone is no log.

The only bucket that keeps a history, and so the only one that would outgrow what it is about: hence a limit. At the
limit `evaluate` forgets the history.
"""
VERDICT_LOG = Stream(name="VERDICT_LOG", sources=(VERDICTS,), max_age_seconds=24 * 3600, max_bytes=256 << 20)
LEASES = Bucket(name="LEASES", ttl=True)
SOURCES = Bucket(name="SOURCES", ttl=True)
"""What nobody confirms any more expires: a source that is no longer configured."""

ALL: tuple[Stream | Bucket, ...] = (SAMPLES, NODES, POLICIES, PODS, VERDICTS, VERDICT_LOG, LEASES, SOURCES)
"""Everything that a connection creates if it is missing."""

SYNCED = "_synced"
"""The key that says a complete list was written: in NODES, POLICIES and PODS."""


def configuration(of: Stream | Bucket, *, first_sequence: int, replicas: int) -> dict[str, Any]:
    """The stream configuration to create `of` with, in the words of JetStream's API."""
    common: dict[str, Any] = {
        "name": of.stream,
        "subjects": of.subjects,
        "retention": "limits",
        "storage": "file",
        "num_replicas": replicas,
        "max_bytes": of.max_bytes or -1,
        "first_seq": first_sequence,
    }
    if isinstance(of, Stream):
        stream = common | {
            "discard": "old",
            "max_age": int(of.max_age_seconds * NANOSECONDS),
            "max_msg_size": of.max_message_bytes or -1,
        }
        if of.sources:
            stream["sources"] = [{"name": source.stream} for source in of.sources]
        return stream
    bucket = common | {
        "discard": "new",
        "max_msgs_per_subject": of.history,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
    }
    if of.ttl:
        bucket |= {"allow_msg_ttl": True, "subject_delete_marker_ttl": MARKER_SECONDS * NANOSECONDS}
    return bucket


def differences(of: Stream | Bucket, actual: Mapping[str, Any], *, replicas: int) -> Iterator[str]:
    """Where an existing stream is not what we rely on; sizes and ages are its operator's to choose.

    `actual` is the configuration that the server tells.
    """
    wished = configuration(of, first_sequence=0, replicas=replicas)
    for field in ("subjects", "retention", "discard", "max_msgs_per_subject", "allow_msg_ttl"):
        if field not in wished:
            continue
        there, needed = actual.get(field), wished[field]
        if (sorted(there or ()) if field == "subjects" else there) != (
            sorted(needed) if field == "subjects" else needed
        ):
            yield f"{field} is {there}, needed is {needed}"
    there, needed = (sorted(source["name"] for source in each.get("sources") or ()) for each in (actual, wished))
    if there != needed:
        yield f"sources are {there}, needed are {needed}"
    if actual.get("first_seq", 0) < FIRST_SEQUENCE_MICROSECONDS:
        yield "first_seq is no time in microseconds, so a new life of it cannot be told from an old one"
    if actual.get("num_replicas", 1) < replicas:
        yield f"num_replicas is {actual.get('num_replicas', 1)}, wished is {replicas}"
