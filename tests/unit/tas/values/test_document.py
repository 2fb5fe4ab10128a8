"""Mistakes of a document in the words of people."""

from typing import Annotated, Any

import msgspec
import pytest

from tas.values.document import DocumentReader


class Part(msgspec.Struct, forbid_unknown_fields=True):
    size: Annotated[float, msgspec.Meta(gt=0)]
    on: bool = False


class First(msgspec.Struct, tag="first", tag_field="type", forbid_unknown_fields=True):
    count: Annotated[int, msgspec.Meta(ge=1, le=2_000_000)] = 1
    parts: Annotated[tuple[Part, ...], msgspec.Meta(min_length=1, max_length=3)] = (Part(1.0),)
    named: dict[Annotated[str, msgspec.Meta(pattern="^[a-z]+$")], int] = {}
    maybe: int | str | None = None


class Second(msgspec.Struct, tag="second", tag_field="type", forbid_unknown_fields=True):
    count: str = ""
    anything: Any = None

    def __post_init__(self) -> None:
        if self.count == "no":
            raise ValueError("count must not be no")


@pytest.mark.parametrize(
    ("value", "mistake"),
    [
        ({"type": "first", "count": 0}, "x.count = 0: must be a whole number, at least 1 and at most 2000000"),
        # The tag says which of both is meant.
        ({"type": "second", "count": 0}, "x.count = 0: must be text"),
        ({"type": "third"}, "x.type = 'third': must be one of first, second"),
        ({"count": 1}, "x = 'an object of count': must have the field type"),
        ({"type": "first", "size": 1},
         "x.size = <int>: is not a known field: must be one of count, maybe, named, parts, type"),
        ({"type": "first", "parts": [{"size": 1}, {"size": 0}]}, "x.parts[1].size = 0: must be a number, more than 0"),
        ({"type": "first", "parts": [{"size": 1, "on": "yes"}]}, "x.parts[0].on = 'yes': must be true or false"),
        ({"type": "first", "parts": [{"on": True}]}, "x.parts[0] = 'an object of on': must have the field size"),
        ({"type": "first", "parts": [{"size": 1, "in": 2}]},
         "x.parts[0].in = <int>: is not a known field: must be one of on, size"),
        ({"type": "first", "parts": []}, "x.parts = []: must be a list of at least 1 and at most 3 entries"),
        ({"type": "first", "named": {"a": "b"}}, "x.named[...] = 'an object of a': must be a whole number"),
        ({"type": "first", "named": {"A": 1}},
         "x.named = 'an object of A': each name must be text that matches ^[a-z]+$"),
        ({"type": "first", "named": {7: 1}},
         "x.named = 'an object of 7': each name must be text that matches ^[a-z]+$"),
        ({"type": "first", "maybe": []}, "x.maybe = []: must be a whole number or text"),
        ({"type": "second", "count": "no"}, "x = 'an object of count, type': count must not be no"),
        (7, "x = 7: must be an object with the fields "),
    ],
)  # fmt: skip
def test_a_mistake_says_what_is_accepted(value: object, mistake: str) -> None:
    reader = DocumentReader("f")
    assert reader.converted("x", value, First | Second) is None
    assert [str(each)[: len(mistake) + 3] for each in reader.mistakes] == [f"f: {mistake}"]
