"""Edits of a YAML text that leave every other byte as it is.

A caller changes the plain value of a document; `edited` finds the places that differ, and changes only these. The
parser comes as an argument, since the core imports none: `workers.process.manifests.read_yaml_tree`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

MAX_COMPARED = 500
"""The most items of a list from its first difference to its last one: each is compared with each, in time that grows
with the square. More are refused: without this comparison a comment could end up beside another item.
"""

_BYTE_ORDER_MARK = "\ufeff"
_UNUSUAL = "the file cannot be edited in place, since it uses anchors or an unusual layout"


class EditError(ValueError):
    """The text cannot be edited without a change elsewhere, for example because of an anchor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlValue:
    """A value of a YAML document, and its place: `text[start:end]`.

    Attributes:
        value: As in JSON.
        end: Of a block collection, the end of its last value.
        block: Whether this is a list or mapping without brackets.
        key: The place of its key, in a mapping.
        children: The values of a list or mapping, in the order of the text.
        keys: The keys of the children of a mapping.
    """

    value: object
    start: int
    end: int
    block: bool
    key: tuple[int, int] | None = None
    children: tuple["YamlValue", ...] = ()
    keys: tuple[str, ...] = ()


Read = Callable[[str], YamlValue]
"""Reads a text of one document. Raises an error of its own."""


def edited(text: str, value: object, read: Read, comments: Mapping[str, str] | None = None) -> str:
    """`text`, one document of YAML or JSON, with the fewest changes after which `read` finds `value` in it.

    `comments` has those at the end of the lines of added keys. Raises EditError if no edit gives the value, and as
    `read`.
    """
    root = read(text)
    if _same(root.value, value):
        return text
    if text.startswith(_BYTE_ORDER_MARK):  # which parsers do not count as a character
        return _BYTE_ORDER_MARK + edited(text.removeprefix(_BYTE_ORDER_MARK), value, read, comments)
    edits = _Edits(text if text.endswith("\n") else f"{text}\n", root, comments or {})
    edits.change(root, value, in_flow=False)
    result = edits.applied()
    if not _same(read(result).value, value):
        raise EditError(_UNUSUAL)
    return result


