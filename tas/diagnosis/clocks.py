"""Do the clocks differ: of this machine, the API server, the bus, the extender, and the nodes?"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tas.diagnosis.finding import Finding, Missing, Severity, finding, ok, some, unknown
from tas.samples.sample import FUTURE_TOLERANCE, NodeSamples
from tas.values.nouns import counted

TOLERANCE_SECONDS = 2.0
"""Differences up to this are not reported: headers of HTTP have whole seconds."""

RENEWAL_SECONDS = 40.0
"""The lease of a Ready node is younger than this: later the node lifecycle controller takes the node for lost."""

MEND = "synchronize the clock of the machine that is wrong: timedatectl there shows its time"
MEND_HERE = "synchronize the clock of this machine, where tas doctor runs: the other clocks agree with each other"
RUN = "timedatectl set-ntp true"


class Offset(NamedTuple):
    """How far another clock is ahead of ours, in seconds.

    Attributes:
        doubt: The half of the time that the question took.
    """

    ahead: float
    doubt: float = 0.0

    @property
    def least(self) -> float:
        """The difference that is certain, without its sign."""
        return max(0.0, abs(self.ahead) - self.doubt)


def time_there(now: float, offset: Offset | Missing) -> float:
    """The time by another clock, by which times from there are to be judged; ours, if that clock is not known."""
    return now + offset.ahead if isinstance(offset, Offset) else now


class ClockFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Clocks.

    Attributes:
        nodes: By Ready node, how far the clock of its kubelet is ahead of ours.
        samples: By node, its stored samples.
    """

    api_server: Offset | Missing
    bus: Offset | Missing
    extender: Offset | Missing
    nodes: Mapping[str, float] | Missing
    samples: Mapping[str, NodeSamples] | Missing


def check_clocks(facts: ClockFacts) -> Iterator[Finding]:
    """The findings about clocks."""
    mend = MEND_HERE if _is_ours_wrong([facts.api_server, facts.bus, facts.extender]) else MEND
    yield _server("clocks.api_server", "the API server", facts.api_server, mend)
    yield _server("clocks.bus", "the nats-server", facts.bus, mend)
    yield _server("clocks.extender", "the extender", facts.extender, mend)
    yield _nodes(facts.nodes, facts.api_server)
    yield _samples(facts.samples)


def _is_ours_wrong(offsets: Sequence[Offset | Missing]) -> bool:
    """Whether at least two other clocks agree with each other, and not with that of this machine."""
    known = [each for each in offsets if isinstance(each, Offset)]
    ahead = [each.ahead for each in known]
    return (
        len(known) > 1
        and all(each.least > TOLERANCE_SECONDS for each in known)
        and max(ahead) - min(ahead) <= TOLERANCE_SECONDS
    )


def _server(check: str, name: str, offset: Offset | Missing, mend: str) -> Finding:
    if isinstance(offset, Missing):
        return unknown(check, offset)
    if offset.least <= TOLERANCE_SECONDS:
        return ok(check, f"the clock of {name} agrees with the clock of this machine")
    severity = Severity.ERROR if offset.least > FUTURE_TOLERANCE else Severity.WARNING
    return finding(check, severity, f"the clock of {name} is {_direction(offset.ahead)} this machine", mend, run=RUN)


def _nodes(nodes: Mapping[str, float] | Missing, api_server: Offset | Missing) -> Finding:
    if isinstance(nodes, Missing):
        return unknown("clocks.nodes", nodes)
    # Relative to the API server: the clock of this machine may be the wrong one.
    base, whose = (Offset(0.0), "this machine") if isinstance(api_server, Missing) else (api_server, "the API server")
    tolerance = TOLERANCE_SECONDS + base.doubt
    wrong = {
        node: ahead - base.ahead
        for node, ahead in nodes.items()
        if not -RENEWAL_SECONDS - tolerance <= ahead - base.ahead <= tolerance
    }
    if not wrong:
        return ok("clocks.nodes", f"the clocks of {counted(len(nodes), 'node')} agree with {whose}")
    worst = max(wrong, key=lambda node: abs(wrong[node]))
    severity = Severity.ERROR if abs(wrong[worst]) > FUTURE_TOLERANCE else Severity.WARNING
    what = f"the clocks of {some(wrong)} differ: that of {worst} is {_direction(wrong[worst])} {whose}"
    return finding("clocks.nodes", severity, what, MEND, run=RUN)


def _samples(samples: Mapping[str, NodeSamples] | Missing) -> Finding:
    if isinstance(samples, Missing):
        return unknown("clocks.samples", samples)
    ahead: dict[str, float] = {}
    for node, scrapes in samples.items():
        for scrape in scrapes:
            name = f"{scrape.source} of {node}"
            ahead[name] = max(ahead.get(name, 0.0), scrape.measured - scrape.arrived)
    wrong = {name: seconds for name, seconds in ahead.items() if seconds > TOLERANCE_SECONDS}
    if not wrong:
        return ok("clocks.samples", "no sample comes from the future")
    worst = max(wrong, key=wrong.__getitem__)
    what = f"samples of {some(wrong)} have times ahead of the bus, at most {wrong[worst]:.0f} s"
    return finding("clocks.samples", Severity.WARNING, what, MEND, run=RUN)


def _direction(ahead: float) -> str:
    return f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'}"
