"""The configuration of streams, and the differences of existing streams."""

import pytest

from bus.buckets import (
    AGENTS,
    ALL,
    DEAD_LETTERS,
    EVENTS,
    LEASES,
    NODES,
    OUTCOMES,
    SAMPLES,
    SOURCES,
    VERDICT_LOG,
    VERDICTS,
    Bucket,
    Stream,
    configuration,
    differences,
    weaknesses,
)
from bus.kinds import NODE_VERDICTS
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
    """A server can store a message in a stream that does not have its subject: docs/background/bus-rights.md."""
    assert VERDICTS.key(VERDICTS.subject("node-1")) == "node-1"
    foreign = AGENTS.subject("xxnode-1")
    assert len(foreign) == len(VERDICTS.subject("node-1"))
    with pytest.raises(InvalidInputError):
        NODE_VERDICTS.parse_key(VERDICTS.key(foreign))


def test_only_streams_and_buckets_with_history_have_a_size_limit() -> None:
    """And WINDOWS and WORKERS, in which a lost record costs only accuracy, or a look at the processes."""
    assert all(of.max_bytes for of in ALL)


def test_only_a_bucket_whose_expired_keys_are_watched_has_delete_markers() -> None:
    nodes, sources, leases = (configuration(of, first_sequence=FIRST, replicas=1) for of in (NODES, SOURCES, LEASES))
    assert "allow_msg_ttl" not in nodes
    assert (sources["allow_msg_ttl"], sources["subject_delete_marker_ttl"] >= 10**9) == (True, True)
    assert leases["allow_msg_ttl"]
    assert "subject_delete_marker_ttl" not in leases


@pytest.mark.parametrize("of", ALL, ids=lambda of: of.name)
def test_a_created_stream_has_no_weaknesses_and_one_of_before_has(of: Stream | Bucket) -> None:
    assert weaknesses(of, as_reported(of, allow_rollup_hdrs=isinstance(of, Bucket) and of.ttl and of.marks)) == {}
    before = as_reported(of, allow_rollup_hdrs=True, duplicate_window=120 * 10**9, consumer_limits={}, max_msg_size=-1)
    if isinstance(of, Bucket):
        before["max_age"] = 0
    before["max_bytes"] = -1
    before["subject_delete_marker_ttl"] = 60 * 10**9 if isinstance(of, Bucket) and of.ttl else None
    found = weaknesses(of, before)
    assert found["consumer_limits"][1] == configuration(of, first_sequence=0, replicas=1)["consumer_limits"]
    assert ("duplicate_window" in found) is (of is not OUTCOMES)
    assert ("allow_rollup_hdrs" in found) is (isinstance(of, Bucket) and (of is LEASES or not of.ttl))
    assert ("subject_delete_marker_ttl" in found) is (of is LEASES)
    assert ("max_msg_size" in found) is (of in (DEAD_LETTERS, LEASES))
    assert ("max_age" in found) is (of is LEASES)
    assert found.get("max_bytes") == ((-1, of.max_bytes) if isinstance(of, Bucket) else None)
    # What mends a weakness leaves none.
    assert weaknesses(of, before | {field: new for field, (_, new) in found.items()}) == {}


def test_a_stricter_setting_of_an_operator_is_no_weakness_and_other_limits_stay() -> None:
    strict = {"inactive_threshold": 10**9, "max_ack_pending": 5}
    assert weaknesses(SAMPLES, as_reported(SAMPLES, duplicate_window=10**7, consumer_limits=strict)) == {}
    assert (
        weaknesses(NODES, as_reported(NODES, max_bytes=1))
        == weaknesses(NODES, as_reported(NODES, max_bytes=2**40))
        == {}
    )
    (_, mended) = weaknesses(EVENTS, as_reported(EVENTS, consumer_limits={"max_ack_pending": 5}))["consumer_limits"]
    assert mended == {"max_ack_pending": 5, "inactive_threshold": 30 * 24 * 3600 * 10**9}


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