@dataclass(slots=True)
class _Edits:
    """The edits of one text: each replaces a range, in characters."""

    text: str
    root: YamlValue
    comments: Mapping[str, str]
    edits: list[tuple[int, int, str]] = field(default_factory=list)

    def applied(self) -> str:
        parts: list[str] = []
        position = 0
        # A stable sort: edits at one place stay in their order, the innermost first.
        for start, end, new in sorted(self.edits, key=lambda edit: edit[:1]):
            if start < position:
                raise EditError(_UNUSUAL)
            parts += [self.text[position:start], new]
            position = end
        return "".join([*parts, self.text[position:]])

    def change(self, node: YamlValue, value: object, *, in_flow: bool) -> None:
        if _same(node.value, value):
            return
        if isinstance(value, dict) and not value.keys().isdisjoint(node.keys):
            self._change_mapping(node, value)
        elif isinstance(value, list) and value and node.children and not node.keys:
            self._change_list(node, value)
        else:
            self._replace(node, value, in_flow=in_flow)

    def _replace(self, node: YamlValue, value: object, *, in_flow: bool) -> None:
        plain = not isinstance(value, (dict, list)) or not value
        if in_flow or (plain and node.key is None):
            self._edit(node.start, node.end, _in_brackets(value) if in_flow else _scalar(value))
        elif node.key is not None:
            column = self._column(node.key[0])
            colon = self.text.index(":", node.key[1]) + 1
            below = self._block(value, column + (self._offset() if isinstance(value, list) else 2))
            new = f" {_scalar(value)}" if plain else f"{self._newline()}{below}".rstrip("\r\n")
            self._edit(colon, max(node.end, colon), new)
        else:
            column = self._column(node.start)
            self._edit(node.start, node.end, self._block(value, column).strip())

    def _change_mapping(self, node: YamlValue, value: Mapping[str, object]) -> None:
        for key, child in zip(node.keys, node.children, strict=True):
            if key in value:
                self.change(child, value[key], in_flow=not node.block)
        gone = [key not in value for key in node.keys]
        self._delete(node, gone, [child.key[0] if child.key else child.start for child in node.children])
        added = {key: each for key, each in value.items() if key not in node.keys}
        if not added:
            return
        if node.block:
            column = self._column(node.children[0].key[0] if node.children[0].key else node.start)
            end = self._line_end(node.end)
            self._edit(end, end, self._block(added, column))
        else:
            members = ", ".join(f"{json.dumps(key)}: {_in_brackets(each)}" for key, each in added.items())
            self._edit(node.children[-1].end, node.children[-1].end, f", {members}")

    def _change_list(self, node: YamlValue, value: Sequence[object]) -> None:
        old = [_canonical(child.value) for child in node.children]
        new = [_canonical(each) for each in value]
        gone = [False] * len(old)
        for i1, i2, j1, j2 in _differences(old, new):
            pairs = min(i2 - i1, j2 - j1)
            for at in range(pairs):
                self.change(node.children[i1 + at], value[j1 + at], in_flow=not node.block)
            gone[i1 + pairs : i2] = [True] * (i2 - i1 - pairs)
            self._insert(node, i1 + pairs, value[j1 + pairs : j2])
        self._delete(node, gone, [self._dash(node, child) if node.block else child.start for child in node.children])

    def _insert(self, node: YamlValue, at: int, values: Sequence[object]) -> None:
        """Inserts items before the item `at`."""
        if not values:
            return
        if node.block:
            column = self._column(node.start)
            first = self._line_start(self._dash(node, node.children[0]))
            where = self._line_end(node.children[at - 1].end) if at else first
            self._edit(where, where, self._block(list(values), column))
            return
        items = ", ".join(map(_in_brackets, values))
        if at:
            self._edit(node.children[at - 1].end, node.children[at - 1].end, f", {items}")
        else:
            self._edit(node.children[0].start, node.children[0].start, f"{items}, ")

    def _delete(self, node: YamlValue, gone: Sequence[bool], starts: Sequence[int]) -> None:
        """Deletes children of a node; `starts` has where each begins, with its key or dash."""
        if all(gone):
            raise EditError("no entry of a list or mapping would be left")
        ends = [child.end for child in node.children]
        last_kept = max((at for at, is_gone in enumerate(gone) if not is_gone), default=-1)
        for at in (at for at, is_gone in enumerate(gone) if is_gone):
            if not node.block:
                # With the comma after it, or as one of the last, with the comma before it.
                last = at > last_kept
                self._edit(ends[at - 1] if last else starts[at], ends[at] if last else starts[at + 1], "")
            elif not self.text[(line := self._line_start(starts[at])) : starts[at]].strip():
                self._edit(line, self._line_end(ends[at]), "")
            elif at + 1 < len(starts):
                self._edit(starts[at], starts[at + 1], "")  # the first key after a dash: the next one takes its place
            else:
                raise EditError("an entry shares its line with others")

    def _dash(self, node: YamlValue, child: YamlValue) -> int:
        """Where the dash of an item of a block list is."""
        column = self._column(node.start)
        start = self._line_start(child.start)
        while True:
            dash = start + column
            if dash < child.start and self.text[dash : dash + 1] == "-":
                return dash
            if start == 0:
                raise EditError(_UNUSUAL)
            start = self._line_start(start - 1)

    def _block(self, value: object, column: int) -> str:
        """Lines in block style, indented by `column` spaces."""
        lines = _block_lines(value, self._offset(), self.comments)
        return "".join(f"{' ' * column}{line}{self._newline()}" for line in lines)

    def _offset(self) -> int:
        """How far the lists of this text are indented below their keys: 0 or 2."""
        return next(self._offsets(self.root), 2)

    def _offsets(self, node: YamlValue) -> Iterator[int]:
        for child in node.children:
            if child.block and child.key is not None and not child.keys and child.children:
                yield max(self._column(child.start) - self._column(child.key[0]), 0)
            yield from self._offsets(child)

    def _newline(self) -> str:
        return "\r\n" if "\r\n" in self.text else "\n"

    def _column(self, position: int) -> int:
        return position - self._line_start(position)

    def _line_start(self, position: int) -> int:
        return self.text.rfind("\n", 0, position) + 1

    def _line_end(self, position: int) -> int:
        """The start of the next line; `position` itself if a line starts there."""
        if position and self.text[position - 1] == "\n":
            return position
        return self.text.find("\n", position) + 1

    def _edit(self, start: int, end: int, new: str) -> None:
        self.edits.append((start, end, new))


