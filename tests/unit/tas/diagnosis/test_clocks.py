"""The checks of clocks."""

import msgspec
import pytest

from tas.diagnosis.clocks import ClockFacts, Offset, check_clocks, time_there
from tas.diagnosis.finding import Missing, Severity
from tas.samples.sample import Scrape
from tas.values.quantity import parse_quantity
from tests.unit.tas.diagnosis.found import bad, one, severities


def scrape(*, ahead: float) -> Scrape:
    return Scrape(source="agent", measured=100.0 + ahead, arrived=100.0, sequence=1, metrics={"m": parse_quantity("1")})


GOOD = ClockFacts(
    api_server=Offset(0.4, 0.5),
    bus=Offset(0.01, 0.001),
    extender=Offset(-0.5, 0.5),
    nodes={"a": -9.0, "b": 0.2},
    samples={"a": (scrape(ahead=-3.0),)},
)


def test_clocks_that_agree_have_no_finding() -> None:
    assert bad(check_clocks(GOOD)) == {}
    assert len(severities(check_clocks(GOOD))) == 5


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"api_server": Offset(5.0)}, {"clocks.api_server": Severity.WARNING}),
        ({"api_server": Offset(-30.0)}, {"clocks.api_server": Severity.ERROR, "clocks.nodes": Severity.ERROR}),
        ({"api_server": Offset(30.0), "nodes": {"a": 25.0}}, {"clocks.api_server": Severity.ERROR}),
        ({"bus": Offset(5.0, 4.0)}, {}),
        ({"bus": Offset(5.0, 1.0)}, {"clocks.bus": Severity.WARNING}),
        ({"bus": Missing("no bus")}, {"clocks.bus": Severity.UNKNOWN}),
        ({"extender": Offset(11.0)}, {"clocks.extender": Severity.ERROR}),
        ({"nodes": {"a": 4.0}}, {"clocks.nodes": Severity.WARNING}),
        ({"nodes": {"a": 4.0}, "api_server": Offset(0.0, 3.0)}, {}),
        ({"nodes": {"a": -3600.0}}, {"clocks.nodes": Severity.ERROR}),
        ({"nodes": {"a": -39.0}}, {}),
        ({"nodes": Missing("forbidden")}, {"clocks.nodes": Severity.UNKNOWN}),
        ({"samples": {"a": (scrape(ahead=2.5),)}}, {"clocks.samples": Severity.WARNING}),
        ({"samples": {"a": (scrape(ahead=1.5),)}}, {}),
        ({"samples": Missing("no bus")}, {"clocks.samples": Severity.UNKNOWN}),
    ],
)
def test_each_difference_is_found(fields: dict[str, object], found: dict[str, Severity]) -> None:
    assert bad(check_clocks(msgspec.structs.replace(GOOD, **fields))) == found


def test_the_worst_node_is_named_with_its_direction() -> None:
    facts = msgspec.structs.replace(GOOD, api_server=Offset(0.0), nodes={"a": 5.0, "b": 61.0, "c": 0.0})
    found = one(check_clocks(facts), "clocks.nodes")
    assert found.what == "the clocks of a, b differ: that of b is 61 s ahead of the API server"
    unasked = msgspec.structs.replace(facts, api_server=Missing("no answer"))
    assert one(check_clocks(unasked), "clocks.nodes").what.endswith("61 s ahead of this machine")


def test_the_clock_of_this_machine_is_wrong_if_all_others_agree() -> None:
    others = {"api_server": Offset(-600.4, 0.5), "bus": Offset(-600.0), "nodes": {"a": -605.0}}
    facts = msgspec.structs.replace(GOOD, extender=Offset(-599.5, 0.5), **others)
    here = [
        each for each in check_clocks(facts) if each.check in ("clocks.api_server", "clocks.bus", "clocks.extender")
    ]
    assert len(here) == 3
    assert all("of this machine, where tas doctor runs" in each.mend for each in here)
    assert one(check_clocks(facts), "clocks.nodes").severity is Severity.OK
    for other in (Offset(0.0), Offset(-590.0)):  # one agrees with ours, or with nobody
        facts = msgspec.structs.replace(GOOD, extender=other, **others)
        assert "of the machine that is wrong" in one(check_clocks(facts), "clocks.bus").mend
    alone = msgspec.structs.replace(facts, api_server=Missing("no"), extender=Missing("no"))
    assert "of the machine that is wrong" in one(check_clocks(alone), "clocks.bus").mend


def test_times_of_another_machine_are_judged_by_its_clock() -> None:
    assert time_there(1000.0, Offset(-600.0, 0.5)) == 400.0
    assert time_there(1000.0, Missing("no answer")) == 1000.0
