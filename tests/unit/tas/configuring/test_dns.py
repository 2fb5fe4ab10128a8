"""Questions to the DNS of the cluster."""

import struct

import pytest

from tas.configuring.dns import AAAA, A, DnsError, addresses, candidates, question

HEAD = struct.Struct(">HHHHHH")


def record(kind: int, data: bytes, name: bytes = b"\xc0\x0c") -> bytes:
    return name + struct.pack(">HHIH", kind, 1, 30, len(data)) + data


def answer(*records: bytes, number: int = 7, code: int = 0) -> bytes:
    return HEAD.pack(number, 0x8180 | code, 1, len(records), 0, 0) + question("a.b", A, 7)[12:] + b"".join(records)


def test_a_question_has_the_labels_of_the_name() -> None:
    assert question("tas.svc", A, 258) == b"\1\2\1\0\0\1\0\0\0\0\0\0\3tas\3svc\0\0\1\0\1"


def test_an_answer_has_addresses_also_after_an_alias() -> None:
    found = answer(record(5, b"\1c\0"), record(A, bytes([10, 96, 0, 7])), record(AAAA, bytes(15) + b"\1", b"\1c\0"))
    assert addresses(found, 7) == ["10.96.0.7", "::1"]
    assert addresses(found + b"more", 7) == ["10.96.0.7", "::1"]
    assert addresses(answer(), 7) == []
    assert addresses(answer(code=3), 7) == []


def test_an_address_of_another_class_is_none() -> None:
    other = b"\xc0\x0c" + struct.pack(">HHIH", A, 254, 30, 4) + b"1234"
    assert addresses(answer(other, record(A, bytes([10, 96, 0, 7]))), 7) == ["10.96.0.7"]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (answer(number=8), "not the answer"),
        (question("a.b", A, 7), "not the answer"),
        (answer(code=2), "SERVFAIL"),
        (b"", "no message of DNS"),
        (answer(record(A, b"1234"))[:-1], "no message of DNS"),
        (answer(record(A, b"1234"))[:-5], "no message of DNS"),
        (HEAD.pack(7, 0x8180, 1, 0, 0, 0) + b"\x3fab", "no message of DNS"),
        (answer(record(A, b"12345")), "no message of DNS"),
    ],
)
def test_what_is_no_answer_is_an_error(message: bytes, words: str) -> None:
    with pytest.raises(DnsError, match=words):
        addresses(message, 7)


@pytest.mark.parametrize("name", ["a..b", ".a", "x" * 64, f"{'a.' * 127}b", "\u00e9.b"])
def test_an_impossible_name_is_not_asked(name: str) -> None:
    with pytest.raises(DnsError):
        question(name, A, 1)


def test_a_short_name_is_tried_in_the_cluster_first() -> None:
    assert candidates("tas.ns.svc", "cluster.local") == [
        "tas.ns.svc.kube-system.svc.cluster.local",
        "tas.ns.svc.svc.cluster.local",
        "tas.ns.svc.cluster.local",
        "tas.ns.svc",
    ]
    assert candidates("a.b.c.d.e.f", "d")[0] == "a.b.c.d.e.f"
    assert candidates("a.", "d") == ["a."]
