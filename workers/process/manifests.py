"""Manifests as Kubernetes tools write them, in YAML or JSON, read as plain JSON values within limits.

Values are built from the parser's events and not by PyYAML's loader, because a file must not be able to end the
process that reads it. The loader's C composer recurses: 50,000 `[` overflow its stack (tried). Aliases and merge keys
multiply values, base-60 integers take minutes, and tags and timestamps build values that JSON does not have.
"""

import codecs
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice

import msgspec
import yaml

from tas.configuring.editing import YamlValue
from tas.policy.manifest import field_path

MAX_BYTES = 1 << 20
"""The largest file."""

MAX_DEPTH = 64
"""The deepest nesting of lists and mappings."""

MAX_VALUES = 100_000
"""How many values a file may hold. An alias counts as all values of its anchor."""

MAX_CHARACTERS = 16 * MAX_BYTES
"""How many characters the texts and keys of a file may have. An alias counts as all characters of its anchor."""

MAX_DIRECTIVES = 100
"""How many lines may begin with `%`: libyaml compares each `%TAG` with all before, 8 seconds for a file of 1 MiB."""

_NAMED_DEPTH = 10
"""Line numbers are kept down to this depth: no policy field is deeper, and field names grow with their depth."""

_MAX_NUMBER = 40  # characters: more than any quantity has, and far below Python's limit of 4,300

_PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser where PyYAML was built with it

_TAG = "tag:yaml.org,2002:"
_NULL = {"", "~", "null", "Null", "NULL"}
# As kubectl reads them (sigs.k8s.io/yaml).
_BOOLEANS = {
    text: value
    for value, words in ((True, ("true", "yes", "on")), (False, ("false", "no", "off")))
    for word in words
    for text in (word, word.capitalize(), word.upper())
}
_DIRECTIVE = re.compile(rb"(?:[\n\r]|\xc2\x85|\xe2\x80[\xa8\xa9])%")
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*|0o?[0-7]+|0x[0-9a-fA-F]+|0b[01]+)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


class ManifestError(ValueError):
    """The text is not a manifest; the message says where and why, and quotes none of it: it may be a secret."""


def read_json(data: bytes) -> list[object]:
    """The value of a JSON text, in a list. Raises ManifestError."""
    _check_size(data)
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise ManifestError(f"no JSON: {error}") from error
    _check_values([value])
    return [value]


def read_yaml(data: bytes) -> list[object]:
    """The values of all non-empty documents of a YAML text. Raises ManifestError."""
    return [document for document, _ in read_yaml_lines(data)]


Lines = Mapping[str, int]
"""The first line of each field of a document, from 1; "" is the document itself."""


def read_yaml_lines(data: bytes) -> list[tuple[object, Lines]]:
    """The values of `read_yaml`, each with the lines of its fields, by `tas.policy.manifest.field_path`."""
    return _read(data, lambda events: list(_Documents(events)))


def read_yaml_tree(text: str) -> YamlValue:
    """The one document of a YAML text, with the place of each value in the text. Raises ManifestError."""
    trees: list[YamlValue] = []

    def build(events: Iterator[yaml.Event]) -> list[tuple[object, Lines]]:
        documents = _Trees(events)
        found = list(documents)
        trees.extend(documents.trees)
        return found

    if len(_read(text.encode(), build)) != 1:
        raise ManifestError("must have exactly one document")
    return next(tree for tree in trees if tree.value is not None)


