"""Valid and invalid names."""

from collections.abc import Callable

import pytest

from tas.values.names import (
    is_dns_label,
    is_label_key,
    is_label_name,
    is_label_value,
    is_metric_name,
    is_source_name,
    is_subdomain,
)

Check = Callable[[str], bool]

ACCEPTED: list[tuple[Check, list[str]]] = [
    (is_subdomain, ["a", "0", "a-b", "node-1.example.com", "10.0.0.1", "a" * 253]),
    (is_dns_label, ["a", "0", "a-b", "a" * 63]),
    (is_metric_name, ["m", "health_metric", "node:load:avg1m", "A-b_9", "-", "m" * 253]),
    (is_source_name, ["machine", "a-1", "a" * 63]),
    (is_label_name, ["a", "card0", "gas-prefer-gpu", "A.b_c-9", "a" * 63]),
    (is_label_key, ["a", "a.b/c", "telemetry.aware.scheduling.p/card0", "a" * 253 + "/" + "b" * 63]),
    (is_label_value, ["", "true", "PCI_GROUP", "a.b", "a" * 63]),
]
REFUSED: list[tuple[Check, list[str]]] = [
    (is_subdomain, ["", "-a", "a-", "A", "a_b", "a..b", ".a", "a.", "a.-b", "a" * 254, "ä", "a\n", "a b", "a/b"]),
    (is_dns_label, ["", "-a", "a-", "A", "a.b", "a" * 64, "ä", "a\n"]),
    (is_metric_name, ["", "a.b", "a b", "m\n", "m" * 254, "é", "m*", "m>", "\u0661"]),
    (is_source_name, ["", "Machine", "a.b", "a_b", "a" * 64, "a\n", "*"]),
    (is_label_name, ["", "-a", "a-", "a b", "a/b", "a=b", "a~b", "a" * 64, "ä", "a\n"]),
    (is_label_key, ["", "/", "a/", "/a", "a/b/c", "A/b", "a_b/c", "a" * 254 + "/b", "a/" + "b" * 64, "a/b\n"]),
    (is_label_value, [" ", "-1", "a b", "a=b", "a" * 64, "ä", "a\n"]),
]


@pytest.mark.parametrize(("check", "name"), [(check, name) for check, names in ACCEPTED for name in names])
def test_accepts(check: Check, name: str) -> None:
    assert check(name)


@pytest.mark.parametrize(("check", "name"), [(check, name) for check, names in REFUSED for name in names])
def test_refuses(check: Check, name: str) -> None:
    assert not check(name)
