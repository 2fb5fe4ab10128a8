"""Manifests as plain JSON values, and hostile texts that must not end the process."""

import contextlib
import math
from functools import partial

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.growth import is_within
from tests.unit.tas.generators import characters
from workers.process.manifests import MAX_BYTES, MAX_DEPTH, ManifestError, objects, read_json, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-3", -3),
        ("+4", 4),
        ("010", 8),
        ("0o17", 15),
        ("0x1f", 31),
        ("0b11", 3),
        ("09", 9.0),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".inf", math.inf),
        ("yes", True),
        ("off", False),
        ("NULL", None),
        ("~", None),
        ('"1"', "1"),
        ("'yes'", "yes"),
        ("!!str 5", "5"),
        ("!!int 5", 5),
        ("! 5", "5"),
        ("1500m", "1500m"),
        ("2Gi", "2Gi"),
        ("2024-01-01", "2024-01-01"),
        ("1:30", "1:30"),
        ("|\n  two\n  lines", "two\nlines"),
        ("[a, {b: c}]", ["a", {"b": "c"}]),
        ("1: a", {"1": "a"}),
        ("on: a", {"on": "a"}),
        ("&a [1]", [1]),
        ("{a: &x 1, b: *x}", {"a": 1, "b": 1}),
        ('"<<": 1', {"<<": 1}),
        ('"\U0001f600"', "\U0001f600"),
    ],
)
def test_yaml_values_are_read_as_kubectl_reads_them(text: str, value: object) -> None:
    assert read_yaml(text.encode()) == ([] if value is None else [value])


def test_empty_documents_are_skipped() -> None:
    assert read_yaml(b"---\n---\na: 1\n---\n# only a comment\n--- 2\n") == [{"a": 1}, 2]
    assert read_yaml(b"") == []


# Without the line ends that PyYAML's own emitter folds into spaces.
texts = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda values: st.lists(values, max_size=4) | st.dictionaries(texts, values, max_size=4),
    max_leaves=20,
)


@given(st.lists(json_values, max_size=3))
def test_yaml_of_json_values_is_read_back(documents: list[object]) -> None:
    # Quoted, with tags for values other than text: plain `1e3` is text for PyYAML and a number for kubectl.
    text = yaml.safe_dump_all(documents, allow_unicode=True, default_style='"')
    assert read_yaml(text.encode()) == [document for document in documents if document is not None]


@given(json_values)
def test_json_is_read_back(value: object) -> None:
    assert read_json(msgspec.json.encode(value)) == [value]


@given(st.binary(max_size=200) | st.text(characters).map(str.encode))
def test_any_bytes_are_a_value_or_an_error(data: bytes) -> None:
    for read in (read_yaml, read_json):
        with contextlib.suppress(ManifestError):  # anything else fails
            assert isinstance(read(data), list)


