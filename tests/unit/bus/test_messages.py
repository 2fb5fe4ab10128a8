"""Records on the bus: a written record reads back, and only the invalid part of a message is refused."""

import json
import math
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from bus.records.codec import MAX_JSON_BYTES, encode
from bus.records.nodes import NodeFacts, StoredSamples, decode_node_facts, decode_node_samples, encode_node_samples
from bus.records.pods import PodRecord, decode_pod
from bus.records.policies import PolicyRecord, decode_policy, encode_policy
from bus.records.samples import MAX_SAMPLES_BYTES, MAX_SAMPLES_METRICS, decode_samples, encode_samples
from bus.records.synced import Synced, decode_synced
from bus.records.verdicts import COMPRESSED_FROM, decode_verdict, encode_verdict
from tas.errors import InvalidInputError
from tas.policy.manifest import parse_policy
from tas.policy.policy import OnStale, PolicyKey, StrategyType
from tas.policy.rules import State
from tas.samples.sample import FUTURE_TOLERANCE, MAX_SAMPLE_AGE, NodeSamples, Scrape, merge
from tas.values.quantity import NANO, Quantity, format_quantity, parse_quantity
from tas.verdict.evaluation import evaluate_policy
from tas.verdict.verdict import (
    ABSENT,
    VERDICT_STRATEGIES,
    DesiredKind,
    DesiredLabel,
    LabelVerdict,
    NodeVerdict,
    PolicyVerdict,
    StrategyVerdict,
)
from tests.unit.growth import Work, is_within
from tests.unit.tas.generators import (
    anything,
    characters,
    label_names,
    label_values,
    metric_names,
    policies,
    policy_keys,
    quantities,
    source_names,
)

SUBJECT = "tas.samples.node-1.machine"
ARRIVED = 1_800_000_000.0
NO_YEAR = "0001-01-01T00:00:00+01:00"
"""A time for which UTC has no year, so it cannot be written again."""
SEQUENCE = 1_795_277_068_888_665

# The bus stores times in microseconds.
times = st.integers(1_000_000_000_000_000, 4_000_000_000_000_000).map(lambda microseconds: microseconds / 10**6)
metrics = st.dictionaries(metric_names, quantities, min_size=1, max_size=5)
windows = st.none() | st.floats(0.001, 86400)


@st.composite
def scrapes(draw: st.DrawFn) -> Scrape:
    return Scrape(
        source=draw(source_names),
        measured=draw(times),
        arrived=draw(times),
        sequence=draw(st.integers(1, 2**63 - 1)),
        metrics=draw(metrics),
        window=draw(windows),
        ends=draw(st.none() | times),
    )


node_samples = st.lists(scrapes(), max_size=4).map(lambda several: merge((), several))


def rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def decoded(body: Any, *, arrived: float = ARRIVED) -> tuple[Scrape | None, list[InvalidInputError]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    node, scrape, refused = decode_samples(SUBJECT, data, arrived=arrived, sequence=SEQUENCE)
    assert node == "node-1"
    assert all(error.subject == "sample node-1/machine" for error in refused)
    return scrape, list(refused)


def accepted(body: Any, *, arrived: float = ARRIVED) -> Scrape:
    scrape, refused = decoded(body, arrived=arrived)
    assert refused == []
    assert scrape is not None
    return scrape


def refused_whole(body: Any, *, arrived: float = ARRIVED) -> InvalidInputError:
    scrape, refused = decoded(body, arrived=arrived)
    assert scrape is None
    assert len(refused) == 1
    return refused[0]


class TestSamples:
    @given(metrics, windows, st.none() | times, st.floats(-MAX_SAMPLE_AGE + 1, FUTURE_TOLERANCE - 1))
    @example(values={"a": parse_quantity("1")}, window=86400.0, ends=None, age=0.0)
    def test_encoded_reads_back(
        self, values: dict[str, Quantity], window: float | None, ends: float | None, age: float
    ) -> None:
        scrape = Scrape(
            source="machine",
            measured=round(ARRIVED + age, 6),
            arrived=ARRIVED,
            sequence=SEQUENCE,
            metrics=values,
            window=window,
            ends=ends,
        )
        assert accepted(encode_samples(scrape)) == scrape

    def test_values_are_numbers_or_texts(self) -> None:
        body = b'{"metrics": {"a": "2", "b": 0.5, "c": "1500m", "d": 2e3, "e": "2Gi", "f": -1, "g": 1E+2, "h": "1e-3"}}'
        assert accepted(body).metrics == {
            "a": 2 * NANO,
            "b": NANO // 2,
            "c": 3 * NANO // 2,
            "d": 2000 * NANO,
            "e": 2 * 2**30 * NANO,
            "f": -NANO,
            "g": 100 * NANO,
            "h": NANO // 1000,
        }

    def test_a_text_of_a_plain_number_is_not_decoded_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("bus.records.samples.text_decoder", None)  # a call for each value is most of the work
        body = {"metrics": {"a": "1.5", "b": "2", "c": 3}}
        assert accepted(body).metrics == {"a": 3 * NANO // 2, "b": 2 * NANO, "c": 3 * NANO}

    def test_a_long_number_is_not_rounded(self) -> None:
        digits = "123456789012345678901234567890.123456789"
        assert accepted(f'{{"metrics": {{"a": {digits}}}}}'.encode()).metrics["a"] == parse_quantity(digits)

    @given(quantities)
    def test_a_number_and_its_text_are_equal(self, value: Quantity) -> None:
        text = format_quantity(value)
        scrape = accepted(f'{{"metrics": {{"number": {text}, "text": "{text}"}}}}'.encode())
        assert scrape.metrics == {"number": value, "text": value}

    @pytest.mark.parametrize(
        "value",
        [
            *('"NaN"', '"nan"', '"Infinity"', '"-Inf"', "NaN", "Infinity", "-Infinity"),
            *("1e400", "-1e400", '"1e400"', "1e99999999999", "null", "true", "false", "{}", "[]", "[1]", '""', '" 2"'),
            *('"2 "', '"two"', '"0x10"', '"1_000"', '"\u0661"', '"2Gb"', '"--1"'),
            *('"-9223372036854775808m"', "-9223372036854775.808", "9223372036854775807", "9.223372036854776e18"),
        ],
    )
    def test_an_invalid_value_is_refused_alone_facts_n51_facts_n60(self, value: str) -> None:
        scrape, refused = decoded(f'{{"metrics": {{"bad": {value}, "good": "1"}}}}'.encode())
        assert scrape is not None
        assert scrape.metrics == {"good": NANO}
        assert [error.field for error in refused] == ["metrics.bad"]

    def test_a_small_blank_is_refused_for_a_metric_of_dcgm_alone_facts_n61(self) -> None:
        scrape, refused = decoded({"metrics": {"Dcgm_fb": 2147483632, "dcgm_t": "140737488355329", "m": 2147483632}})
        assert scrape is not None
        assert scrape.metrics == {"m": 2147483632 * NANO}
        assert [error.field for error in refused] == ["metrics.Dcgm_fb", "metrics.dcgm_t"]

    @pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "a.b", "x" * 254, "a\n"])
    def test_an_invalid_metric_name_is_refused_alone(self, name: str) -> None:
        scrape, refused = decoded({"metrics": {name: 1, "good": 1}})
        assert scrape is not None
        assert scrape.metrics == {"good": NANO}
        assert len(refused) == 1

    def test_invalid_utf_8_in_a_value_is_refused_alone(self) -> None:
        scrape, refused = decoded(b'{"metrics": {"bad": "\xff", "good": 1}}')
        assert scrape is not None
        assert [error.field for error in refused] == ["metrics.bad"]

    def test_a_message_with_only_invalid_metrics_has_no_scrape(self) -> None:
        scrape, refused = decoded({"metrics": {"a": None, "b": "x"}})
        assert scrape is None
        assert len(refused) == 2

    def test_a_message_without_metrics_has_no_scrape_and_no_error(self) -> None:
        assert decoded({"metrics": {}}) == (None, [])

    def test_for_a_duplicate_metric_the_last_value_counts(self) -> None:
        assert accepted(b'{"metrics": {"a": 1, "a": 2}}').metrics == {"a": 2 * NANO}

    def test_unknown_fields_are_ignored(self) -> None:
        assert accepted({"metrics": {"a": 1}, "unit": "bytes", "tags": {"rack": [1]}}).metrics == {"a": NANO}

    def test_nan_inside_a_text_is_unchanged(self) -> None:
        body = b'{"metrics": {"a": 1, "b": NaN}, "comment": "NaN \\" -Infinity"}'
        scrape, refused = decoded(body)
        assert scrape is not None
        assert [error.value for error in refused] == ["'NaN'"]

    @pytest.mark.parametrize(
        "body",
        [
            *(b"", b"x", b"[]", b"null", b"{}", b'{"metrics": []}', b'{"metrics": null}', b'{"metrics": {"a": 1}} x'),
            *(b'{"metrics": {"a": 1}', b'{"metrics": {"a": 01}}', b'{"metrics": {"\xff": 1}}', b"\xff", b"[" * 10**5),
            *(b'{"metrics": {"a": ' + b"[" * 10**5 + b"]" * 10**5 + b"}}", b'{"metrics": {"a": "\\ud800"}}'),
        ],
        ids=lambda body: body[:24].decode(errors="replace"),
    )
    def test_a_malformed_message_is_refused_whole(self, body: bytes) -> None:
        refused_whole(body)

    def test_a_message_above_the_limits_is_refused_whole(self) -> None:
        most = {f"m{number}": 1 for number in range(MAX_SAMPLES_METRICS)}
        assert len(accepted({"metrics": most}).metrics) == MAX_SAMPLES_METRICS
        assert refused_whole({"metrics": most | {"one-more": 1}}).field == "metrics"
        body = b'{"metrics": {"a": 1}}'
        accepted(body.ljust(MAX_SAMPLES_BYTES))
        assert refused_whole(body.ljust(MAX_SAMPLES_BYTES + 1)).field == "body"

    def test_node_and_source_in_the_body_must_equal_the_subject(self) -> None:
        accepted({"metrics": {"a": 1}, "node": "node-1", "source": "machine"})
        for field in ("node", "source"):
            for other in ("other", None, 5):
                assert refused_whole({"metrics": {"a": 1}, field: other}).field == field

    def test_without_a_time_the_arrival_counts_as_measured(self) -> None:
        scrape = accepted({"metrics": {"a": 1}})
        assert (scrape.source, scrape.measured, scrape.arrived, scrape.sequence) == (
            "machine",
            ARRIVED,
            ARRIVED,
            SEQUENCE,
        )

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("2027-01-15T08:00:00Z", 1_800_000_000.0),
            ("2027-01-15T10:00:00+02:00", 1_800_000_000.0),
            ("2027-01-15T07:59:59.25-00:00", 1_799_999_999.25),
            ("2027-01-15T08:00:00.000001999Z", 1_800_000_000.000002),
        ],
    )
    def test_times_are_rfc_3339(self, text: str, expected: float) -> None:
        assert accepted({"metrics": {"a": 1}, "measured": text}).measured == expected

    @pytest.mark.parametrize(
        "written",
        ["2027-01-15T08:00:00", "2027-01-15", "08:00:00Z", "now", "", 1_800_000_000, None, "2027-02-30T08:00:00Z"],
    )
    def test_an_invalid_time_or_a_time_without_a_zone_is_refused(self, written: object) -> None:
        assert refused_whole({"metrics": {"a": 1}, "measured": written}).field == "measured"

    def test_times_far_from_the_arrival_are_refused_facts_n52(self) -> None:
        for offset in (FUTURE_TOLERANCE, -MAX_SAMPLE_AGE, 0):
            scrape = accepted({"metrics": {"a": 1}, "measured": rfc3339(ARRIVED + offset)})
            assert scrape.time == ARRIVED + min(offset, 0)
        for offset in (FUTURE_TOLERANCE + 0.001, -MAX_SAMPLE_AGE - 0.001, 1e9, -1e9):
            error = refused_whole({"metrics": {"a": 1}, "measured": rfc3339(ARRIVED + offset)})
            assert error.field == "measured"
        for text in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"):
            assert refused_whole({"metrics": {"a": 1}, "measured": text}).field == "measured"

    @pytest.mark.parametrize("ends", ["1", '"2027-01-15T08:00:00"', '"soon"', "null", f'"{NO_YEAR}"'])
    def test_an_invalid_end_is_refused(self, ends: str) -> None:
        assert refused_whole(f'{{"metrics": {{"a": 1}}, "ends": {ends}}}'.encode()).field == "ends"

    @pytest.mark.parametrize("window", ["-1", "0", "86400.1", "1e400", '"60"', "null", "true"])
    def test_an_invalid_window_is_refused(self, window: str) -> None:
        assert refused_whole(f'{{"metrics": {{"a": 1}}, "window": {window}}}'.encode()).field == "window"

    def test_an_invalid_subject_raises(self) -> None:
        with pytest.raises(InvalidInputError):
            decode_samples("tas.samples.node-1", b"{}", arrived=ARRIVED, sequence=1)

    @given(st.binary(max_size=60))
    def test_any_bytes_are_a_scrape_or_refused(self, data: bytes) -> None:
        decoded(data)

    @given(st.data())
    def test_a_damaged_message_is_a_scrape_or_refused(self, data: st.DataObject) -> None:
        body = b'{"metrics": {"a": "2", "b": -0.5e3, "c": NaN}, "measured": "2027-01-15T08:00:00Z", "window": 60}'
        start = data.draw(st.integers(0, len(body)))
        end = data.draw(st.integers(start, min(start + 4, len(body))))
        decoded(body[:start] + data.draw(st.binary(max_size=4)) + body[end:])

    @given(anything(("metrics", "measured", "window", "node", "source", "machine", "node-1", "2027-01-15T08:00:00Z")))
    def test_any_json_is_a_scrape_or_refused(self, document: Any) -> None:
        try:
            data = json.dumps(document).encode()
        except (TypeError, ValueError):
            assume(False)
        scrape, _ = decoded(data)
        if scrape is not None:
            assert decode_node_samples(encode_node_samples((scrape,))).samples == (scrape,)


