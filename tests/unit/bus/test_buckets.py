"""The configuration of streams, and the differences of existing streams."""

import pytest

from bus.buckets import (
    AGENTS,
    ALL,
    LEASES,
    NODES,
    SAMPLES,
    VERDICT_LOG,
    VERDICTS,
    WINDOWS,
    Bucket,
    Stream,
    configuration,
    differences,
)
from bus.subjects import parse_verdict_key
from tas.errors import InvalidInputError

FIRST = 1_795_277_068_888_665


def as_reported(of: Stream | Bucket, **changes: object) -> dict[str, object]:
    """A configuration as a server reports it."""
    return configuration(of, first_sequence=FIRST, replicas=1) | {"subjects": list(of.subjects)} | changes


def test_a_bucket_is_a_stream_of_this_form_facts_n5() -> None:
    config = configuration(NODES, first_sequence=FIRST, replicas=3)
    assert config["name"] == "KV_NODES"
    assert config["subjects"] == ("$KV.NODES.>",)
    assert (config["max_msgs_per_subject"], config["discard"], config["num_replicas"]) == (1, "new", 3)
    assert (NODES.subject("a.metrics"), NODES.key("$KV.NODES.a.metrics")) == ("$KV.NODES.a.metrics", "a.metrics")


def test_a_subject_of_another_bucket_is_no_key_of_this_one() -> None:
    """A server can store a message in a stream that does not have its subject: docs/bus.md, "What remains"."""
    assert VERDICTS.key(VERDICTS.subject("node-1")) == "node-1"
    foreign = AGENTS.subject("xxnode-1")
    assert len(foreign) == len(VERDICTS.subject("node-1"))
    with pytest.raises(InvalidInputError):
        parse_verdict_key(VERDICTS.key(foreign))


def test_only_streams_and_buckets_with_history_have_a_size_limit() -> None:
    """And WINDOWS, in which a lost record costs only accuracy."""
    limited = {of.name for of in ALL if of.max_bytes}
    assert limited == {of.name for of in ALL if isinstance(of, Stream) or of.history > 1 or of is WINDOWS}


def test_only_a_bucket_with_ttls_has_delete_markers() -> None:
    assert "allow_msg_ttl" not in configuration(NODES, first_sequence=FIRST, replicas=1)
    assert configuration(LEASES, first_sequence=FIRST, replicas=1)["subject_delete_marker_ttl"] >= 10**9


@pytest.mark.parametrize("of", ALL, ids=lambda of: of.name)
def test_a_created_stream_has_no_differences(of: Stream | Bucket) -> None:
    assert list(differences(of, as_reported(of), replicas=1)) == []


@pytest.mark.parametrize("of", ALL, ids=lambda of: of.name)
def test_an_operator_may_change_size_age_and_replicas(of: Stream | Bucket) -> None:
    assert list(differences(of, as_reported(of, max_bytes=5, max_age=7, num_replicas=3), replicas=1)) == []


@pytest.mark.parametrize(
    ("of", "changes", "replicas", "text"),
    [
        (SAMPLES, {"subjects": ["other"]}, 1, "subjects is ['other']"),
        (SAMPLES, {"retention": "workqueue"}, 1, "retention"),
        (SAMPLES, {"discard": "new"}, 1, "discard"),
        (NODES, {"max_msgs_per_subject": 64}, 1, "max_msgs_per_subject is 64, must be 1"),
        (NODES, {"first_seq": 0}, 1, "first_seq"),
        (LEASES, {"allow_msg_ttl": False}, 1, "allow_msg_ttl"),
        (VERDICTS, {"max_msgs_per_subject": 1}, 1, "max_msgs_per_subject is 1, must be 64"),
        (VERDICT_LOG, {"sources": None}, 1, "sources are [], must be ['KV_VERDICTS']"),
        (SAMPLES, {"sources": [{"name": "OTHER"}]}, 1, "sources are ['OTHER'], must be []"),
        (NODES, {}, 3, "num_replicas is 1, must be 3"),
    ],
)
def test_a_difference_that_matters_is_reported(
    of: Stream | Bucket, changes: dict[str, object], replicas: int, text: str
) -> None:
    (difference,) = differences(of, as_reported(of, **changes), replicas=replicas)
    assert text in difference
