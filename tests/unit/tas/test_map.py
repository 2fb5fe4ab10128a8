"""The steps of `dontschedule` in the docstring of `tas`."""

import re
from importlib import import_module

import tas


def test_the_map_names_modules_that_exist() -> None:
    names = re.findall(r"`([a-z_]+\.[a-z_]+)`: ", tas.__doc__ or "")
    assert names[0] == "values.quantity"
    assert {"samples.freshness", "policy.rules", "view.view", "extender.telemetry"} <= set(names)
    for name in names:
        import_module(f"tas.{name}")