class TestNodeSamples:
    @given(node_samples, st.frozensets(st.sampled_from("abc")))
    def test_encoded_reads_back(self, samples: NodeSamples, left_out: frozenset[str]) -> None:
        data = encode_node_samples(samples, left_out)
        assert decode_node_samples(data) == StoredSamples(samples, left_out)
        assert (b"left_out" in data) == bool(left_out)

    @given(st.floats(1e9, 4e9))
    def test_a_decoded_scrape_equals_its_stored_copy(self, arrived: float) -> None:
        """Otherwise a message that is delivered twice would be newer than itself."""
        _, scrape, _ = decode_samples(SUBJECT, b'{"metrics": {"a": 1}}', arrived=arrived, sequence=1)
        assert scrape is not None
        known = decode_node_samples(encode_node_samples((scrape,))).samples
        assert merge(known, [scrape])[0].arrived == scrape.arrived
        assert known == (scrape,)

    def test_scrapes_of_another_writer_are_sorted(self) -> None:
        def scrape(source: str, measured: str) -> dict[str, Any]:
            return {
                "source": source,
                "measured": measured,
                "arrived": measured,
                "sequence": 1,
                "metrics": {"a": "1"},
                "new": 1,
            }

        data = json.dumps(
            {
                "scrapes": [
                    scrape("b", "2027-01-15T08:00:00Z"),
                    scrape("a", "2027-01-15T09:00:00Z"),
                    scrape("a", "2027-01-15T08:00:00Z"),
                ]
            }
        ).encode()
        assert [(each.source, each.time) for each in decode_node_samples(data).samples] == [
            ("a", ARRIVED),
            ("a", ARRIVED + 3600),
            ("b", ARRIVED),
        ]

    @pytest.mark.parametrize("text", ["1.", ".5", "-1.5", "1.0000000001", "+1", "1.5m", "1e3"])
    def test_every_notation_of_a_quantity_is_read_as_by_parse_quantity(self, text: str) -> None:
        assert decode_node_samples(stored(text)).samples[0].metrics["a"] == parse_quantity(text)

    @pytest.mark.parametrize(
        "text", ["", ".", "1_0.5", "\u0661.5", "NaN", "1.5.5", "1. 5", "1.-5", "-.1.5", "1" * 41 + ".5"]
    )
    def test_an_invalid_quantity_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidInputError) as caught:
            decode_node_samples(stored(text))
        assert caught.value.field == "metrics.a"

    @pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"scrapes": [{}]}', b'{"scrapes": null}', b"[" * 10**5])
    def test_an_invalid_record_is_refused(self, data: bytes) -> None:
        with pytest.raises(InvalidInputError):
            decode_node_samples(data)

    def test_a_record_is_decoded_nearly_as_fast_as_plain_json(self) -> None:
        """A process decodes the records of all nodes when it starts."""
        metrics = {f"metric_{number}": parse_quantity(f"{number * 7919 % 1000}.{number:03}") for number in range(20)}
        scrape = Scrape(source="machine", measured=ARRIVED, arrived=ARRIVED, sequence=1, metrics=metrics)
        data = encode_node_samples((scrape,))

        def decodes(decode: Callable[[bytes], object]) -> Work:
            return lambda: [decode(data) for _ in range(300)]

        assert is_within(10, lambda: decodes(decode_node_samples), lambda: decodes(json.loads))  # it is about 3


