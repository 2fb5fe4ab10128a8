"""Tokens, keys and subjects of names."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.kinds import NODE_FACTS, NODE_HOLDS, NODE_INVENTORY, NODE_SAMPLES, NODE_VERDICTS, WINDOW_SERIES
from bus.subjects import (
    WindowKey,
    breaker_key,
    name,
    node_table_key,
    parse_breaker_key,
    parse_node_key,
    parse_node_table_key,
    parse_pod_key,
    parse_policy_key,
    parse_refusals_key,
    parse_refused_marks_key,
    parse_samples_subject,
    parse_tables_subject,
    pod_key,
    policy_key,
    refusals_key,
    refused_marks_key,
    samples_subject,
    tables_subject,
    token,
    window_keys,
)
from tas.enforcing.pod import PodKey
from tas.errors import InvalidInputError
from tas.policy.policy import PolicyKey
from tas.samples.parts import MAX_PARTS, Part
from tas.samples.table import TableKey
from tas.verdict.freeze import ALL
from tas.windows.key import Family, SeriesKey
from tests.unit.tas.generators import matching, metric_names, policy_keys, source_names

node_names = matching(r"[a-z0-9]([a-z0-9-]{0,9}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,9}[a-z0-9])?){0,4}")


def test_a_name_with_dots_is_one_token() -> None:
    assert token("ip-10-0-0-1.ec2.internal") == "ip-10-0-0-1_ec2_internal"
    assert samples_subject("ip-10-0-0-1.ec2.internal", "machine") == "tas.samples.ip-10-0-0-1_ec2_internal.machine"


@given(node_names, source_names)
def test_every_node_and_source_reads_back(node: str, source: str) -> None:
    assert "." not in token(node)
    assert name(token(node)) == node
    assert parse_samples_subject(samples_subject(node, source)) == (node, source)
    assert parse_node_key(NODE_SAMPLES.key(node)) == (node, "metrics")
    assert parse_node_key(NODE_FACTS.key(node)) == (node, "facts")
    assert parse_node_key(NODE_INVENTORY.key(node)) == (node, "inventory")
    assert NODE_HOLDS.parse_key(NODE_HOLDS.key(node)) == node
    assert NODE_VERDICTS.parse_key(NODE_VERDICTS.key(node)) == node


@given(node_names, metric_names, st.integers(60, 86400), st.sampled_from(Family))
def test_every_series_of_a_window_reads_back_and_the_pattern_of_its_keys_matches(
    node: str, metric: str, seconds: int, family: Family
) -> None:
    key = WindowKey(node, SeriesKey(metric, seconds, family))
    assert WINDOW_SERIES.parse_key(WINDOW_SERIES.key(key)) == key
    assert WINDOW_SERIES.key(key).split(".")[1:] == window_keys(key.series).split(".")[1:]
    assert window_keys(key.series).startswith("*.")


parts = st.sampled_from([Part(of, number) for of in (1, 2, 16, MAX_PARTS) for number in range(of)])


@given(source_names, parts)
def test_every_table_reads_back(source: str, part: Part) -> None:
    key = TableKey(source, part)
    assert parse_tables_subject(tables_subject(key)) == key
    assert parse_node_table_key(node_table_key(key)) == key


def test_the_subject_and_the_key_of_a_table_are_fixed() -> None:
    key = TableKey("my-program", Part(4, 3))
    assert (tables_subject(key), node_table_key(key)) == ("tas.tables.my-program.4-3", "_table.my-program.4-3")


@given(node_names)
def test_no_key_of_a_node_is_one_of_a_table(node: str) -> None:
    for key in (NODE_SAMPLES.key(node), NODE_FACTS.key(node), NODE_INVENTORY.key(node)):
        assert parse_node_table_key(key) is None
    with pytest.raises(InvalidInputError):
        parse_node_key(node_table_key(TableKey("a", Part(1, 0))))


INVALID_TABLES = (
    *("", "machine", "machine.", ".1-0", "machine.1", "machine.1-1", "machine.3-0", "machine.128-0", "machine.01-0"),
    *("machine.1-0.x", "x.machine.1-0", "Machine.1-0", "a_b.1-0", "*.1-0", "machine.*", "machine.>", ">", " .1-0"),
    *("machine.1-0 ", "machine.1-0\n", "machine.\u0661-0", "machine.-", f"{'m' * 64}.1-0", "machine._1-0"),
)


@pytest.mark.parametrize("rest", INVALID_TABLES)
def test_an_invalid_subject_and_an_invalid_key_of_a_table_are_refused(rest: str) -> None:
    for parse, text, field in (
        (parse_tables_subject, f"tas.tables.{rest}", "subject"),
        (parse_node_table_key, f"_table.{rest}", "key"),
    ):
        with pytest.raises(InvalidInputError) as caught:
            parse(text)
        assert caught.value.field == field


@pytest.mark.parametrize(
    "subject", ["", "tas.tables", "tas.samples.machine.1-0", "other.tas.tables.a.1-0", "tas.tables.tas.tables.a.1-0"]
)
def test_another_subject_is_none_of_tables(subject: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_tables_subject(subject)


@given(policy_keys)
def test_every_policy_reads_back(key: PolicyKey) -> None:
    assert parse_policy_key(policy_key(key)) == key
    assert parse_refusals_key(refusals_key(key.name)) == key.name
    assert parse_refused_marks_key(refused_marks_key(key.name)) == key.name
    assert parse_refused_marks_key(refusals_key(key.name)) is None
    assert parse_breaker_key(breaker_key(key.name)) == key.name


def test_the_key_of_the_breaker_over_all_policies_is_no_name() -> None:
    assert breaker_key(ALL) == "_all"
    assert parse_breaker_key("_all") == ALL
    with pytest.raises(InvalidInputError):
        parse_refusals_key("_all")


@given(policy_keys)
def test_every_pod_reads_back(key: PolicyKey) -> None:
    pod = PodKey(key.namespace, key.name)
    assert parse_pod_key(pod_key(pod)) == pod


@pytest.mark.parametrize("key", ["", "_synced", "A", "a.b", "a._b", "a_", "a b"])
@pytest.mark.parametrize("parse", [NODE_VERDICTS.parse_key, parse_refusals_key])
def test_an_invalid_key_of_one_name_is_refused(parse: Callable[[str], str], key: str) -> None:
    with pytest.raises(InvalidInputError):
        parse(key)


@given(node_names, node_names)
def test_two_nodes_never_share_a_token(one: str, other: str) -> None:
    assert (token(one) == token(other)) == (one == other)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "tas.samples",
        "tas.samples.",
        "tas.samples.a",
        "tas.samples.a.",
        "tas.samples..machine",
        "tas.samples.a.b.c",
        "tas.samples.A.machine",
        "tas.samples.a.Machine",
        "tas.samples._a.machine",
        "tas.samples.a__b.machine",
        "tas.samples.-.machine",
        "tas.samples.*.machine",
        "tas.samples.a.>",
        "other.tas.samples.a.machine",
        f"tas.samples.{'a' * 254}.machine",
        f"tas.samples.a.{'m' * 64}",
    ],
)
def test_an_invalid_subject_of_samples_is_refused(subject: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_samples_subject(subject)
    assert caught.value.field == "subject"


@pytest.mark.parametrize("key", ["", "a", "a.", ".metrics", "a.other", "a.metrics.x", "A.metrics", "_synced"])
def test_an_invalid_node_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_node_key(key)


@pytest.mark.parametrize("key", ["", "a", "a.", ".a", "a.b.c", "A.b", "a_b.c", "a.B", "_synced"])
def test_an_invalid_policy_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_policy_key(key)


@pytest.mark.parametrize("key", ["", "a", "a.", ".a", "a.b.c", "A.b", "a_b.c", "a.B", "_synced"])
def test_an_invalid_pod_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_pod_key(key)
