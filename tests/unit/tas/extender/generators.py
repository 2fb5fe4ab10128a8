"""Requests for tests: some that are right, and many that are not quite."""

import json
from typing import Any

from hypothesis import strategies as st

from tests.unit.tas.generators import characters

POD: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "default", "uid": "u-1", "labels": {"telemetry-policy": "demo"}}
}


def node(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": {}, **more}


def body(**fields: Any) -> bytes:
    """A request in the form in which the scheduler writes it: no spaces."""
    return json.dumps(fields, separators=(",", ":")).encode()


NAMES = st.text(characters, min_size=1, max_size=20)
JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)

VALID = [
    body(Pod=POD, Nodes=None, NodeNames=["a", "b"]),
    body(Pod=POD, Nodes={"metadata": {}, "items": [node("a"), node("b")]}, NodeNames=None),
    body(pod=POD, nodes={"items": [node("a")]}, nodenames=["b"]),
]
SPLINTERS = [b"null", b"[", b"]", b"{", b"}", b'"', b",", b"\\", b"7", b"\xff"]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid request with a few pieces replaced, taken out or put in."""
    request = bytearray(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(1, 6))):
        place, length = draw(st.integers(0, len(request))), draw(st.integers(0, 5))
        request[place : place + length] = draw(st.binary(max_size=4) | st.sampled_from(SPLINTERS))
    return bytes(request)


def bodies() -> st.SearchStrategy[bytes]:
    """Anything that could arrive."""
    return st.one_of(
        st.binary(max_size=200),
        st.binary(max_size=60).map(lambda tail: VALID[0] + tail),
        st.dictionaries(st.sampled_from(["Pod", "Nodes", "NodeNames", "pod", "x"]), JSON_VALUES).map(
            lambda fields: body(**fields)
        ),
        mutated(),
    )
