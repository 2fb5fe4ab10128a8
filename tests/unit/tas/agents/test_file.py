"""The file of agents: what it sets, and the mistake that it names."""

import re
from typing import Annotated, Any

import msgspec
import pytest

from tas.agents.agent import Agent, Candidates, Missing, Passes, PodDemand, Scores
from tas.agents.builtin import BUILTIN
from tas.agents.file import AgentConfig, AgentVerb, default_agents, kinds_of, parse_agents
from tas.agents.pigeon import RESOURCES, Objective, Pigeon, PigeonOptions
from tas.values.document import DocumentError


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 90
    share: float = 0.5

    def __post_init__(self) -> None:
        if self.share == 0:
            raise ValueError("share must not be 0")


class Both(Agent):
    Options = Limits

    def filter(self, pod: PodDemand, nodes: Candidates) -> Passes:
        raise AssertionError

    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        raise AssertionError


class ScoresOnly(Agent):
    def score(self, pod: PodDemand, nodes: Candidates) -> Scores:
        raise AssertionError


KINDS = {"both": Both, "plain": ScoresOnly}


def parsed(**agents: Any) -> dict[str, AgentConfig]:
    return parse_agents("agents.yaml", {"agents": agents}, KINDS)


def test_an_entry_without_fields_runs_the_agent_of_its_name_with_defaults() -> None:
    assert parsed(both=None, plain={}) == {
        "both": AgentConfig(name="both", kind="both", options=Limits()),
        "plain": AgentConfig(name="plain", kind="plain", verbs=frozenset({AgentVerb.PRIORITIZE})),
    }
    assert default_agents(KINDS, ["both", "plain"]) == parsed(both=None, plain={})


def test_every_field_counts_and_one_agent_runs_under_two_names() -> None:
    found = parsed(
        strict={
            "agent": "both",
            "options": {"percent": 20},
            "missing": "reject",
            "compat": True,
            "verbs": ["filter"],
            "weight": 10,
            "ignorable": False,
            "timeout": "250ms",
        },
        both=None,
    )
    assert found["strict"] == AgentConfig(
        name="strict",
        kind="both",
        options=Limits(percent=20),
        missing=Missing.REJECT,
        compat=True,
        verbs=frozenset({AgentVerb.FILTER}),
        weight=10,
        ignorable=False,
        timeout=0.25,
    )
    assert found["both"].options == Limits()


def test_options_of_the_file_count_before_fallbacks() -> None:
    document = {"agents": {"both": {"options": {"percent": 1}}, "other": {"agent": "both"}, "plain": None}}
    found = parse_agents("f", document, KINDS, {"both": {"percent": 2, "share": 0.25}})
    assert found["both"].options == Limits(percent=1, share=0.25)
    assert found["other"].options == Limits(percent=2, share=0.25)


def test_a_fallback_that_contradicts_the_file_has_no_effect() -> None:
    """The error would name an option that nobody has written there."""
    fallbacks: dict[str, dict[str, Any]] = {"p": {"prime": 3, "objective": "CONSOLIDATE", "resources": RESOURCES}}
    document = {"agents": {"plain": {"agent": "p"}, "few": {"agent": "p", "options": {"resources": ["cpu", "memory"]}}}}
    found = parse_agents("f", document, {"p": Pigeon}, fallbacks)
    assert found["plain"].options == PigeonOptions(prime=3, objective=Objective.CONSOLIDATE, resources=RESOURCES)
    assert found["few"].options == PigeonOptions(objective=Objective.CONSOLIDATE, resources=("cpu", "memory"))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "f: agents = None: must have at least one agent"),
        ([], "f: document = <list>: must be an object with the fields agents"),
        ({"agents": {}}, "f: agents = {}: must have at least one agent"),
        ({"agents": []}, "f: agents = []: must be an object"),
        ({"agents": {"both": None}, "agent": 1}, "f: agent = <int>: is not a known field: must be one of agents"),
        ({"agents": {"a": None}}, "f: agents.a.agent = 'a': is not installed: must be one of both, plain"),
        ({"agents": {"a": {"agent": "b"}}}, "f: agents.a.agent = 'b': is not installed: must be one of both, plain"),
        ({"agents": {"scheduler": None}}, "f: agents = 'scheduler': must be of a-z, 0-9 and -, at most 63, and not"),
        ({"agents": {"A/b": None}}, "f: agents = 'A/b': must be of a-z, 0-9 and -"),
        ({"agents": {"both": 7}}, "f: agents.both = 7: must be an object with the fields agent, compat, "),
        (
            {"agents": {"both": {"wait": 1}}},
            "f: agents.both.wait = <int>: is not a known field: must be one of agent, co",
        ),
        (
            {"agents": {"both": {"weight": 0}}},
            "f: agents.both.weight = 0: must be a whole number, at least 1 and at most 1000000",
        ),
        (
            {"agents": {"both": {"missing": "best"}}},
            "f: agents.both.missing = 'best': must be one of neutral, worst, reject",
        ),
        ({"agents": {"both": {"verbs": []}}}, "f: agents.both.verbs = []: must be a list of at least 1 entry"),
        ({"agents": {"plain": {"verbs": ["filter"]}}}, "f: agents.plain.verbs = 'filter': plain answers only prioriti"),
        ({"agents": {"both": {"weight": 2, "timeout": "1"}}}, "f: agents.both.timeout = '1': '1' is no duration such"),
        ({"agents": {"both": {"timeout": "2m"}}}, "f: agents.both.timeout = '2m': must be from 0.01s to 60s"),
        ({"agents": {"both": {"timeout": "-1s"}}}, "f: agents.both.timeout = '-1s': must be from 0.01s to 60s"),
        (
            {"agents": {"both": {"options": {"percent": 101}}}},
            "f: agents.both.options.percent = 101: must be a whole number, at least 0 and at most 100",
        ),
        (
            {"agents": {"both": {"options": {"percent": "x"}}}},
            "f: agents.both.options.percent = 'x': must be a whole n",
        ),
        ({"agents": {"both": {"options": {"share": 0}}}}, "share must not be 0"),
        ({"agents": {"both": {"options": {"share": float("nan")}}}}, "f: agents.both.options.share = nan: must be fin"),
        (
            {"agents": {"both": {"options": {"share": [1.0, {"size": float("inf")}]}}}},
            "f: agents.both.options.share[1].size = inf: must be finite",
        ),
        ({"agents": {"both": {"options": {"parts": 1}}}}, "f: agents.both.options.parts = 1: is not a known option"),
        (
            {"agents": {"plain": {"options": {"parts": 1}}}},
            "f: agents.plain.options.parts = 1: is not a known opt",
        ),
        ({"agents": {f"a{at}": {"agent": "both"} for at in range(101)}}, "f: agents = 101: must be at most 100 agents"),
    ],
)
def test_a_mistake_names_the_agent_the_field_and_the_value(document: object, message: str) -> None:
    with pytest.raises(DocumentError) as raised:
        parse_agents("f", document, KINDS)
    assert message in str(raised.value)
    assert len(raised.value.mistakes) == 1