A_FIFTH = b"- 1\n" * 20_000
"""A fifth of the values that a text may have."""


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)
WIDE_BY_ALIASES = f"a: &a [{'1,' * 40_000}]\nb: [{'*a,' * 40_000}]\n"
WIDE_KEYS_BY_ALIASES = f"a: &a {{{','.join(map(str, range(40_000)))}}}\nb: [{'*a,' * 50_000}]\n"
LONG_BY_ALIASES = f"a: &a {'x' * 100_000}\nb: [{'*a,' * 200}]\n"
DEEP_BY_ALIASES = "a0: &a0 [[[[[[[[[[x]]]]]]]]]]\n" + "".join(
    f"a{number}: &a{number} [[[[[[[[[[*a{number - 1}]]]]]]]]]]\n" for number in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("[" * 500_000, f"nested more than {MAX_DEPTH}", id="deep-lists"),
        pytest.param("- " * 500_000, f"nested more than {MAX_DEPTH}", id="deep-block-lists"),
        pytest.param("{a: " * 200_000, f"nested more than {MAX_DEPTH}", id="deep-mappings"),
        pytest.param(DEEP_BY_ALIASES, f"nested more than {MAX_DEPTH}", id="deep-by-aliases"),
        pytest.param(BOMB, "more than 100000 values", id="alias-bomb"),
        pytest.param(LONG_BY_ALIASES, "more than 16777216 characters", id="long-by-aliases"),
        pytest.param(
            f"a: &a {{{'k' * 1000}: 1}}\nb: [{'*a,' * 20_000}]", "more than 16777216", id="long-keys-by-aliases"
        ),
        pytest.param(WIDE_KEYS_BY_ALIASES, "more than 16777216 characters", id="wide-keys-by-aliases"),
        pytest.param(WIDE_BY_ALIASES, "more than 100000 values", id="wide-by-aliases", marks=pytest.mark.ci),
        pytest.param("[" + "1," * 200_000 + "]", "more than 100000 values", id="many-values", marks=pytest.mark.ci),
        pytest.param("--- 1\n" * 150_000, "more than 100000 values", id="many-documents", marks=pytest.mark.ci),
        pytest.param("a: &a [*a]", "line 1, column 8: the alias has no anchor before it", id="holds-itself"),
        pytest.param("a: &a 1\n---\nb: *a", "has no anchor before it", id="alias-of-another-document"),
        pytest.param("a: &a {b: 1}\nc:\n  <<: *a", "line 3, column 3: merge keys", id="merge-key"),
        pytest.param("!!python/object/apply:os.getcwd []", "tag", id="python-tag"),
        pytest.param("!!binary aGk=", "tag", id="binary"),
        pytest.param("!!set {x}", "tag", id="set"),
        pytest.param("a: " + "9" * 5000, "more than 40 digits", id="long-number"),
        pytest.param("a: 0x" + "f" * 5000, "more than 40 digits", id="long-hexadecimal"),
        pytest.param("? [a]\n: b", "line 1, column 3: a key must be text", id="list-as-key"),
        pytest.param("a: 1\na: 2", "line 2, column 1: the key is given twice", id="key-twice"),
        pytest.param("a: b: c", "no YAML: line 1, column 5", id="not-yaml"),
        pytest.param("a:\n\tb: 1", "no YAML: line 2, column 1", id="tab"),
        pytest.param("a\0b", "no YAML", id="control-character"),
        pytest.param("a: 'x", "no YAML", id="half-written"),
        pytest.param("#" * (MAX_BYTES + 1), f"more than {MAX_BYTES} bytes", id="too-large"),
    ],
)
def test_bad_yaml_is_an_error_as_soon_as_a_large_text_is_read(text: str, message: str) -> None:
    def refused() -> None:
        with pytest.raises(ManifestError) as caught:
            read_yaml(text.encode())
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)

    # The largest text of these is read up to a value above the limit: 5 times as many values, in more complex text.
    assert is_within(25, lambda: refused, lambda: partial(read_yaml, A_FIFTH))


def test_a_base_60_number_is_text() -> None:
    text = "1:" * 100_000 + "1"
    assert read_yaml(f"a: '' \nb: {text}".encode()) == [{"a": "", "b": text}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("[" * 100_000, "recursion", id="deep"),
        pytest.param("[" * 100 + "]" * 100, f"nested more than {MAX_DEPTH}", id="rather-deep"),
        pytest.param("[" + "1," * 100_000 + "1]", "more than 100000 values", id="many-values"),
        pytest.param("9" * 60, "more than 40 digits", id="long-number"),
        pytest.param("9" * 5000, "out of range", id="very-long-number"),
        pytest.param('{"a": NaN}', "no JSON", id="nan"),
        pytest.param('{"a": 1} x', "no JSON", id="garbage-behind"),
        pytest.param("", "no JSON", id="empty"),
        pytest.param('"' + "x" * MAX_BYTES + '"', f"more than {MAX_BYTES} bytes", id="too-large"),
    ],
)
def test_bad_json_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        read_json(text.encode())


def test_lists_give_their_items() -> None:
    plain = {"kind": "TASPolicy", "metadata": {"name": "a"}}
    listed = {"apiVersion": "v1", "kind": "List", "items": [plain, 5]}
    typed: dict[str, object] = {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "kind": "TASPolicyList",
        "items": [{"metadata": {}}, None],
    }
    assert list(objects([plain, listed, typed, "text"])) == [
        plain,
        plain,
        5,
        {"apiVersion": "telemetry.intel.com/v1alpha1", "kind": "TASPolicy", "metadata": {}},
        None,
        "text",
    ]


def test_a_list_without_items_is_an_error() -> None:
    with pytest.raises(ManifestError, match="a list without items"):
        list(objects([{"kind": "List", "items": {}}]))
