"""Bind: accepted requests, refused ones, and both answers."""

from typing import Any

import pytest

from tas.errors import InvalidInputError
from tas.extender.binding import binding_result, decode_binding
from tas.extender.decision import Binding
from tests.unit.tas.extender.generators import body

ARGS: dict[str, Any] = {"PodName": "p", "PodNamespace": "n", "PodUID": "u", "Node": "n1"}


@pytest.mark.parametrize("spelling", [str, str.lower, str.upper])
def test_facts_c5_a_binding_in_any_case(spelling: Any) -> None:
    request = body(**{spelling(name): value for name, value in ARGS.items()})

    assert decode_binding(request) == Binding(namespace="n", name="p", uid="u", node="n1")


@pytest.mark.parametrize("name", ARGS)
@pytest.mark.parametrize(
    ("value", "reason"),
    [(None, "must be given"), ("", "must be given"), (7, "Expected `str | null`, got `int`")],
)
def test_each_field_must_be_given(name: str, value: object, reason: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        decode_binding(body(**(ARGS | {name: value})))

    assert str(caught.value) == f"ExtenderBindingArgs: {name} = {value!r}: {reason}"


@pytest.mark.parametrize("request_body", [b"", b"{", b"[]", b"null", b"{} {}"])
def test_a_body_that_is_no_binding_is_refused(request_body: bytes) -> None:
    with pytest.raises(InvalidInputError):
        decode_binding(request_body)


def test_facts_c30_the_answer_is_an_error_or_none() -> None:
    assert binding_result("") == b'{"Error":""}'
    assert binding_result('no "room"') == b'{"Error":"no \\"room\\""}'