def stored(quantity: str) -> bytes:
    scrape = {
        "source": "machine",
        "measured": "2027-01-15T08:00:00Z",
        "arrived": "2027-01-15T08:00:00Z",
        "sequence": 1,
        "metrics": {"a": quantity},
    }
    return json.dumps({"scrapes": [scrape]}).encode()


RULE = {"metricname": "m", "operator": "GreaterThan", "target": 1}


class TestPolicy:
    @given(
        policies(readable=False),
        st.text(characters, max_size=8),
        st.integers(0, 2**63 - 1),
        st.none() | st.integers(0, 2**32).map(float),
    )
    def test_encoded_reads_back(self, policy: Any, text: str, generation: int, created: float | None) -> None:
        record = PolicyRecord(
            policy=policy, uid=text, generation=generation, origin=text, resource_version=text, created=created
        )
        assert decode_policy(policy.key, encode_policy(record)) == record

    @pytest.mark.parametrize(
        ("manifest", "stored"),
        [
            ({}, {"onStale": "pass", "keepFor": "3600s"}),
            ({"onStale": "keep", "keepFor": "10m"}, {"onStale": "pass", "keepFor": "600s"}),
            ({"onStale": "pass"}, {"onStale": "pass"}),
            ({"onStale": "pass", "keepFor": "10m"}, {"onStale": "pass"}),
            ({"keepFor": "0s"}, {"onStale": "pass"}),
            ({"onStale": "fail"}, {"onStale": "fail"}),
        ],
    )
    def test_on_stale_of_dontschedule_is_always_stored(self, manifest: dict[str, Any], stored: dict[str, str]) -> None:
        """In values that earlier readers know: they refuse `keep`, and ignore the field `keepFor`."""
        spec = {"strategies": {"dontschedule": {"rules": [RULE], **manifest}}}
        policy, _ = parse_policy(PolicyKey("default", "p"), spec)
        data = encode_policy(PolicyRecord(policy=policy, uid="u", generation=1))
        strategy = json.loads(data)["spec"]["strategies"]["dontschedule"]
        assert {name: strategy[name] for name in strategy if name in ("onStale", "keepFor")} == stored
        assert decode_policy(policy.key, data).policy == policy

    def test_a_record_without_on_stale_is_of_an_earlier_watch(self) -> None:
        record = {"namespace": "default", "name": "p", "uid": "u", "generation": 1, "problems": []}
        record["spec"] = {"strategies": {"dontschedule": {"rules": [RULE]}, "scheduleonmetric": {"rules": [RULE]}}}
        policy = decode_policy(PolicyKey("default", "p"), json.dumps(record).encode()).policy
        assert [each.on_stale for each in policy.strategies.values()] == [OnStale.PASS, OnStale.LOWEST]

    @given(policy_keys, anything(("strategies", "deschedule", "rules", "metricname", "operator", "target")))
    def test_any_spec_reads_back_with_its_problems(self, key: PolicyKey, spec: Any) -> None:
        policy, problems = parse_policy(key, spec)
        record = PolicyRecord(policy=policy, uid="u", generation=1, problems=problems, origin="here")
        assert decode_policy(key, encode_policy(record)) == record

    def test_problems_that_another_writer_left_out_are_found(self) -> None:
        key = PolicyKey("default", "demo")
        value = {"namespace": "default", "name": "demo", "uid": "u", "generation": 1, "spec": {"strategies": 5}}
        record = decode_policy(key, json.dumps(value).encode())
        assert [problem.field for problem in record.problems] == ["spec.strategies"]
        assert record.policy.suspend

    def test_the_time_of_creation_is_written_as_text_and_may_be_absent(self) -> None:
        key = PolicyKey("default", "demo")
        value = {"namespace": "default", "name": "demo", "uid": "u", "generation": 1, "spec": {"strategies": {}}}
        assert decode_policy(key, json.dumps(value).encode()).created is None
        record = decode_policy(key, json.dumps(value | {"created": "2026-01-01T00:00:00Z"}).encode())
        assert record.created == 1767225600.0
        assert json.loads(encode_policy(record))["created"] == "2026-01-01T00:00:00Z"

    @pytest.mark.parametrize("field", ["namespace", "name"])
    def test_namespace_and_name_must_equal_the_key(self, field: str) -> None:
        value = {"namespace": "default", "name": "demo", "uid": "u", "generation": 1, "spec": {}, field: "other"}
        with pytest.raises(InvalidInputError) as caught:
            decode_policy(PolicyKey("default", "demo"), json.dumps(value).encode())
        assert caught.value.field == field

    @pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"null", b'{"spec":' + b"[" * 10**5])
    def test_an_invalid_record_is_refused(self, data: bytes) -> None:
        with pytest.raises(InvalidInputError):
            decode_policy(PolicyKey("default", "demo"), data)


