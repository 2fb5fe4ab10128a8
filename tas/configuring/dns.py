"""Questions to the DNS of the cluster about the address of a name (RFC 1035)."""

import ipaddress
import struct

A = 1
AAAA = 28
_SIZES = {A: 4, AAAA: 16}
_HEADER = struct.Struct(">HHHHHH")
_RECORD = struct.Struct(">HHIH")
_QUESTION_BYTES = 4
_RECURSION_DESIRED = 0x0100
_IS_ANSWER = 0x8000
_NO_SUCH_NAME = 3


class DnsError(ValueError):
    """Bytes that are no answer to the question, or the code of an error."""


def candidates(host: str, domain: str) -> list[str]:
    """The names that a pod in kube-system tries for a host, in this order: those of `search` first, up to 4 dots."""
    if host.endswith("."):
        return [host]
    searched = [f"{host}.{suffix}" for suffix in (f"kube-system.svc.{domain}", f"svc.{domain}", domain)]
    return [host, *searched] if host.count(".") >= 5 else [*searched, host]


def question(name: str, kind: int, number: int) -> bytes:
    """A question for the records of a kind; `number` is 0 to 65535. Raises DnsError for an impossible name."""
    encoded = b""
    for label in name.rstrip(".").split("."):
        if not label.isascii() or not 1 <= len(label) <= 63:
            raise DnsError(f"{name} is no name of DNS")
        encoded += bytes([len(label)]) + label.encode()
    return _HEADER.pack(number, _RECURSION_DESIRED, 1, 0, 0, 0) + encoded + b"\0" + struct.pack(">HH", kind, 1)


def addresses(answer: bytes, number: int) -> list[str]:
    """The addresses in the answer to a question; empty if there is no such name. Raises DnsError."""
    try:
        return _addresses(answer, number)
    except (struct.error, IndexError) as error:
        raise DnsError("the answer ends too early") from error


def _addresses(answer: bytes, number: int) -> list[str]:
    found, flags, questions, records, _, _ = _HEADER.unpack_from(answer)
    if found != number or not flags & _IS_ANSWER:
        raise DnsError("not the answer to the question")
    if code := flags & 0xF:
        if code == _NO_SUCH_NAME:
            return []
        raise DnsError(f"the DNS answers with code {code}")
    position = _HEADER.size
    for _ in range(questions):
        position = _after_name(answer, position) + _QUESTION_BYTES
    result: list[str] = []
    for _ in range(records):
        position = _after_name(answer, position)
        kind, _, _, size = _RECORD.unpack_from(answer, position)
        position += _RECORD.size
        if _SIZES.get(kind) == size:
            data = answer[position : position + size]
            if len(data) < size:
                raise IndexError
            result.append(str(ipaddress.ip_address(data)))
        position += size
    return result


def _after_name(answer: bytes, position: int) -> int:
    while size := answer[position]:
        if size >= 0xC0:  # the rest of the name is elsewhere
            return position + 2
        position += 1 + size
    return position + 1
