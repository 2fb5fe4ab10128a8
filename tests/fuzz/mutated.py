"""Messages made of valid ones by changes of their structure and of their bytes."""

import json
import random
from collections.abc import Callable
from typing import Any

from tests.fuzz.decoders import Decoder
from tests.fuzz.hostile import JSON_SHAPES, WRITE_MESSAGES, YAML_SHAPES
from tests.sources.writing import compressed

HUGE = 10**400
TEXTS = (
    "",
    "\x00",
    "\x1b[31m",
    "\x9b",
    "\u202e",
    "\ufeff",
    "\U0001f600",
    "a" * 300,
    "a.b/c=d",
    "..",
    "_synced",
    "NaN",
    "1e999999999",
    "-0",
    "1" * 5000,
    "0x10",
    "1h" * 50,
    "9999-12-31T23:59:59.999999999+14:00",
    "0001-01-01T00:00:00-23:59",
    "2026-01-01T00:00:00",
    "//a:b@c",
    "{}",
    '"',
    "\\",
)
NUMBERS = (0, -1, 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, HUGE, -HUGE, 0.1, -0.0, 1e308, 5e-324)
VALUES: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, {"a": {"a": {}}}, *TEXTS, *NUMBERS)

RAW = (b"NaN", b"-Infinity", b"1e999999999", b"1e-999999999", b'"\\ud800"', b'"\\udc00\\ud800"', b"\xff", b"\xc0\x80")
"""What no encoder of JSON writes, in place of a value."""

_PLACE = '"\ue000"'


def mutated(decoder: Decoder, chance: random.Random) -> bytes:
    """A message for a decoder: a valid one with a few changes."""
    seed = chance.choice(decoder.seeds)
    if decoder.form == "write":
        return _changed_request(seed, chance)
    kinds: list[Callable[[bytes, random.Random], bytes]] = [_changed_bytes, _spliced]
    if decoder.form == "json":
        kinds += [_changed_document] * 6
    elif decoder.form == "yaml":
        kinds += [_changed_yaml] * 6
    return chance.choice(kinds)(seed, chance)


def _changed_bytes(seed: bytes, chance: random.Random) -> bytes:
    """Bytes replaced, removed, repeated; the end cut off."""
    data = bytearray(seed)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del data[at : at + chance.randint(1, 30)]
            case 2:
                part = bytes(data[at : at + chance.randint(1, 30)])
                data[at:at] = part * chance.randint(1, 50)
            case _:
                data[at:at] = chance.choice((b'"', b"{", b"[", b"\\", b"\x00", b"\xff", b"NaN", b"1e9", b": ", b"&a "))
    return bytes(data[: chance.randint(0, len(data))] if chance.random() < 0.2 else data)


def _spliced(seed: bytes, chance: random.Random) -> bytes:
    """A hostile value of a small size in place of some bytes."""
    start, end = sorted(chance.randrange(len(seed) + 1) for _ in range(2))
    return seed[:start] + chance.choice(list(JSON_SHAPES.values()))(chance.choice((1, 50, 5000))) + seed[end:]


def _changed_document(seed: bytes, chance: random.Random) -> bytes:
    """Values replaced, moved, repeated and removed, and names changed, in the decoded message."""
    document = json.loads(seed)
    for _ in range(chance.randint(1, 4)):
        document = _changed(document, chance)
    if chance.random() < 0.3:
        text = json.dumps(_replaced(document, "\ue000", chance), ensure_ascii=False)
        shape = chance.choice(list(JSON_SHAPES.values()))
        raw = chance.choice((*RAW, shape(chance.choice((20, 500, 20_000)))))
        data = text.encode("utf-8", "surrogatepass").replace(_PLACE.encode(), raw)
    else:
        data = json.dumps(document, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    if chance.random() < 0.1 and data[:1] == b"{":  # names twice
        data = data[:-1] + b"," + data[1:] if len(data) > 2 else data
    return data


def _changed(value: Any, chance: random.Random) -> Any:
    """`value` with one change somewhere within it."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        copied = dict(value)
        match chance.randrange(8):
            case 0:
                del copied[key]
            case 1:
                copied[chance.choice(TEXTS)] = copied.pop(key)
            case 2:
                copied[key.upper() if chance.random() < 0.5 else key + "x"] = value[key]
            case 3:
                copied[key] = value[chance.choice(list(value))]
            case _:
                copied[key] = _changed(value[key], chance)
        return copied
    if isinstance(value, list) and value and chance.random() < 0.85:
        index = chance.randrange(len(value))
        match chance.randrange(5):
            case 0:
                return value * chance.randint(2, 40)
            case 1:
                return value[:index] + value[index + 1 :]
            case _:
                return [*value[:index], _changed(value[index], chance), *value[index + 1 :]]
    return chance.choice(VALUES)


def _replaced(value: Any, other: str, chance: random.Random) -> Any:
    """`value` with `other` in place of one value within it."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        return {**value, key: _replaced(value[key], other, chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        index = chance.randrange(len(value))
        return [*value[:index], _replaced(value[index], other, chance), *value[index + 1 :]]
    return other


def _changed_yaml(seed: bytes, chance: random.Random) -> bytes:
    """Lines repeated, removed, indented or replaced by hostile ones."""
    lines = seed.splitlines(keepends=True)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(lines)) if lines else 0
        match chance.randrange(5):
            case 0:
                lines[at : at + 1] = lines[at : at + 1] * chance.randint(0, 30)
            case 1:
                lines[at:at] = [b" " * chance.randint(1, 9)]
            case 2:
                lines[at:at] = [chance.choice(list(YAML_SHAPES.values()))(chance.choice((20, 2000))), b"\n"]
            case 3 if lines:
                key, colon, _ = lines[at].partition(b":")
                value = json.dumps(chance.choice(VALUES)).encode()
                lines[at] = key + colon + b" " + value + b"\n"
            case _:
                lines[at:at] = [_changed_bytes(b"a: &a [*a, !!int x, '\"']\n", chance)]
    return b"".join(lines)


def _changed_request(seed: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.2:
        return _changed_bytes(seed, chance)
    message = chance.choice(list(WRITE_MESSAGES.values()))(chance.choice((20, 500, 20_000)))
    return compressed(_changed_bytes(message, chance) if chance.random() < 0.8 else message)