class TestPod:
    @given(label_values, st.none() | st.text(characters), st.none() | times)
    def test_encoded_reads_back(self, policy: str, node: str | None, since: float | None) -> None:
        waiting_since = None if since is None else datetime.fromtimestamp(since, UTC)
        record = PodRecord(policy=policy, uid="u", node=node, waiting_since=waiting_since, resource_version="7")
        assert decode_pod(encode(record)) == record

    @pytest.mark.parametrize(
        "data",
        [b"", b"{}", b"[]", b'{"policy": "p"}', b'{"policy": "p", "uid": "u", "waitingSince": "2026-01-01T00:00:00"}'],
    )
    def test_an_invalid_record_is_refused(self, data: bytes) -> None:
        with pytest.raises(InvalidInputError):
            decode_pod(data)


texts = st.text(characters, max_size=8)
since = st.none() | times
label_verdicts = st.builds(
    LabelVerdict,
    state=st.sampled_from(State),
    desired=st.builds(DesiredLabel, st.sampled_from(DesiredKind), label_values),
    violated_since=since,
    met_since=since,
)
strategy_verdicts = st.builds(
    StrategyVerdict,
    state=st.sampled_from(State),
    changed=times,
    value=quantities.map(format_quantity) | st.just(""),
    labels=st.dictionaries(label_names, label_verdicts, max_size=3),
    sampled=st.lists(metric_names, max_size=2).map(tuple),
)
policy_verdicts = st.builds(
    PolicyVerdict,
    uid=texts,
    generation=st.integers(0, 2**63 - 1),
    strategies=st.dictionaries(st.sampled_from(VERDICT_STRATEGIES), strategy_verdicts),
    holds_prefix=st.booleans(),
)
revisions = st.integers(0, 2**63 - 2)


