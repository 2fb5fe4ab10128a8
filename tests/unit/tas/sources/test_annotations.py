"""Annotations of nodes as samples: numbers, units and age."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.samples.sample import MAX_SAMPLE_AGE
from tas.sources.annotations import MAX_LENGTH, NAMES, Annotation, annotation_samples, parse_number
from tas.sources.result import RefusalReason, ResultBuilder, SourceResult
from tas.values.names import is_metric_name
from tas.values.quantity import MAX_QUANTITY, NANO, QuantityError
from tests.unit.tas.generators import characters

NOW = 1_000_000.0
LIFETIME = 600.0


def read(*, now: float = NOW, lifetime: float = LIFETIME, **annotations: tuple[str, float]) -> SourceResult:
    builder = ResultBuilder()
    given_ = {name: Annotation(*each) for name, each in annotations.items()}
    annotation_samples("node-1", given_, builder, now=now, lifetime=lifetime)
    return builder.result()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2500", 2500),
        ("+20", 20),
        ("0", 0),
        ("155597063.0", 155597063),  # as Python writes a float
        ("2E+9", 2_000_000_000),
        ("1e-05", 0.00001),
        (".5", 0.5),
        ("5.", 5),
    ],
)
def test_a_number_as_annotators_write_it_is_read(text: str, value: float) -> None:
    assert parse_number(text) == round(value * NANO)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("abc", "plain decimal"),
        ("", "plain decimal"),
        (" 5", "plain decimal"),
        ("NaN", "plain decimal"),
        ("nan", "plain decimal"),
        ("Infinity", "plain decimal"),
        ("-inf", "plain decimal"),
        ("0x10", "plain decimal"),
        ("1_000", "plain decimal"),
        ("٣", "plain decimal"),
        ("1500m", "without a unit"),
        ("2Gi", "without a unit"),
        ("-7", "must not be negative"),
        ("1e999999999", "beyond"),
        ("1" * (MAX_LENGTH + 1), "at most 64 characters"),
    ],
)
def test_anything_else_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(QuantityError, match=reason):
        parse_number(text)


@given(st.text(characters, max_size=100))
def test_every_text_is_a_finite_number_of_at_least_0_or_refused(text: str) -> None:
    try:
        value = parse_number(text)
    except QuantityError:
        return
    assert 0 <= value <= MAX_QUANTITY


@given(st.floats(min_value=0, max_value=1e30))
def test_every_float_of_python_is_read(value: float) -> None:
    assert parse_number(repr(value)) / NANO == pytest.approx(value, abs=1e-9)


def test_a_bad_value_is_named_and_costs_no_other_annotation_its_sample() -> None:
    found = read(bad=("abc\x1b[2J", NOW), good=("5", NOW), worse=("-1", NOW))
    assert [(each.metric, each.value) for each in found.samples] == [("good", 5 * NANO)]
    refusal = found.refusals[RefusalReason.VALUE]
    assert refusal.count == 2
    assert refusal.example.startswith(r"node node-1: annotation bad = 'abc\x1b[2J': ")


@pytest.mark.parametrize("text", ["9223372036854775807", "9.223372036854776e+18", "9223372036854775792.0"])
def test_a_number_that_means_no_value_is_named_facts_n61(text: str) -> None:
    found = read(bad=(text, NOW), good=("2147483632", NOW), dcgm_temp=("2147483632", NOW))
    assert [each.metric for each in found.samples] == ["good"]
    assert found.refusals[RefusalReason.VALUE].count == 2
    assert found.refusals[RefusalReason.VALUE].example.startswith(
        f"node node-1: annotation bad = '{text}': is what NaN"
    )


@pytest.mark.parametrize("text", ["N/A", "None"])
def test_defect_a2_what_an_annotator_writes_without_a_value_is_no_sample_and_no_mistake(text: str) -> None:
    assert read(forecast=(text, NOW)) == SourceResult()


@pytest.mark.parametrize(
    ("ago", "age"),
    [(0, 0), (59, 59), (61, 60), (LIFETIME, 60), (LIFETIME + 1, 61), (LIFETIME + 3540, MAX_SAMPLE_AGE)],
)
def test_a_steady_value_is_at_most_a_minute_old_and_ages_from_then_on(ago: float, age: float) -> None:
    (sample,) = read(value=("5", NOW - ago)).samples
    assert sample.measured == NOW - age


def test_a_value_that_no_policy_can_use_any_more_is_no_sample() -> None:
    assert read(value=("5", NOW - LIFETIME - 3541)) == SourceResult()
    assert read(value=("abc", NOW - LIFETIME - 3541)) == SourceResult()


def test_a_clock_ahead_is_not_hidden() -> None:
    (sample,) = read(value=("5", NOW + 60)).samples
    assert sample.measured == NOW + 60  # and is refused where all times are


def test_without_a_lifetime_the_age_is_that_of_the_writing() -> None:
    (sample,) = read(value=("5", NOW - 700), lifetime=0.0).samples
    assert sample.measured == NOW - 700


def test_every_default_name_can_be_a_metric() -> None:
    assert [name for name in NAMES if not is_metric_name(name)] == []
    assert len(set(NAMES)) == len(NAMES) == 17
