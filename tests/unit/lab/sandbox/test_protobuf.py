"""The protobuf that kubectl sends is decoded; other protobuf is rejected with a reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.sandbox.errors import StatusError
from lab.sandbox.protobuf import MAGIC, decode_object


def field(number: int, content: bytes | str) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


def sent(kind: str, *metadata: bytes) -> bytes:
    envelope = field(1, field(1, "v1") + field(2, kind))
    return MAGIC + envelope + field(2, field(1, b"".join(metadata)) + field(2, b""))


def test_a_namespace_has_only_metadata() -> None:
    metadata = field(1, "mine"), field(2, ""), field(11, field(1, "a") + field(2, "b")), bytes([7 << 3, 5])
    assert decode_object(sent("Namespace", *metadata)) == {
        "kind": "Namespace",
        "apiVersion": "v1",
        "metadata": {"name": "mine", "labels": {"a": "b"}},
    }


def test_other_kinds_are_rejected() -> None:
    with pytest.raises(StatusError, match="no ConfigMap as protobuf") as refused:
        decode_object(sent("ConfigMap", field(1, "mine")))
    assert refused.value.code == 415


@given(st.binary(max_size=100))
def test_an_invalid_body_is_a_bad_request(data: bytes) -> None:
    for body in (data, MAGIC + data):
        with pytest.raises(StatusError) as refused:
            decode_object(body)
        assert refused.value.code in (400, 415)