class TestVerdict:
    @given(texts, revisions, times, st.dictionaries(policy_keys, policy_verdicts, max_size=3))
    def test_encoded_reads_back(
        self, uid: str, revision: int, time: float, verdicts: dict[PolicyKey, PolicyVerdict]
    ) -> None:
        verdict = NodeVerdict(
            node_uid=uid, nodes_revision=revision, policies_revision=revision + 1, time=time, policies=verdicts
        )
        assert decode_verdict(encode_verdict(verdict)) == verdict
        assert list(decode_verdict(encode_verdict(verdict)).policies) == sorted(verdicts)

    @given(policies(readable=False), node_samples, times)
    def test_every_evaluated_verdict_reads_back(self, policy: Any, samples: NodeSamples, now: float) -> None:
        found, _ = evaluate_policy(
            policy, uid="u", generation=1, samples=samples, labels={}, default_stale_after=60, before=None, now=now
        )
        verdict = NodeVerdict(node_uid="", nodes_revision=1, policies_revision=1, policies={policy.key: found})
        assert decode_verdict(encode_verdict(verdict)) == verdict

    def test_a_strategy_of_a_later_version_is_ignored(self) -> None:
        strategy = {"state": "met", "changed": ARRIVED}
        policy = {"namespace": "a", "name": "b", "uid": "u", "generation": 1}
        body = {"nodeUid": "", "nodesRevision": 1, "policiesRevision": 1, "time": ARRIVED}
        data = json.dumps(body | {"policies": [policy | {"strategies": {"deschedule": strategy, "later": 1}}]})
        assert decode_verdict(data.encode()).policies[PolicyKey("a", "b")].strategies == {
            StrategyType.DESCHEDULE: StrategyVerdict(state=State.MET, changed=ARRIVED)
        }

    @pytest.mark.parametrize(
        "data", [b"", b"[]", b"{}", b'{"nodeUid": "", "nodesRevision": 1, "policiesRevision": 1, "policies": [{}]}']
    )
    def test_an_invalid_record_is_refused(self, data: bytes) -> None:
        with pytest.raises(InvalidInputError):
            decode_verdict(data)

    def test_a_large_verdict_is_compressed(self) -> None:
        label = LabelVerdict(state=State.MET, desired=ABSENT, met_since=1.0)
        strategy = StrategyVerdict(state=State.MET, changed=1.0, labels={"p": label})
        policies = {
            PolicyKey("a", f"policy-{number}"): PolicyVerdict(
                uid=str(number), generation=1, strategies={StrategyType.DESCHEDULE: strategy}
            )
            for number in range(50)
        }
        verdict = NodeVerdict(node_uid="u", nodes_revision=1, policies_revision=1, policies=policies)
        data = encode_verdict(verdict)
        assert len(data) < COMPRESSED_FROM < len(zlib.decompress(data))
        assert decode_verdict(data) == verdict
        for broken in (data[:-1], data[:40], b"\x00" + data, zlib.compress(b" " * (MAX_JSON_BYTES + 1))):
            with pytest.raises(InvalidInputError, match="verdict of a node: body"):
                decode_verdict(broken)

    @pytest.mark.parametrize("time", ["-1", "1e12", "1e999", '"2027-01-15T08:00:00Z"', "null"])
    def test_a_time_without_a_date_is_refused(self, time: str) -> None:
        data = f'{{"nodeUid": "", "nodesRevision": 1, "policiesRevision": 1, "time": {time}, "policies": []}}'
        with pytest.raises(InvalidInputError, match=r"time|out of range"):
            decode_verdict(data.encode())


