"""Reads a document that a person wrote, for example a YAML file, and collects all its mistakes."""

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, get_args

import msgspec
from msgspec.inspect import DictType, StrType, StructType, type_info

from tas.errors import InvalidInputError, Unquoted
from tas.values.accepted import accepted, kind_at, names_of

T = TypeVar("T")


class DocumentError(ValueError):
    """An invalid document, with all its mistakes."""

    def __init__(self, mistakes: tuple[InvalidInputError, ...]) -> None:
        super().__init__("; ".join(map(str, mistakes)))
        self.mistakes = mistakes


class DocumentReader:
    """Converts values to their types, and collects the mistakes of those that are invalid."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self.mistakes: list[InvalidInputError] = []

    def known(self, document: object, names: tuple[str, ...]) -> dict[str, Any]:
        """The document's fields; an unknown field is a mistake, since it would be ignored silently."""
        if document is None:
            return {}
        allowed = ", ".join(names)
        if not isinstance(document, dict):
            self.add_mistake("document", Unquoted(document), f"must be an object with the fields {allowed}")
            return {}
        for name in document.keys() - set(names):
            self.add_mistake(name, Unquoted(document[name]), f"is not a known field: must be one of {allowed}")
        return document

    def entries(
        self, field: str, value: object, kind: type[T], is_name: Callable[[str], bool], otherwise: str
    ) -> Iterator[tuple[str, T]]:
        """The valid entries of an object; each other entry is a mistake."""
        if value is None:
            return
        if not isinstance(value, dict):
            self.add_mistake(field, value, "must be an object")
            return
        for name, entry in value.items():
            if not is_name(name):
                self.add_mistake(field, name, otherwise)
            elif (converted := self.converted(f"{field}.{name}", entry, kind)) is not None:
                yield name, converted

    def converted(self, field: str, value: object, kind: Any) -> Any:
        """`value` as a `kind`; None, and a mistake, if it is invalid."""
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            reason, path = _told(error)
            found = _at(value, path)
            if _UNKNOWN.fullmatch(reason) is not None:
                found = Unquoted(found)  # a secret with a wrong name
            self.add_mistake(f"{field}{path}", found, _tags_at(path, kind) or _must(reason, path, value, kind))
            return None

    def add_mistake(self, field: str, value: object, reason: str) -> None:
        """Adds a mistake that the caller has found."""
        self.mistakes.append(InvalidInputError(self._origin, field, value, reason))

    def finish(self) -> None:
        """Raises DocumentError if there are mistakes."""
        if self.mistakes:
            raise DocumentError(tuple(self.mistakes))


_PLACE = re.compile(r" - at `(key` in `)?\$(.*)`\Z", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_ABSENT = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_OF_LIBRARY = ("Expected `", "Invalid enum value ")
_OF_NAME = "a name: "


def _told(error: msgspec.ValidationError) -> tuple[str, str]:
    """What the library says about a value, and the path of the value; that of an unknown field is its own."""
    text = str(error)
    if (place := _PLACE.search(text)) is None:
        reason, path = text, ""
    else:
        reason, path = text[: place.start()], place[2]
        if place[1]:
            reason = _OF_NAME + reason
    unknown = _UNKNOWN.fullmatch(reason)
    return (reason, path) if unknown is None else (reason, f"{path}.{unknown[1]}")


def _must(reason: str, path: str, value: object, kind: Any) -> str:
    """What a value must be, in place of what the library says about it."""
    described = type_info(kind)
    if _UNKNOWN.fullmatch(reason) is not None:
        of = kind_at(described, value, path.rpartition(".")[0])
        names = names_of(of) if isinstance(of, StructType) else []
        return f"is not a known field: must be one of {', '.join(names)}" if names else "is not a known field"
    if (absent := _ABSENT.fullmatch(reason)) is not None:
        return f"must have the field {absent[1]}"
    found = kind_at(described, value, path)
    if reason.startswith(_OF_NAME):
        return f"each name must be {accepted(found.key_type if isinstance(found, DictType) else StrType())}"
    text = accepted(found) if found is not None and reason.startswith(_OF_LIBRARY) else ""
    return f"must be {text}" if text else reason


def _tags_at(path: str, kind: Any) -> str:
    """The values of the tag of a union, if `path` is this tag: msgspec does not name them. Else an empty text."""
    configs = [each.__struct_config__ for each in get_args(kind) if hasattr(each, "__struct_config__")]
    tags = sorted(str(config.tag) for config in configs if path == f".{config.tag_field}")
    return f"must be one of {', '.join(tags)}" if tags else ""


def _at(value: object, path: str) -> object:
    """The value at a path such as `.tls_config.ca_file` or `.verbs[0]`, without secrets."""
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        if name in ("password", "credentials"):
            return "a secret"
        if index and isinstance(value, list):
            value = value[int(index)]
        elif name and isinstance(value, dict):
            value = value.get(name)
    if isinstance(value, dict):
        return f"an object of {', '.join(sorted(map(str, value)))}"
    return value
