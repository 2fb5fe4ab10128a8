"""Questions to the DNS of the cluster about the address of a name."""

from dns.exception import DNSException
from dns.flags import QR
from dns.message import from_wire, make_query
from dns.name import from_text
from dns.rcode import NOERROR, NXDOMAIN
from dns.rcode import to_text as code_text
from dns.rdataclass import IN
from dns.rdatatype import AAAA, A, RdataType

__all__ = ["AAAA", "A", "DnsError", "addresses", "candidates", "question"]


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
    try:
        return make_query(from_text(name.encode("ascii")), RdataType(kind), id=number).to_wire()
    except (DNSException, UnicodeError) as error:
        raise DnsError(f"{name} is no name of DNS") from error


def addresses(answer: bytes, number: int) -> list[str]:
    """The addresses in the answer to a question; empty if there is no such name. Raises DnsError."""
    try:
        message = from_wire(answer, ignore_trailing=True)
    except DNSException as error:
        raise DnsError(f"the answer is no message of DNS: {error}") from error
    if message.id != number or not message.flags & QR:
        raise DnsError("not the answer to the question")
    code = message.rcode()
    if code == NXDOMAIN:
        return []
    if code != NOERROR:
        raise DnsError(f"the DNS answers with the error {code_text(code)}")
    return [
        record.address
        for records in message.answer
        if records.rdclass == IN and records.rdtype in (A, AAAA)
        for record in records
    ]
