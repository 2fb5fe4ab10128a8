"""The entries of `extenders` for agents: one for each, with its own verbs and weight."""

from typing import Any

from tas.agents.file import AgentConfig, AgentVerb
from tas.configuring.agents import agent_extenders
from tas.configuring.configuration import with_extenders
from tas.configuring.extenders import Extender, ExtenderKind, Object

AGENTS = [
    AgentConfig(name="safe-overload", kind="safe-overload", timeout=0.25),
    AgentConfig(name="safe-balance", kind="x", verbs=frozenset({AgentVerb.PRIORITIZE}), weight=10, ignorable=False),
    AgentConfig(name="only-filter", kind="x", verbs=frozenset({AgentVerb.FILTER})),
]


def entries(*agents: AgentConfig, **settings: Any) -> list[Object]:
    common = Extender(kind=ExtenderKind.AGENTS, url="http://127.0.0.1:9030", resources=(), **settings)
    return [each.entry() for each in agent_extenders(agents, common)]


def test_each_agent_has_an_entry_with_its_verbs_weight_and_time() -> None:
    overload, balance, only_filter = entries(*AGENTS)
    assert overload == {
        "urlPrefix": "http://127.0.0.1:9030/scheduler",
        "filterVerb": "predicates/safe-overload",
        "prioritizeVerb": "priorities/safe-overload",
        "weight": 1,
        "enableHTTPS": False,
        "nodeCacheCapable": True,
        "httpTimeout": "1250ms",
        "ignorable": True,
    }
    assert (balance["prioritizeVerb"], balance["weight"], balance["ignorable"]) == (
        "priorities/safe-balance",
        10,
        False,
    )
    assert "filterVerb" not in balance
    assert "bindVerb" not in balance
    assert (only_filter["filterVerb"], "prioritizeVerb" in only_filter) == ("predicates/only-filter", False)


def test_flags_count_before_the_file() -> None:
    (entry,) = entries(AGENTS[1], ignorable=True, http_timeout="3s", names_only=False)
    assert (entry["ignorable"], entry["httpTimeout"], entry["nodeCacheCapable"]) == (True, "3s", False)


def test_a_second_run_changes_each_entry_in_place_though_all_have_one_url() -> None:
    first, _ = with_extenders(None, 34, entries(*AGENTS), None)
    again, _ = with_extenders(first, 34, entries(*AGENTS), None)
    assert again == first
    heavier = AgentConfig(name="safe-overload", kind="safe-overload", weight=7)
    changed, _ = with_extenders(first, 34, entries(heavier), None)
    assert isinstance(changed["extenders"], list)
    assert [entry["weight"] for entry in changed["extenders"]] == [7, 10, 1]
    (filters,) = entries(AgentConfig(name="safe-balance", kind="x", verbs=frozenset({AgentVerb.FILTER})))
    replaced, _ = with_extenders(first, 34, [filters], None)
    assert isinstance(replaced["extenders"], list)
    assert [entry.get("prioritizeVerb") for entry in replaced["extenders"]] == ["priorities/safe-overload", None, None]
