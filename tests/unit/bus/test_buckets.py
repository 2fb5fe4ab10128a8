"""Streams as they are created, and as they are found."""

import pytest

from bus.buckets import ALL, LEASES, NODES, SAMPLES, VERDICT_LOG, VERDICTS, Bucket, Stream, configuration, differences

FIRST = 1_795_277_068_888_665


def as_told(of: Stream | Bucket, **changes: object) -> dict[str, object]:
    """A configuration as a server tells it back."""
    return configuration(of, first_sequence=FIRST, replicas=1) | {"subjects": list(of.subjects)} | changes


def test_a_bucket_is_a_stream_of_this_form_n5() -> None:
    config = configuration(NODES, first_sequence=FIRST, replicas=3)
    assert config["name"] == "KV_NODES"
    assert config["subjects"] == ("$KV.NODES.>",)
    assert (config["max_msgs_per_subject"], config["discard"], config["num_replicas"]) == (1, "new", 3)
    assert (NODES.subject("a.metrics"), NODES.key("$KV.NODES.a.metrics")) == ("$KV.NODES.a.metrics", "a.metrics")


def test_only_what_keeps_more_than_the_present_has_a_limit() -> None:
    limited = {of.name for of in ALL if of.max_bytes}
    assert limited == {of.name for of in ALL if isinstance(of, Stream) or of.history > 1}


def test_only_a_bucket_with_ttls_leaves_markers_n14() -> None:
    assert "allow_msg_ttl" not in configuration(NODES, first_sequence=FIRST, replicas=1)
    assert configuration(LEASES, first_sequence=FIRST, replicas=1)["subject_delete_marker_ttl"] >= 10**9


@pytest.mark.parametrize("of", ALL, ids=lambda of: of.name)
def test_what_we_create_is_what_we_need(of: Stream | Bucket) -> None:
    assert list(differences(of, as_told(of), replicas=1)) == []


@pytest.mark.parametrize("of", ALL, ids=lambda of: of.name)
def test_sizes_ages_and_more_replicas_are_the_operators_to_choose(of: Stream | Bucket) -> None:
    assert list(differences(of, as_told(of, max_bytes=5, max_age=7, num_replicas=3), replicas=1)) == []


@pytest.mark.parametrize(
    ("of", "changes", "replicas", "told"),
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
def test_what_we_rely_on_is_told(of: Stream | Bucket, changes: dict[str, object], replicas: int, told: str) -> None:
    (difference,) = differences(of, as_told(of, **changes), replicas=replicas)
    assert told in difference