class TestFactsAndSynced:
    @given(
        st.text(characters),
        st.dictionaries(label_names, label_values),
        st.sampled_from(["", "4711"]),
    )
    def test_facts_read_back(self, uid: str, labels: dict[str, str], version: str) -> None:
        facts = NodeFacts(uid=uid, labels=labels, resource_version=version)
        assert decode_node_facts(encode(facts)) == facts

    @given(times, st.integers(0, 2**31), st.booleans())
    def test_synced_reads_back(self, written: float, count: int, cluster: bool) -> None:
        at = datetime.fromtimestamp(written, UTC)
        synced = Synced(epoch="2027-01-15T08:00:00.123456789Z", count=count, time=at, writer="watch", cluster=cluster)
        assert decode_synced(encode(synced)) == synced
        assert math.isclose(datetime.fromisoformat(json.loads(encode(synced))["time"]).timestamp(), written)

    @pytest.mark.parametrize(
        "data", [b"", b"{}", b"[]", b'{"uid": 1, "labels": {}}', b'{"uid": "", "labels": {"a": 1}}']
    )
    def test_an_invalid_record_is_refused(self, data: bytes) -> None:
        with pytest.raises(InvalidInputError):
            decode_node_facts(data)
        with pytest.raises(InvalidInputError):
            decode_synced(data)

    def test_new_fields_of_later_versions_are_ignored(self) -> None:
        synced = Synced(epoch="e", count=1, time=datetime.fromtimestamp(ARRIVED, UTC), writer="watch", cluster=True)
        later = msgspec.json.decode(encode(synced)) | {"later": [1]}
        assert decode_synced(json.dumps(later).encode()) == synced


class _FactsOfBefore(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The facts of a node as a version without addresses reads them."""

    uid: str
    labels: dict[str, str]
    resource_version: str = ""


def test_facts_with_addresses_are_read_by_a_version_before_and_facts_without_them_by_this_one() -> None:
    facts = NodeFacts(uid="u", labels={}, resource_version="7", addresses=("10.0.0.1",), addresses_version="9")
    before = msgspec.json.decode(encode(facts), type=_FactsOfBefore)
    assert (before.uid, before.resource_version) == ("u", "7")
    assert decode_node_facts(encode(before)).addresses is None
    assert b"addresses" not in encode(NodeFacts(uid="u", labels={}))


def test_each_value_of_labels_is_in_memory_once_for_all_nodes() -> None:
    labels = {"zone": "eu-central-1a of a long name", "kind": "another long value"}
    facts = [decode_node_facts(encode(NodeFacts(uid=uid, labels=labels))) for uid in ("a", "b")]
    assert facts[0].labels == labels
    assert len({id(value) for each in facts for value in each.labels.values()}) == len(labels)
