"""Quantities, against a model that works with fractions."""

import re
from decimal import Context, localcontext
from fractions import Fraction
from math import ceil, floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tas.errors import TasError
from tas.values.quantity import (
    MAX_QUANTITY,
    NANO,
    Quantity,
    QuantityError,
    exact_text,
    format_quantity,
    parse_quantity,
    short_text,
)

DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}

digits = st.text("0123456789", min_size=1, max_size=20)
numbers = st.one_of(
    digits,
    st.builds("{}.{}".format, digits, digits),
    st.builds("{}.".format, digits),
    st.builds(".{}".format, digits),
)
signs = st.sampled_from(["", "+", "-"])


def by_fractions(number: str, multiplier: Fraction) -> int:
    """The exact value, rounded away from zero to the next 10⁻⁹."""
    whole, _, fraction = number.partition(".")
    exact = Fraction(int((whole + fraction) or "0"), 10 ** len(fraction)) * multiplier * NANO
    return ceil(exact) if exact >= 0 else floor(exact)


@pytest.mark.parametrize(
    ("text", "nano"),
    [
        ("0", 0),
        ("2", 2 * NANO),
        ("+2", 2 * NANO),
        ("-2", -2 * NANO),
        ("007", 7 * NANO),
        ("5.", 5 * NANO),
        (".5", NANO // 2),
        ("-.5", -NANO // 2),
        ("1500m", 1_500_000_000),
        ("41020m", 41_020_000_000),
        ("1.5m", 1_500_000),
        ("1.", NANO),
        ("5.G", 5 * 10**9 * NANO),
        ("1n", 1),
        ("1u", 1000),
        ("1Ki", 1024 * NANO),
        ("0.5Ki", 512 * NANO),
        ("1E", 10**18 * NANO),
        ("1Ei", 2**60 * NANO),
        ("1e3", 1000 * NANO),
        ("1E3", 1000 * NANO),
        ("1e+3", 1000 * NANO),
        ("1.5e-3", 1_500_000),
        ("1e0000000003", 1000 * NANO),
        ("17179869184", 2**34 * NANO),
        ("9223372036854775808", 2**63 * NANO),
        ("1" + "0" * 40, MAX_QUANTITY),
        ("-1e40", -MAX_QUANTITY),
        ("0" * 500 + "1", NANO),
        ("0e999999999", 0),
        ("0.000e-999999999", 0),
    ],
)
def test_quantities_of_kubernetes_are_read(text: str, nano: int) -> None:
    assert parse_quantity(text) == nano


@pytest.mark.parametrize(
    ("text", "nano"),
    [
        ("0.0000000001", 1),
        ("-0.0000000001", -1),
        ("1.0000000009", NANO + 1),
        ("-1.0000000001", -NANO - 1),
        ("0.1n", 1),
        ("1e-400", 1),
        ("-1e-999999999", -1),
        ("12345678.9e-17", 1),
    ],
)
def test_more_than_nine_places_round_away_from_zero(text: str, nano: int) -> None:
    assert parse_quantity(text) == nano


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "+", "-", ".", "-.", "m", "Ki", "e3", ".e3",
        " 1", "1 ", "1\n", "1 k", "1_000", "1,5", "1..2", "1.2.3", "--1", "+-1", "0x10",
        "NaN", "nan", "Inf", "inf", "-inf", "Infinity",
        "1K", "1mi", "1ki", "1i", "1mm", "1kk", "1Mm", "1e", "1e+", "1e1.5", "1e3k", "1ee3", "1KiB", "1B",
        "\u0661", "\u0967", "1\u0661", "\uff11", "\u00b2", "1\u00b5", "\u22121", "1e\u0663",
        "\ud800",
    ],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_quantity(text)


@pytest.mark.parametrize(
    "text",
    [
        "1e41", "9" * 41, "1e400", "-1e400", "1e999999999",
        "1e" + "9" * 900, "1" + "0" * 41, "1" + "0" * 40 + ".000000001",
        "9" * 5000, "1" * 100_000, "1000000000000000000000000Ei", "0" * 2000,
    ],
    ids=lambda text: text[:24],
)  # fmt: skip
def test_values_out_of_bounds_are_refused_without_computing_them(text: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_quantity(text)
    assert len(str(caught.value)) < 200


def test_a_quantity_error_is_an_error_of_the_core() -> None:
    assert issubclass(QuantityError, TasError)
    assert issubclass(QuantityError, ValueError)


def test_no_decimal_context_matters() -> None:
    with localcontext(Context(prec=2)):
        assert parse_quantity("123456.789e3") == 123_456_789 * NANO


@given(signs, numbers, st.sampled_from(sorted(DECIMAL | BINARY)))
def test_agrees_with_fractions(sign: str, number: str, suffix: str) -> None:
    multiplier = Fraction(2) ** BINARY[suffix] if suffix in BINARY else Fraction(10) ** DECIMAL[suffix]
    expected = by_fractions(number, -multiplier if sign == "-" else multiplier)
    assert parse_quantity(f"{sign}{number}{suffix}") == expected


@given(signs, numbers, st.sampled_from("eE"), st.sampled_from(["", "+", "-"]), st.integers(0, 45))
def test_exponents_agree_with_fractions(sign: str, number: str, e: str, e_sign: str, exponent: int) -> None:
    multiplier = Fraction(10) ** (-exponent if e_sign == "-" else exponent)
    expected = by_fractions(number, -multiplier if sign == "-" else multiplier)
    text = f"{sign}{number}{e}{e_sign}{exponent}"
    if abs(expected) > MAX_QUANTITY:
        with pytest.raises(QuantityError):
            parse_quantity(text)
    else:
        assert parse_quantity(text) == expected


KUBERNETES = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")


@given(st.text("0123456789.+-eEinumkKMGTP_ \u0661", max_size=8))
def test_accepts_exactly_the_grammar(text: str) -> None:
    if KUBERNETES.fullmatch(text) is None:
        with pytest.raises(QuantityError):
            parse_quantity(text)
        return
    try:
        parse_quantity(text)
    except QuantityError as error:
        assert "beyond" in str(error)  # noqa: PT017 - either is right, but no other refusal


@given(st.integers(-MAX_QUANTITY, MAX_QUANTITY))
def test_formatted_text_reads_back(nano: int) -> None:
    text = format_quantity(Quantity(nano))
    assert parse_quantity(text) == nano
    assert not re.search(r"\.$|\..*0$|^-?0[0-9]", text)


@pytest.mark.parametrize(
    ("nano", "text"),
    [(0, "0"), (1_500_000_000, "1.5"), (2**31 * NANO, "2147483648"), (-1, "-0.000000001"), (100 * NANO, "100")],
)
def test_formats_as_short_decimals(nano: int, text: str) -> None:
    assert format_quantity(Quantity(nano)) == text


@pytest.mark.parametrize(
    ("text", "exact", "short"),
    [
        ("2Gi", "2Gi", "2Gi"),
        ("31010118075", "31010118075", "28.88Gi"),
        ("-2147483648", "-2Gi", "-2Gi"),
        ("1536Mi", "1536Mi", "1.5Gi"),
        ("1000000", "1000000", "1000000"),
        ("0.333333333", "0.333333333", "0.3333"),
        ("123456.7", "123456.7", "123457"),
        ("1", "1", "1"),
    ],
)
def test_texts_for_people_have_the_unit_of_the_policy(text: str, exact: str, short: str) -> None:
    assert exact_text(parse_quantity(text)) == exact
    assert parse_quantity(exact) == parse_quantity(text)
    assert short_text(parse_quantity(text)) == short
