"""The page of the options of agents."""

import re

import msgspec
import pytest

from cli.agents_page import agents_page
from tas.agents.builtin import BUILTIN

PAGE = agents_page()


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found, title
    return found[1]


@pytest.mark.parametrize("name", BUILTIN)
def test_each_agent_has_a_row_for_each_option(name: str) -> None:
    agent = BUILTIN[name]
    options = () if agent.Options is None else tuple(field.name for field in msgspec.structs.fields(agent.Options))
    assert re.findall(r"^\| `(\w+)` \|", section(name), re.MULTILINE) == list(options)
    assert f"no opinion: `{agent.missing}`." in section(name)


def test_a_row_has_type_range_and_default() -> None:
    assert "| `risk` | number, at least 0 and at most 1 | `0.3` | The largest accepted prob" in section("safe-overload")
    assert "| `target` | number, more than 0 and less than 100 | `40.0` |" in section("target-load")
    assert "| `objective` | `A_BINPACK` or `LOAD_BALANCE` or `CONSOLIDATE` | " in section("pigeon-holing")
    assert "| `models` | map of names to: [PowerModel](#powermodel) | – |" in section("peaks")


def test_a_type_of_several_fields_has_a_section() -> None:
    assert "| `mean` | text | required | The metric with the mean. |" in section("Usage")
    assert "| `capacity` | number, more than 0 | – |" in section("Link")
