"""Settings: what they are read from, what is refused, and the page that tells them."""

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest

from cli.settings import (
    EMBEDDED,
    RUN,
    FailedNodes,
    Settings,
    SettingsError,
    UnknownPolicy,
    every_setting,
    flag,
    settings_of,
    settings_page,
    variable,
)
from workers.process.address import Address
from workers.process.log_form import LogFormat, LogLevel

COMMANDS = (*RUN, "up", "demo", "publish", "get", "explain", "trace")


def mistakes(command: str, given: Mapping[str, str]) -> list[tuple[str, str]]:
    """The flag and the reason of each mistake."""
    with pytest.raises(SettingsError) as caught:
        Settings.load(command, given)
    return [(mistake.setting.partition(" ")[0], mistake.reason) for mistake in caught.value.mistakes]


def test_defaults_are_those_of_a_small_installation(tmp_path: Path) -> None:
    settings = Settings.load("run all", {"policies": str(tmp_path)})
    assert settings.bus == EMBEDDED
    assert settings.store is None
    assert settings.embedded_port is None
    assert settings.replicas == 1
    assert settings.policies == tmp_path
    assert settings.listen == Address("127.0.0.1", 9001)
    assert settings.health_listen == Address("127.0.0.1", 9002)
    assert settings.stale_after == 120.0
    assert settings.max_body == 64 << 20
    assert settings.unknown_policy is UnknownPolicy.PASS
    assert settings.failed_nodes is FailedNodes.UNRESOLVABLE
    assert settings.period == 1.0
    assert settings.log_format is LogFormat.AUTO
    assert settings.log_level is LogLevel.INFO


@pytest.mark.parametrize("missing", ["cert", "key", "cacert"])
def test_of_three_files_for_https_all_are_given_or_none(tmp_path: Path, missing: str) -> None:
    (tmp_path / "pem").touch()
    files = {name: str(tmp_path / "pem") for name in ("cert", "key", "cacert") if name != missing}
    with pytest.raises(SettingsError) as caught:
        Settings.load("run extender", files)
    given = ", ".join(f"--{name}" for name in files)
    assert str(caught.value) == (
        f"--{missing} (TAS_{missing.upper()}): must be given, since {given} is given: all three or none"
    )


def test_each_file_for_https_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "pem").touch()
    with pytest.raises(SettingsError) as caught:
        Settings.load("run extender", {"cert": "/nowhere.pem", "key": str(tmp_path), "cacert": str(tmp_path / "pem")})
    assert [(mistake.setting, mistake.reason) for mistake in caught.value.mistakes] == [
        ("--cert (TAS_CERT)", "does not exist"),
        ("--key (TAS_KEY)", "is not a readable file"),
    ]


