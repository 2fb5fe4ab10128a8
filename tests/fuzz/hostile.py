"""Inputs of one shape and any size, which cost a careless decoder more than its bytes.

Each shape is a function of a size in bytes. A shape of JSON is put in place of each value of a valid message.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.fuzz.decoders import Decoder
from tests.sources.writing import compressed, varint

Shape = Callable[[int], bytes]


def _repeated(before: bytes, unit: bytes, after: bytes = b"") -> Shape:
    return lambda size: before + unit * max(1, (size - len(before) - len(after)) // len(unit)) + after


def _numbered(before: bytes, unit: str, after: bytes, *, least: int) -> Shape:
    """`unit` with a number in place of `#`, which makes each one different."""

    def shape(size: int) -> bytes:
        count = max(1, size // (len(unit) + least))
        return before + ",".join(unit.replace("#", str(number)) for number in range(count)).encode() + after

    return shape


def _nested(opening: bytes, closing: bytes) -> Shape:
    def shape(size: int) -> bytes:
        depth = max(1, size // (len(opening) + len(closing)))
        return opening * depth + b"1" + closing * depth

    return shape


JSON_SHAPES: dict[str, Shape] = {
    "string": _repeated(b'"', b"a", b'"'),
    "string-open": _repeated(b'"', b"a"),
    "quotes": _repeated(b'"', b'\\"', b'"'),
    "quotes-open": _repeated(b'"', b'\\"'),
    "quotes-cut": _repeated(b'"', b'\\"', b"\\"),
    "backslashes": _repeated(b'"', b"\\\\", b'"'),
    "escapes": _repeated(b'"', b"\\u001b", b'"'),
    "surrogates": _repeated(b'"', b"\\ud800", b'"'),
    "pairs": _repeated(b'"', b"\\ud83d\\ude00", b'"'),
    "controls": _repeated(b'"', b"\x1b[31m", b'"'),
    "wide": _repeated(b'"', "\U0001f600".encode(), b'"'),
    "invalid-utf8": _repeated(b'"', b"\xff", b'"'),
    "digits": _repeated(b"", b"1"),
    "digits-text": _repeated(b'"', b"1", b'"'),
    "zeros": _repeated(b"0.", b"0", b"1"),
    "exponent": _repeated(b"1e", b"9"),
    "exponent-text": _repeated(b'"1e', b"9", b'"'),
    "dots": _repeated(b'"a', b".a", b'"'),
    "dashes": _repeated(b'"a', b"-", b'"'),
    "spaces": _repeated(b"", b" "),
    "slashes": _repeated(b'"', b"//a@", b'"'),
    "equals": _repeated(b'"', b"a=", b'"'),
    "brackets-text": _repeated(b'"', b"[.", b'"'),
    "units": _repeated(b'"', b"1h", b'"'),
    "nan": _repeated(b"[NaN", b",NaN", b"]"),
    "nan-open": _repeated(b"[", b"NaN "),
    "infinity": _repeated(b"", b"-Infinity"),
    "lists": _nested(b"[", b"]"),
    "lists-open": _repeated(b"", b"["),
    "objects": _nested(b'{"a":', b"}"),
    "objects-open": _repeated(b"", b'{"a":'),
    "numbers": _repeated(b"[1", b",1", b"]"),
    "nulls": _repeated(b"[null", b",null", b"]"),
    "empties": _repeated(b'[""', b',""', b"]"),
    "empty-objects": _repeated(b"[{}", b",{}", b"]"),
    "empty-lists": _repeated(b"[[]", b",[]", b"]"),
    "keys": _numbered(b"{", '"k#":""', b"}", least=4),
    "keys-of-nulls": _numbered(b"{", '"k#":null', b"}", least=4),
    "keys-of-objects": _numbered(b"{", '"k#":{}', b"}", least=4),
    "same-keys": _repeated(b'{"a":1', b',"a":1', b"}"),
    "large-integer-1e400": lambda size: b"1" + b"0" * min(size, 400),
    "large-float": lambda _: b"1e999999999",
}

_PLACE = "\ue000"


def json_shapes(seed: bytes) -> Iterator[tuple[str, Shape]]:
    """The shapes in place of each value of a message, of each name of a field, and of the whole message."""
    yield from JSON_SHAPES.items()
    document = json.loads(seed)
    for path in _paths(document):
        before, after = json.dumps(_with(document, path, _PLACE), ensure_ascii=False).split(f'"{_PLACE}"')
        for name, shape in JSON_SHAPES.items():
            yield f"{_name(path)}:{name}", _between(before.encode(), shape, after.encode())
        value = json.dumps(_at(document, path), ensure_ascii=False).encode()
        if isinstance(_at(document, path[:-1]), list):
            yield f"{_name(path)}:copies", _between(before.encode(), _repeated(value, b"," + value), after.encode())
        elif path:
            key = json.dumps(path[-1]).encode() + b": "
            copies = _numbered(b"", f'"{path[-1]}#": ' + value.decode(), b"", least=4)
            yield f"{_name(path)}:copies", _between(before.encode().removesuffix(key), copies, after.encode())


def _between(before: bytes, shape: Shape, after: bytes) -> Shape:
    return lambda size: before + shape(max(1, size - len(before) - len(after))) + after


Path = tuple[Any, ...]


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of all values; of a list only the first item."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _paths(each, (*path, key))
    elif isinstance(value, list) and value:
        yield from _paths(value[0], (*path, 0))


def _at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def _with(value: Any, path: Path, other: object) -> Any:
    if not path:
        return other
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = _with(copied[path[0]], path[1:], other)
    return copied


def _name(path: Path) -> str:
    return ".".join(map(str, path))


_POLICY_HEAD = b"apiVersion: telemetry.intel.com/v1alpha1\nkind: TASPolicy\nmetadata: {name: a}\nspec:\n  "

YAML_SHAPES: dict[str, Shape] = {
    **JSON_SHAPES,
    "plain": _repeated(b"", b"a"),
    "plain-key": _repeated(b"", b"a", b": 1"),
    "question-marks": _repeated(b"", b"? "),
    "dashes-nested": _repeated(b"", b"- "),
    "lines": _repeated(b"", b"- 1\n"),
    "long-lines": _repeated(b"", b"\n"),
    "comments": _repeated(b"", b"#\n"),
    "documents": _repeated(b"", b"---\n"),
    "documents-of-text": _repeated(b"", b"--- a\n"),
    "anchors": lambda size: b"- &a x\n" + b"- *a\n" * (size // 5),
    "anchors-many": lambda size: b"".join(b"- &a%d x\n" % number for number in range(size // 12)),
    "laughs": lambda size: (
        b"- &a0 x\n"
        + b"".join(
            b"- &a%d [*a%d,*a%d,*a%d]\n" % (number + 1, number, number, number)
            for number in range(min(size // 30, 5000))
        )
    ),
    "flow-keys": lambda size: b"{" + b",".join(b"k%d" % number for number in range(size // 7)) + b"}",
    "flow-same": _repeated(b"[", b"a,"),
    "tags": _repeated(b"", b"!a "),
    "directives": _repeated(b"", b"%YAML 1.1\n"),
    "tag-directives": lambda size: b"".join(b"%%TAG !a%d! x\n" % number for number in range(size // 14)) + b"--- 1",
    "folded": _repeated(b">\n", b" a\n"),
    "folded-blank": _repeated(b">\n a\n", b"\n"),
    "quoted-blank": _repeated(b'"a', b"\n\n", b'"'),
    "quoted-single": _repeated(b"'", b"''", b"'"),
    "base60": _repeated(b"1", b":59"),
    "octal": _repeated(b"0", b"7"),
    "indents": lambda size: b"".join(b" " * depth + b"a:\n" for depth in range(int((2 * size) ** 0.5))),
    "block-keys": lambda size: b"".join(b"k%d: 1\n" % number for number in range(size // 9)),
    "items": _repeated(b"kind: List\nitems:\n", b"- {}\n"),
    "policy-fields": lambda size: _POLICY_HEAD + b"".join(b"  k%d: 1\n" % n for n in range(size // 12)).lstrip(),
    "policy-strategies": lambda size: (
        _POLICY_HEAD + b"strategies:\n" + b"".join(b"    k%d: 1\n" % n for n in range(size // 14))
    ),
    "policy-rules": _repeated(
        _POLICY_HEAD + b"strategies: {dontschedule: {rules: [",
        b"{metricname: a, operator: Equals, target: 1},",
        b"]}}",
    ),
    "policy-labels": lambda size: (
        _POLICY_HEAD
        + b"strategies: {labeling: {rules: [{metricname: a, operator: Equals, target: 1, labels: ["
        + b",".join(b"k%d=v" % number for number in range(size // 10))
        + b"]}]}}"
    ),
    "policy-contested": lambda size: (
        _POLICY_HEAD
        + b"strategies: {labeling: {rules: ["
        + b",".join(
            b"{metricname: a, operator: %s, target: 1, labels: [k%d=v]}" % (operator, number)
            for number in range(size // 130)
            for operator in (b"Equals", b"LessThan")
        )
        + b"]}}"
    ),
    "policy-selector": lambda size: (
        _POLICY_HEAD
        + b"nodeSelector: {matchExpressions: [{key: a, operator: In, values: ["
        + b",".join(b"v%d" % number for number in range(size // 8))
        + b"]}]}"
    ),
}


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def _label(name: bytes, value: bytes) -> bytes:
    return _field(1, _field(1, name) + _field(2, value))


_SAMPLE = _field(2, b"\x09" + bytes(7) + b"\x3f\x10" + varint(1767225600_000))
_LOAD = _label(b"__name__", b"load")
_NODE = _label(b"node", b"a")


def _of_series(count: int, series: bytes) -> bytes:
    return _field(1, series) * count


def _each_series(size: int, make: Callable[[int], bytes], each: int) -> bytes:
    return b"".join(_field(1, make(number)) for number in range(max(1, size // each)))


WRITE_MESSAGES: dict[str, Shape] = {
    "empty-series": lambda size: _of_series(size // 2, b""),
    "empty-labels": lambda size: _field(1, _LOAD + _field(1, b"") * (size // 2)),
    "empty-labels-of-others": lambda size: _field(1, _label(b"__name__", b"x") + _field(1, b"") * (size // 2)),
    "empty-samples": lambda size: _field(1, _LOAD + _NODE + _field(2, b"") * (size // 2)),
    "histograms": lambda size: _field(1, _LOAD + _NODE + _field(4, b"") * (size // 2)),
    "nameless": lambda size: _of_series(size // 8, _label(b"a", b"")),
    "nameless-labels": lambda size: _of_series(max(1, size // 512), _label(b"a", b"b") * 64),
    "twice": lambda size: _of_series(size // (len(_LOAD) + 2 * len(_NODE) + 2), _LOAD + _NODE + _NODE),
    "no-node": lambda size: _of_series(size // (len(_LOAD) + 2), _LOAD),
    "others": lambda size: _of_series(size // 20, _label(b"__name__", b"x") + _SAMPLE[:0]),
    "nodes": lambda size: _each_series(
        size, lambda number: _LOAD + _label(b"node", b"n%d" % number) + _SAMPLE, len(_LOAD) + len(_SAMPLE) + 16
    ),
    "one-node": lambda size: _each_series(
        size, lambda number: _LOAD + _NODE + _label(b"c", b"%d" % number) + _SAMPLE, len(_LOAD) + len(_SAMPLE) + 24
    ),
    "samples": lambda size: _field(1, _LOAD + _NODE + _SAMPLE * (size // len(_SAMPLE))),
    "long-value": lambda size: _field(1, _LOAD + _NODE + _label(b"c", b"a" * size) + _SAMPLE),
    "long-name": lambda size: _field(1, _label(b"__name__", b"a" * size) + _SAMPLE),
    "long-values": lambda size: _each_series(
        size, lambda number: _LOAD + _NODE + _label(b"c", b"%09d" % number + b"a" * 60_000) + _SAMPLE, 60_100
    ),
    "unknown-fields": lambda size: b"\x78\x01" * (size // 2),
    "groups": lambda size: b"\x0b" * size,
    "metadata": lambda size: _field(3, b"") * (size // 2),
    "long-varint": lambda size: b"\x0a" + b"\xff" * size,
    "cut": lambda size: b"\x0a" + varint(size * 2) + bytes(size),
}
"""Messages of remote write before compression, of a size in bytes."""


def write_shape(message: Shape, *, most: int) -> Shape:
    """A compressed body of about the wanted size, of a message of at most `most` bytes."""

    def shape(size: int) -> bytes:
        unpacked = min(size, most)
        return compressed(message(unpacked))

    return shape


TEXT_SHAPES: dict[str, Shape] = {
    name: _repeated(b"", unit)
    for name, unit in {
        "letters": b"a",
        "digits": b"1",
        "dots": b"a.",
        "only-dots": b".",
        "dashes": b"a-",
        "units": b"1h",
        "underscores": b"_",
        "exponent": b"1e9",
        "controls": b"\x1b",
        "invalid": b"\xff",
    }.items()
} | {"subject": _repeated(b"tas.samples.", b"a_", b".x"), "key": _repeated(b"", b"a_", b".metrics")}


def shapes(decoder: Decoder) -> Iterator[tuple[str, Shape]]:
    """All shapes for a decoder, each with its name."""
    if decoder.form == "json":
        for number, seed in enumerate(decoder.seeds):
            for name, shape in json_shapes(seed):
                yield (f"{number}:{name}", shape)
    elif decoder.form == "yaml":
        yield from YAML_SHAPES.items()
    elif decoder.form == "text":
        yield from TEXT_SHAPES.items()
    else:
        for name, message in WRITE_MESSAGES.items():
            yield name, write_shape(message, most=32 << 20)


def plain_shapes(decoder: Decoder) -> Sequence[tuple[str, Shape]]:
    """The shapes without those in place of each value of a JSON message but the deepest of the first seed."""
    if decoder.form != "json":
        return list(shapes(decoder))
    deepest = max(_paths(json.loads(decoder.seeds[0])), key=len)
    wanted = {f"0:{name}" for name in JSON_SHAPES} | {f"0:{_name(deepest)}:{name}" for name in (*JSON_SHAPES, "copies")}
    return [(name, shape) for name, shape in shapes(decoder) if name in wanted]