def _read(
    data: bytes, build: Callable[[Iterator[yaml.Event]], list[tuple[object, Lines]]]
) -> list[tuple[object, Lines]]:
    _check_size(data)
    data = _as_utf8(data)
    if sum(1 for _ in islice(_DIRECTIVE.finditer(data), MAX_DIRECTIVES + 1)) > MAX_DIRECTIVES:
        raise ManifestError(f"more than {MAX_DIRECTIVES} lines begin with %")
    try:
        documents = build(yaml.parse(data, Loader=_PARSER))
        found = [(document, lines) for document, lines in documents if document is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ManifestError(f"no YAML: {where}{error.problem or error.context}") from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise ManifestError(f"no YAML: {' '.join(str(error).split())}") from error
    _check_values([document for document, _ in found])
    return found


def objects(documents: list[object]) -> Iterator[object]:
    """The objects in `documents`; a `List`, or a list of one kind, gives its items."""
    for document in documents:
        kind = document.get("kind") if isinstance(document, dict) else None
        items = document.get("items") if isinstance(document, dict) else None
        if not isinstance(document, dict) or not isinstance(kind, str) or not kind.endswith("List"):
            yield document
        elif not isinstance(items, list):
            raise ManifestError("a list without items: items must be a list")
        elif kind == "List":
            yield from items
        else:
            # Items of a typed list may omit apiVersion and kind.
            head = {"apiVersion": document.get("apiVersion"), "kind": kind.removesuffix("List")}
            yield from ({**head, **item} if isinstance(item, dict) else item for item in items)


def _as_utf8(data: bytes) -> bytes:
    """A text in UTF-16 as UTF-8; any other text unchanged. Raises ManifestError."""
    if not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data
    try:
        return data.decode("utf-16").encode()
    except UnicodeDecodeError as error:
        raise ManifestError(f"no YAML: {error.reason}") from error


def _check_size(data: bytes) -> None:
    if len(data) > MAX_BYTES:
        raise ManifestError(f"more than {MAX_BYTES} bytes")


def _check_values(level: list[object]) -> None:
    """Checks the limits of the documents that were read, without recursion, since depth is one of the limits."""
    values = characters = 0
    for _ in range(MAX_DEPTH + 1):
        values += len(level)
        if values > MAX_VALUES:
            raise ManifestError(f"more than {MAX_VALUES} values, an alias counted as all values of its anchor")
        for each in level:
            characters += _characters(each)  # compared at once: each alias of a mapping has all of its keys counted
            if characters > MAX_CHARACTERS:
                raise ManifestError(f"more than {MAX_CHARACTERS} characters, an alias counted as all of its anchor")
            if isinstance(each, int) and each.bit_length() > 4 * _MAX_NUMBER:
                raise ManifestError(f"a number of more than {_MAX_NUMBER} digits")
        # Stops just above the limit: aliases multiply with every level.
        level = list(islice(chain.from_iterable(map(_children, level)), MAX_VALUES + 1))
        if not level:
            return
    raise ManifestError(f"nested more than {MAX_DEPTH} deep")


def _characters(value: object) -> int:
    """How many characters a text has, or the keys of a mapping."""
    return len(value) if isinstance(value, str) else sum(map(len, value)) if isinstance(value, dict) else 0


def _children(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


class _Documents:
    """The documents of a stream of events, built one after the other."""

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        self._events = events
        self._values = 0
        self._anchors: dict[str | None, object] = {}
        self._lines: dict[str, int] = {}

    def __iter__(self) -> Iterator[tuple[object, Lines]]:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors = {}
                self._lines = {}
                yield self._value(next(self._events), depth=0, path=""), self._lines

    def _value(self, event: yaml.Event, *, depth: int, path: str) -> object:
        self._values += 1  # values of the text; values of aliases are counted at the end
        if self._values > MAX_VALUES:
            raise _error(event, f"more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            raise _error(event, f"nested more than {MAX_DEPTH} deep")
        if event.start_mark is not None:
            self._lines.setdefault(path, event.start_mark.line + 1)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise _error(event, "the alias has no anchor before it")
            return self._anchors[event.anchor]
        if not isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)):
            raise TypeError(f"expected a value, got the event {event!r}")
        value = self._built(event, depth, path)
        if event.anchor is not None:  # set after the value is built, so that a value cannot hold itself
            self._anchors[event.anchor] = value
        return value

    def _built(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent, depth: int, path: str) -> object:
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            _check_tag(event, "seq")
            return self._sequence(depth, path)
        _check_tag(event, "map")
        return self._mapping(depth, path)

    def _sequence(self, depth: int, path: str) -> list[object]:
        items: list[object] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            item = f"{path}[{len(items)}]" if depth < _NAMED_DEPTH else path
            items.append(self._value(event, depth=depth + 1, path=item))
        return items

    def _mapping(self, depth: int, path: str) -> dict[str, object]:
        fields: dict[str, object] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise _error(event, "a key must be text")
            if event.value == "<<" and event.implicit[0]:
                raise _error(event, "merge keys (<<) are not supported: write the fields out")
            key = event.value  # a number or a boolean is its text here, as in JSON
            if key in fields:
                raise _error(event, "the key is given twice")
            field = field_path(path, key) if depth < _NAMED_DEPTH else path
            if event.start_mark is not None:
                self._lines.setdefault(field, event.start_mark.line + 1)
            fields[key] = self._value(next(self._events), depth=depth + 1, path=field)
        return fields


class _Trees(_Documents):
    """The documents, and the place of each value.

    Attributes:
        trees: The documents as nodes, in order.
    """

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        super().__init__(self._followed(events))
        self.trees: list[YamlValue] = []
        self._before: yaml.Event | None = None
        self._last: yaml.Event | None = None
        self._siblings = self.trees
        self._parent: yaml.Event | None = None

    def _followed(self, events: Iterator[yaml.Event]) -> Iterator[yaml.Event]:
        for event in events:
            self._before, self._last = self._last, event
            yield event

    def _value(self, event: yaml.Event, *, depth: int, path: str) -> object:
        siblings, self._siblings = self._siblings, []
        key = self._before if isinstance(self._parent, yaml.MappingStartEvent) else None
        parent, self._parent = self._parent, event
        value = super()._value(event, depth=depth, path=path)
        children, self._siblings, self._parent = self._siblings, siblings, parent
        block = isinstance(event, yaml.CollectionStartEvent) and not event.flow_style
        node = YamlValue(
            value=value,
            start=_place(event)[0],
            # A block collection has its end mark after the comments that follow.
            end=children[-1].end if block and children else _place(self._last or event)[1],
            block=block,
            key=_place(key) if key is not None else None,
            children=tuple(children),
            keys=tuple(value) if isinstance(value, dict) and children else (),
        )
        siblings.append(node)
        return value


def _place(event: yaml.Event) -> tuple[int, int]:
    """The characters at which an event begins and ends."""
    assert event.start_mark is not None
    assert event.end_mark is not None
    return event.start_mark.index, event.end_mark.index


def _scalar(event: yaml.ScalarEvent) -> object:
    if event.tag in (f"{_TAG}str", "!") or (event.tag is None and not event.implicit[0]):
        return event.value
    if event.tag is not None:
        _check_tag(event, "null", "bool", "int", "float")
    text = event.value
    if text in _NULL:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _INTEGER.fullmatch(text):
        return _integer(event)
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def _integer(event: yaml.ScalarEvent) -> int:
    text = event.value
    if len(text) > _MAX_NUMBER:
        raise _error(event, f"a number of more than {_MAX_NUMBER} digits")
    digits = text.lstrip("+-")
    if len(digits) > 1 and digits[0] == "0" and digits[1].isdigit():
        return int(text, 8)  # YAML 1.1, as kubectl: 010 is 8
    return int(text, 0)


def _check_tag(event: yaml.ScalarEvent | yaml.CollectionStartEvent, *known: str) -> None:
    if event.tag not in (None, "!", *(f"{_TAG}{name}" for name in known)):
        raise _error(event, "the tag is not supported")


def _error(event: yaml.Event, reason: str) -> ManifestError:
    mark = event.start_mark
    if mark is None:
        return ManifestError(reason)
    return ManifestError(f"line {mark.line + 1}, column {mark.column + 1}: {reason}")


SUFFIXES = {".yaml": read_yaml, ".yml": read_yaml, ".json": read_json}
"""The suffixes of manifest files, each with its reader."""