def _differences(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int, int, int]]:
    """The ranges of two lists that differ: `old[i1:i2]` is `new[j1:j2]` now. Raises EditError."""
    most = min(len(old), len(new))
    begin = next((at for at in range(most) if old[at] != new[at]), most)
    rest = most - begin
    end = next((at for at in range(rest) if old[-1 - at] != new[-1 - at]), rest)
    middle = old[begin : len(old) - end], new[begin : len(new) - end]
    if all(middle) and max(map(len, middle)) > MAX_COMPARED:
        reason = f"since a list changes around more than {MAX_COMPARED} items"
        raise EditError(f"the file cannot be edited in place, {reason}")
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, *middle, autojunk=False).get_opcodes():
        if tag != "equal":
            yield begin + i1, begin + i2, begin + j1, begin + j2


def rendered(value: object, comments: Mapping[str, str] | None = None) -> str:
    """A new YAML text in block style."""
    return "".join(f"{line}\n" for line in _block_lines(value, 2, comments or {}))


def _block_lines(value: object, offset: int, comments: Mapping[str, str]) -> list[str]:
    if isinstance(value, dict) and value:
        lines: list[str] = []
        for key, each in value.items():
            comment = f"  # {comments[key]}" if key in comments else ""
            if isinstance(each, str) and "\n" in each:
                lines += [f"{_scalar(key)}: |", *(f"  {line}" if line else "" for line in each.splitlines())]
            elif not isinstance(each, (dict, list)) or not each:
                lines.append(f"{_scalar(key)}: {_scalar(each)}{comment}")
            else:
                indent = " " * (offset if isinstance(each, list) else 2)
                below = [f"{indent}{line}" for line in _block_lines(each, offset, comments)]
                lines += [f"{_scalar(key)}:{comment}", *below]
        return lines
    if isinstance(value, list) and value:
        lines = []
        for each in value:
            first, *others = _block_lines(each, offset, comments)
            lines += [f"- {first}", *(f"  {line}" for line in others)]
        return lines
    return [_scalar(value)]


_PLAIN = re.compile(r"(?=.*[A-Za-z])[A-Za-z/_.-][A-Za-z0-9/_.=,@+-]*(:[A-Za-z0-9/_.=,@+-]+)*")
_DURATION = re.compile(r"[0-9]+(ms|s|m|h)")
_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n", ".inf", "-.inf", ".nan"}
_NUMBER = re.compile(r"[-+]?\.?[0-9]")


def _scalar(value: object) -> str:
    """A value on one line, outside of brackets: texts without quotes where every reader takes them as texts."""
    if not isinstance(value, str):
        return _in_brackets(value)
    plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS and not _NUMBER.match(value)
    return value if plain or _DURATION.fullmatch(value) else _in_brackets(value)


def _in_brackets(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _same(left: object, right: object) -> bool:
    """Whether two values are equal as JSON: true is not 1."""
    return _canonical(left) == _canonical(right)
