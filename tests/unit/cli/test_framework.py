"""The environment of the original agent framework: a port, a level, and options of agents."""

from collections.abc import Mapping

import msgspec
import pytest

from cli.options import LEVELS, settings_of_environment
from tas.agents.builtin import BUILTIN
from workers.agents.configured import VARIABLES, fallbacks_of_environment


def test_the_port_is_a_setting_of_agents_and_the_level_of_all_that_answer_a_scheduler() -> None:
    environment = {"HTTP_PORT": "5401", "LOG_LEVEL": "Alert"}
    assert settings_of_environment("run agents", environment) == ({"listen": ":5401", "log_level": "error"}, [], [])
    for command in ("run all", "run extender", "run gpu"):
        assert settings_of_environment(command, environment) == ({"log_level": "error"}, [], [])
    assert settings_of_environment("run labels", environment) == ({}, [], [])


def test_a_level_that_is_none_does_not_count_and_is_named() -> None:
    given, mistakes, (ignored,) = settings_of_environment("run gpu", {"HTTP_PORT": "", "LOG_LEVEL": "loud"})
    assert (given, mistakes) == ({}, [])
    reason = "must be TRACE, DEBUG, INFO, WARNING, ERROR, ALERT: the default counts"
    assert str(ignored) == f"LOG_LEVEL = 'loud': {reason}"


@pytest.mark.parametrize("port", ["0", "65536", "x", "80 ", ":80", "\u0661"])
def test_a_port_that_is_none_is_a_mistake(port: str) -> None:
    given, (mistake,), _ = settings_of_environment("run agents", {"HTTP_PORT": port})
    assert (given, mistake.setting, mistake.reason) == ({}, "HTTP_PORT", "must be a port from 1 to 65535")


def test_every_level_of_the_framework_is_one_of_ours() -> None:
    for level in ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "ALERT"):
        assert settings_of_environment("run agents", {"LOG_LEVEL": level.lower()}).given == {"log_level": LEVELS[level]}


def test_variables_are_options_in_our_units() -> None:
    found = fallbacks_of_environment(
        {"SAFEUTILIZATION": "80", "SAFEPERCENTILE": "0", "SAFEFORECASTWEIGHT": "100", "CONGESTION_FACTOR_MAX": "10"}
    )
    assert found.options == {
        "safe-overload": {"utilization": 0.8, "risk": 0.0, "forecast_weight": 1.0},
        "safe-balance": {"forecast_weight": 1.0},
        "congestion": {"limit": 10},
    }
    assert found.ignored == []


@pytest.mark.parametrize(
    ("environment", "value"),
    [
        ({"SAFEUTILIZATION": "101"}, "'101'"),
        ({"SAFEPERCENTILE": "-1"}, "'-1'"),
        ({"SAFEFORECASTWEIGHT": "20%"}, "'20%'"),
        ({"CONGESTION_FACTOR_MAX": "0"}, "'0'"),
        ({"CONGESTION_FACTOR_MAX": "1.5"}, "'1.5'"),
        ({"POLICY_OBJECTIVE": "BINPACK "}, "'BINPACK '"),
        ({"NUM_RESOURCES": "6"}, "'6'"),
    ],
)
def test_an_invalid_value_does_not_count_and_is_named(environment: Mapping[str, str], value: str) -> None:
    found = fallbacks_of_environment(environment)
    ((name, _),) = environment.items()
    assert found.options == {}
    ((setting, text, reason),) = found.ignored
    assert (setting, text, reason.endswith("the default counts")) == (name, value, True)


def test_each_option_exists_and_accepts_its_values() -> None:
    for variable in VARIABLES:
        for agent in variable.agents:
            options = BUILTIN[agent].Options
            assert options is not None
            texts = {"POLICY_OBJECTIVE": ("CONSOLIDATE", "LOAD_BALANCE"), "NUM_RESOURCES": ("1", "5")}
            for text in texts.get(variable.name, ("1", "10", "100")):
                value = variable.read(text)
                assert getattr(msgspec.convert({variable.option: value}, options), variable.option) == value


CFG = "policyObjective = CONSOLIDATE\npolicyResourceIndex = 2\n"


def test_pigeon_cfg_counts_after_variables_and_its_index_must_be_a_resource() -> None:
    three = fallbacks_of_environment({"NUM_RESOURCES": "3", "POLICY_OBJECTIVE": "LOAD_BALANCE"}, CFG)
    found = {"objective": "LOAD_BALANCE", "prime": 2, "resources": ("cpu", "memory", "pods")}
    assert three == ({"pigeon-holing": found}, [])
    two = fallbacks_of_environment({}, CFG)
    assert two.options == {"pigeon-holing": {"objective": "CONSOLIDATE"}}
    assert [str(mistake) for mistake in two.ignored] == [
        "pigeon.cfg, policyResourceIndex = 2: must be less than 2, the number of resources: the default counts"
    ]
    (wrong,) = fallbacks_of_environment({}, "policyObjective = BEST").ignored
    assert "line 1: 'BEST' must be one of" in wrong.reason