def test_what_is_given_is_read_with_its_unit(tmp_path: Path) -> None:
    given = {
        "bus": "nats://a:4222, tls://b",
        "store": str(tmp_path / "store"),
        "embedded_port": "4333",
        "policies": str(tmp_path),
        "listen": "[::1]:80",
        "health_listen": ":0",
        "stale_after": "1m30s",
        "max_body": "1.5Ki",
        "unknown_policy": "error",
        "failed_nodes": "resolvable",
        "share_listen": "on",
        "debug_explain": "on",
        "extender_health": "127.0.0.1:9012",
        "node": "node-1.example",
        "period": "250ms",
        "log_format": "json",
        "log_level": "error",
        "replicas": "3",
        "max_connections": "40",
        "idle_timeout": "3m",
        **{name: str(tmp_path / "pem") for name in ("cert", "key", "cacert")},
        "client_names": "system:kube-scheduler, scheduler.example",
        "source": "prometheus=http://a:9090, edge:prometheus=http://b",
        "source_config": str(tmp_path / "sources.yaml"),
        "only": "telemetry",
        "extension_timeout": "500ms",
    }
    for file in ("pem", "sources.yaml"):
        (tmp_path / file).touch()
    # Policies come from a directory or from a cluster, so the other is tried by itself.
    assert set(given) | {"kubeconfig", "node_resource"} == {field.name for field in fields(Settings)}
    settings = Settings.load("run all", given)
    assert settings.bus == "nats://a:4222, tls://b"
    assert settings.embedded_port == 4333
    assert settings.listen == Address("::1", 80)
    assert settings.stale_after == 90.0
    assert settings.max_body == 1536
    assert settings.share_listen
    assert settings.unknown_policy is UnknownPolicy.ERROR
    assert settings.failed_nodes is FailedNodes.RESOLVABLE
    assert settings.period == 0.25
    assert settings.replicas == 3
    assert (settings.max_connections, settings.idle_timeout) == (40, 180.0)
    assert settings.cert == settings.key == settings.cacert == tmp_path / "pem"
    assert settings.client_names == ("system:kube-scheduler", "scheduler.example")
    assert settings.source is not None
    assert [spec.name for spec in settings.source] == ["prometheus", "edge"]
    assert settings.source_config == tmp_path / "sources.yaml"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("bus", "127.0.0.1:4222", "addresses such as"),
        ("bus", "http://127.0.0.1", "addresses such as"),
        ("bus", "nats://", "addresses such as"),
        ("bus", "nats://h:x", "addresses such as"),
        ("bus", "nats://a,", "addresses such as"),
        ("embedded_port", "0", "port from 1 to 65535"),
        ("embedded_port", "65536", "port from 1 to 65535"),
        ("embedded_port", "x", "port from 1 to 65535"),
        ("replicas", "2", "1, 3 or 5"),
        ("listen", "9001", "HOST:PORT"),
        ("health_listen", "localhost:http", "HOST:PORT"),
        ("stale_after", "120", "duration such as 90s"),
        ("stale_after", "0s", "must be more than 0s"),
        ("stale_after", "-1m", "must be more than 0s"),
        ("stale_after", "1h1s", "at most 1h"),
        ("max_body", "much", "size in bytes"),
        ("max_body", "0", "at least 1"),
        ("max_body", "-1", "at least 1"),
        ("max_body", "1.5", "whole number of bytes"),
        ("unknown_policy", "fail", "must be pass or error"),
        ("max_connections", "0", "from 1 to 100000"),
        ("idle_timeout", "10ms", "at least 1s"),
        ("client_names", "a,,b", "none of them empty"),
        ("client_names", "a", "needs HTTPS: --cert, --key, --cacert"),
        ("failed_nodes", "", "must be unresolvable or resolvable"),
        ("node", "Node_1", "DNS subdomain"),
        ("period", "99ms", "at least 0.1s"),
        ("source", "influx", "must be one of custom-metrics"),
        ("source", "custom-metrics", "needs --kubeconfig"),
        ("source", "prometheus=http://a,metrics-server", "needs --kubeconfig"),
        ("source_config", "/nowhere/at/all", "is not a readable file"),
        ("log_format", "xml", "must be auto, json or console"),
        ("log_level", "verbose", "must be debug, info, warning or error"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(tmp_path: Path, name: str, value: str, reason: str) -> None:
    ((setting, told),) = mistakes("run all", {"policies": str(tmp_path), name: value})
    assert setting == flag(name)
    assert reason in told


def test_all_mistakes_are_told_together() -> None:
    found = mistakes("run all", {"stale_after": "3h", "log_level": "loud", "policies": "/nowhere/at/all"})
    assert [setting for setting, _ in found] == ["--stale-after", "--log-level", "--policies"]


def test_a_mistake_names_flag_variable_value_and_reason() -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.load("run extender", {"stale_after": "3h"})
    assert [str(mistake) for mistake in caught.value.mistakes] == [
        "--stale-after (TAS_STALE_AFTER) = '3h': must be at most 1h"
    ]


@pytest.mark.parametrize("command", ["run all", "run policies", "up"])
def test_the_directory_of_policies_must_be_given_and_be_there(tmp_path: Path, command: str) -> None:
    (tmp_path / "file").write_text("")
    told = "must be given: the directory of TASPolicy files"
    told += ", or --kubeconfig for a cluster" if command == "run all" else ""
    assert mistakes(command, {}) == [("--policies", told)]
    assert mistakes(command, {"policies": str(tmp_path / "no")}) == [("--policies", "does not exist")]
    assert mistakes(command, {"policies": str(tmp_path / "file")}) == [("--policies", "is not a directory")]


def test_policies_come_from_a_directory_or_from_a_cluster(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text("{}")
    assert Settings.load("run all", {"kubeconfig": str(file)}).kubeconfig == file
    assert Settings.load("run all", {"kubeconfig": "in-cluster"}).kubeconfig == "in-cluster"
    assert Settings.load("run watch", {}).kubeconfig == "in-cluster"
    both = {"kubeconfig": str(file), "policies": str(tmp_path)}
    ((setting, reason),) = mistakes("run all", both)
    assert setting == "--kubeconfig"
    assert reason.startswith("cannot be combined with --policies")


@pytest.mark.parametrize(("name", "told"), [("no", "does not exist"), (".", "is not a readable file")])
def test_a_kubeconfig_that_cannot_be_read_is_refused(tmp_path: Path, name: str, told: str) -> None:
    assert mistakes("run watch", {"kubeconfig": str(tmp_path / name)}) == [("--kubeconfig", told)]


def test_nodes_offer_a_resource_only_where_it_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text("{}")
    assert Settings.load("run all", {"kubeconfig": str(file)}).node_resource == 0
    assert Settings.load("run resources", {"node_resource": "5"}).node_resource == 5
    assert Settings.load("run resources", {}).node_resource == 1000
    nothing = [("--node-resource", "must be at least 1")]
    assert mistakes("run resources", {"node_resource": "0"}) == nothing
    assert mistakes("run all", {"policies": str(tmp_path), "node_resource": "1"}) == [
        ("--node-resource", "needs --kubeconfig")
    ]
    for wrong in ("-1", "1k", "1.5", "many", "9" * 13):
        ((setting, reason),) = mistakes("run resources", {"node_resource": wrong})
        assert setting == "--node-resource"
        assert reason.startswith("must be a whole number")


def test_a_worker_that_reads_no_directory_needs_none() -> None:
    assert Settings.load("run materialize", {}).policies is None


def test_the_extender_and_its_health_cannot_share_an_address(tmp_path: Path) -> None:
    given = {"policies": str(tmp_path), "listen": "127.0.0.1:9002"}
    ((setting, reason),) = mistakes("run all", given)
    assert (setting, reason) == ("--health-listen", "must not be the extender's address (--listen)")
    assert Settings.load("run all", {**given, "listen": "127.0.0.1:0", "health_listen": "127.0.0.1:0"})


def test_an_embedded_server_keeps_one_copy(tmp_path: Path) -> None:
    ((setting, _),) = mistakes("run all", {"policies": str(tmp_path), "replicas": "3"})
    assert setting == "--replicas"
    assert Settings.load("run all", {"policies": str(tmp_path), "replicas": "3", "bus": "nats://h"}).replicas == 3


def test_a_store_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert mistakes("run bus", {"store": str(tmp_path / "file")}) == [("--store", "is not a directory")]


def test_processes_of_one_machine_have_health_ports_of_their_own() -> None:
    addresses = [Settings.load(command, {"policies": "."}).health_listen for command in RUN if command != "run all"]
    assert len(set(addresses)) == len(addresses)


def test_clients_look_for_the_bus_that_runs() -> None:
    assert Settings.load("publish", {}).bus is None
    assert Settings.load("run materialize", {}).bus is None


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_settings_and_every_default_can_be_read(command: str) -> None:
    assert any(True for _ in settings_of(command))
    given = {"policies": "."}
    settings = Settings.load(command, given)
    for name, setting in settings_of(command):
        default = setting.default_for(command)
        assert default is None or name in given or getattr(settings, name) == setting.parse(default)
        assert setting.shown_default(command)


def test_every_setting_is_used_by_a_command_that_exists() -> None:
    for name, setting in every_setting():
        assert setting.commands, name
        assert set(setting.commands) <= set(COMMANDS), name
        assert set(setting.default_of) <= set(setting.commands), name


def test_no_variable_is_one_that_kubernetes_sets_for_a_service() -> None:
    """A service named `tas-bus` puts TAS_BUS_PORT and TAS_BUS_SERVICE_HOST into each pod of its namespace."""
    for name, _ in every_setting():
        assert not re.search(r"_(PORT|SERVICE_HOST|SERVICE_PORT)$", variable(name)) or name == "embedded_port"


def test_the_page_tells_every_setting() -> None:
    page = settings_page()
    for name, setting in every_setting():
        assert f"`{flag(name)}`<br>`{variable(name)}`" in page
        assert setting.help in page
    assert Path("docs/settings.md").read_text() == page