@pytest.mark.parametrize(
    ("agent", "options", "message"),
    [
        ("congestion", {"factor": ""}, "f: agents.a.options.factor = '': must be text of at least 1 character"),
        ("congestion", {"links": [{"traffic": "", "capacity": 1}]}, "f: agents.a.options.links[0].traffic = '': must"),
        ("congestion", {"links": [{"traffic": "rx"}]}, "of traffic': must have capacity or capacity_metric"),
        ("target-load", {"cpu": [{"mean": ""}]}, "f: agents.a.options.cpu[0].mean = '': must be text of at least 1"),
        (
            "safe-overload",
            {"memory": [{"mean": "m", "quantiles": "m:p95:5m"}]},
            "f: agents.a.options.memory[0] = 'an object of mean, quantiles': quantiles must have {} for the percentile"
            ", not 'm:p95:5m'",
        ),
        ("rl-priority", {"labels": []}, "f: agents.a.options.labels = []: must be a list of at least 1 entry"),
    ],
)
def test_options_that_cannot_work_are_refused(agent: str, options: dict[str, Any], message: str) -> None:
    """Else each request gets an error, or an option has no effect, or one percentile counts as all others."""
    with pytest.raises(DocumentError) as raised:
        parse_agents("f", {"agents": {"a": {"agent": agent, "options": options}}}, BUILTIN)
    assert message in str(raised.value)


@pytest.mark.parametrize("kind", [kind for kind in BUILTIN.values() if kind.Options is not None])
def test_no_error_has_the_words_of_the_library(kind: type[Agent]) -> None:
    """Also not of options in options."""
    assert kind.Options is not None
    refused = 0
    for option in msgspec.structs.fields(kind.Options):
        of_list = [[each] for each in ({}, {"zz": 1}, {"mean": 7}, {"mean": "m", "form": "x", "factor": 1}, 7, True)]
        for value in (None, "x", 7, -1, 7.5, 10**9, True, [], {}, {"zz": 1}, *of_list):
            try:
                parse_agents("f", {"agents": {"a": {"options": {option.encode_name: value}}}}, {"a": kind})
            except DocumentError as error:
                (mistake,) = error.mistakes
                assert not re.search(r"Expected|`|Invalid enum|Object ", str(mistake)), mistake
                assert option.encode_name in str(mistake)
                refused += 1
    assert refused > 0


def test_every_wrong_agent_is_named() -> None:
    with pytest.raises(DocumentError) as raised:
        parsed(both={"weight": 0}, plain={"weight": 0}, other=None)
    assert [mistake.field for mistake in raised.value.mistakes] == [
        "agents.both.weight",
        "agents.plain.weight",
        "agents.other.agent",
    ]


def test_the_kinds_of_a_document_are_known_before_it_is_valid() -> None:
    assert kinds_of({"agents": {"a": {"agent": "x", "weight": "?"}, "b": None, "c": {"agent": 7}}}) >= {"x", "b", "7"}
    assert kinds_of(None) == kinds_of({"agents": [1]}) == frozenset()
