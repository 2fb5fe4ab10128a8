"""Reads a document that a person wrote, for example a YAML file, and collects all its mistakes."""

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, get_args

import msgspec

from tas.errors import InvalidInputError, Unquoted

T = TypeVar("T")


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
            reason, _, path = str(error).partition(" - at `$")
            path = path.removesuffix("`")
            self.add_mistake(f"{field}{path}", _at(value, path), _tags_at(path, kind) or reason)
            return None

    def add_mistake(self, field: str, value: object, reason: str) -> None:
        """Adds a mistake that the caller has found."""
        self.mistakes.append(InvalidInputError(self._origin, field, value, reason))


def _tags_at(path: str, kind: Any) -> str:
    """The values of the tag of a union, if `path` is this tag: msgspec does not name them. Else an empty text."""
    configs = [each.__struct_config__ for each in get_args(kind) if hasattr(each, "__struct_config__")]
    tags = sorted(str(config.tag) for config in configs if path == f".{config.tag_field}")
    return f"must be one of {', '.join(tags)}" if tags else ""


def _at(value: object, path: str) -> object:
    """The value at a path such as `.tls_config.ca_file`, without secrets."""
    for name in re.findall(r"\.(\w+)", path):
        if name in ("password", "credentials"):
            return "a secret"
        value = value.get(name) if isinstance(value, dict) else value
    if isinstance(value, dict):
        return f"an object of {', '.join(sorted(map(str, value)))}"
    return value
