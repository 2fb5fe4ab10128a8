"""Settings: values, errors, and the page that lists them."""

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest

from cli.loading import every_setting, load_settings, settings_of, settings_page
from tas.enforcing.limits import IN_FLIGHT_SECONDS, DefaultLimit
from tas.gpu.card_score import CardScore
from tas.sources.tables import Publish
from workers.http.address import Address
from workers.process.log_form import LogFormat, LogLevel
from workers.registry import with_commands
from workers.settings import EMBEDDED, FailedNodes, Settings, SettingsError, UnknownPolicy, flag, variable

RUN = ("run all", "run bus", *(f"run {spec.name}" for spec in with_commands()))
COMMANDS = (
    *RUN,
    "up",
    "bus check",
    "bus mend",
    "bus revoke",
    "bus url",
    "demo",
    "doctor",
    "pause",
    "publish",
    "release",
    "reset",
    "resume",
    "get",
    "events",
    "dismiss",
    "explain",
    "policy impact",
    "status",
    "support",
    "top",
    "trace",
)
REQUIRED = {"policies": ".", "sinks": __file__}
"""What must be given, for all commands."""


def mistakes(command: str, given: Mapping[str, str]) -> list[tuple[str, str]]:
    """The flag and the reason of each mistake."""
    with pytest.raises(SettingsError) as caught:
        load_settings(command, given)
    return [(mistake.setting.partition(" ")[0], mistake.reason) for mistake in caught.value.mistakes]


@pytest.mark.parametrize(("given", "missing"), [("bus_cert", "bus_key"), ("bus_key", "bus_cert")])
def test_a_certificate_for_the_bus_and_its_key_are_given_together(tmp_path: Path, given: str, missing: str) -> None:
    (tmp_path / "pem").touch()
    assert mistakes("run extender", {given: str(tmp_path / "pem")}) == [
        (flag(missing), f"must be given, since {flag(given)} is given: both or none")
    ]
    assert mistakes("get", {"bus_credentials": str(tmp_path / "no.creds")}) == [("--bus-credentials", "does not exist")]


def test_defaults_are_those_of_a_small_installation(tmp_path: Path) -> None:
    settings = load_settings("run all", {"policies": str(tmp_path)})
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
def test_https_needs_all_three_files_or_none(tmp_path: Path, missing: str) -> None:
    (tmp_path / "pem").touch()
    files = {name: str(tmp_path / "pem") for name in ("cert", "key", "cacert") if name != missing}
    with pytest.raises(SettingsError) as caught:
        load_settings("run extender", files)
    given = ", ".join(f"--{name}" for name in files)
    assert str(caught.value) == (
        f"--{missing} (TAS_{missing.upper()}): must be given, since {given} is given: all three or none"
    )


def test_a_receiver_needs_certificate_and_key_and_files_that_exist(tmp_path: Path) -> None:
    (tmp_path / "pem").touch()
    pem, source = str(tmp_path / "pem"), {"policies": str(tmp_path), "source": "remote-write=:0"}
    both = "must be given, since --remote-write-{} is given: both or none"
    assert mistakes("run all", {**source, "remote_write_cert": pem}) == [("--remote-write-key", both.format("cert"))]
    assert mistakes("run all", {**source, "remote_write_key": pem}) == [("--remote-write-cert", both.format("key"))]
    assert mistakes("run all", {**source, "remote_write_token": f"{pem}s"}) == [
        ("--remote-write-token", "does not exist")
    ]
    assert mistakes("run all", {"policies": str(tmp_path), "remote_write_token": pem}) == [
        ("--remote-write-token", "needs --source remote-write=…")
    ]


def test_notify_needs_a_file_of_sinks(tmp_path: Path) -> None:
    assert mistakes("run notify", {}) == [("--sinks", "must be given: the file with the sinks")]
    for command in ("run notify", "run all"):
        given = {"policies": str(tmp_path), "sinks": str(tmp_path / "missing")}
        assert mistakes(command, given) == [("--sinks", "does not exist")]


def test_each_unreadable_file_for_https_is_reported(tmp_path: Path) -> None:
    (tmp_path / "pem").touch()
    with pytest.raises(SettingsError) as caught:
        load_settings("run extender", {"cert": "/nowhere.pem", "key": str(tmp_path), "cacert": str(tmp_path / "pem")})
    assert [(mistake.setting, mistake.reason) for mistake in caught.value.mistakes] == [
        ("--cert (TAS_CERT)", "does not exist"),
        ("--key (TAS_KEY)", "is not a readable file"),
    ]


def test_each_given_value_is_read_with_its_unit(tmp_path: Path) -> None:
    pem = tmp_path / "pem"
    given: dict[str, tuple[str, object]] = {
        "bus": ("nats://a:4222, tls://b", "nats://a:4222, tls://b"),
        "store": (str(tmp_path / "store"), tmp_path / "store"),
        "embedded_port": ("4333", 4333),
        "policies": (str(tmp_path), tmp_path),
        "listen": ("[::1]:80", Address("::1", 80)),
        "health_listen": (":0", Address("", 0)),
        "stale_after": ("1m30s", 90.0),
        "max_body": ("1.5Ki", 1536),
        "unknown_policy": ("error", UnknownPolicy.ERROR),
        "failed_nodes": ("resolvable", FailedNodes.RESOLVABLE),
        "share_listen": ("on", True),
        "debug_explain": ("on", True),
        "prometheus_query": ("on", True),
        "extender_health": ("127.0.0.1:9012", Address("127.0.0.1", 9012)),
        "node": ("node-1.example", "node-1.example"),
        "period": ("250ms", 0.25),
        "publish": ("tables", Publish.TABLES),
        "log_format": ("json", LogFormat.JSON),
        "log_level": ("error", LogLevel.ERROR),
        "wait_for_files": ("on", True),
        "replicas": ("3", 3),
        "max_connections": ("40", 40),
        "idle_timeout": ("3m", 180.0),
        **{name: (str(pem), pem) for name in ("cert", "key", "cacert")},
        "client_names": ("system:kube-scheduler, scheduler.example", ("system:kube-scheduler", "scheduler.example")),
        "source": ("prometheus=http://a:9090, edge:remote-write=:0", ["prometheus", "edge"]),
        "metrics": ("cpu:mean:5m, load", ("cpu:mean:5m", "load")),
        "source_config": (str(tmp_path / "sources.yaml"), tmp_path / "sources.yaml"),
        **{f"remote_write_{name}": (str(pem), pem) for name in ("cert", "key", "token")},
        **{f"bus_{name}": (str(pem), pem) for name in ("credentials", "token", "cacert", "cert", "key")},
        "sinks": (str(tmp_path / "sources.yaml"), tmp_path / "sources.yaml"),
        "agents": (str(tmp_path / "sources.yaml"), tmp_path / "sources.yaml"),
        "cluster_name": ("prod-1", "prod-1"),
        "only": ("telemetry", "telemetry"),
        "extension_timeout": ("500ms", 0.5),
        "card_score": ("spread", CardScore.SPREAD),
        "balanced_resource": ("gpu.intel.com/tiles", "gpu.intel.com/tiles"),
        "allowlist": ("on", True),
        "denylist": ("on", True),
        "one_start": ("on", True),
        "cards": ("off", False),
        "allocations": ("on", True),
        "outcomes": ("on", True),
        "annotations": ("on", True),
        "write_annotations": ("on", True),
        "annotation_names": ("a, b", ("a", "b")),
        "annotation_prefix": ("example.com/", "example.com/"),
        "annotation_lifetime": ("1h", 3600.0),
        "card_metrics": ("7", 7),
    }
    for file in ("pem", "sources.yaml"):
        (tmp_path / file).touch()
    # Policies come from a directory or from a cluster, so --kubeconfig has its own test.
    of_labels = {
        *("overwrite_labels", "breaker", "breaker_all", "label_rate", "label_rate_all", "flap_budget", "new_bus_wait")
    }
    assert set(given) | {"kubeconfig", "node_resource"} | of_labels == {field.name for field in fields(Settings)}
    settings = load_settings("run all", {name: text for name, (text, _) in given.items()})
    assert settings.source is not None
    found = {name: getattr(settings, name) for name in given} | {"source": [spec.name for spec in settings.source]}
    assert found == {name: value for name, (_, value) in given.items()}


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
        ("cluster_name", "my cluster", "DNS subdomain"),
        ("log_format", "xml", "must be auto, json or console"),
        ("log_level", "verbose", "must be debug, info, warning or error"),
    ],
)
def test_an_invalid_value_is_refused_with_the_reason(tmp_path: Path, name: str, value: str, reason: str) -> None:
    ((setting, found),) = mistakes("run all", {"policies": str(tmp_path), name: value})
    assert setting == flag(name)
    assert reason in found


def test_all_errors_are_reported_together() -> None:
    found = mistakes("run all", {"stale_after": "3h", "log_level": "loud", "policies": "/nowhere/at/all"})
    assert [setting for setting, _ in found] == ["--stale-after", "--log-level", "--policies"]


def test_an_error_names_flag_variable_value_and_reason() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings("run extender", {"stale_after": "3h"})
    assert [str(mistake) for mistake in caught.value.mistakes] == [
        "--stale-after (TAS_STALE_AFTER) = '3h': must be at most 1h"
    ]


@pytest.mark.parametrize("command", ["run all", "run policies", "up"])
def test_the_directory_of_policies_must_be_given_and_exist(tmp_path: Path, command: str) -> None:
    (tmp_path / "file").write_text("")
    expected = "must be given: the directory of TASPolicy files"
    expected += ", or --kubeconfig for a cluster" if command == "run all" else ""
    assert mistakes(command, {}) == [("--policies", expected)]
    assert mistakes(command, {"policies": str(tmp_path / "no")}) == [("--policies", "does not exist")]
    assert mistakes(command, {"policies": str(tmp_path / "file")}) == [("--policies", "is not a directory")]


def test_policies_come_from_a_directory_or_from_a_cluster(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text("{}")
    assert load_settings("run all", {"kubeconfig": str(file)}).kubeconfig == file
    assert load_settings("run all", {"kubeconfig": "in-cluster"}).kubeconfig == "in-cluster"
    assert load_settings("run watch", {}).kubeconfig == "in-cluster"
    both = {"kubeconfig": str(file), "policies": str(tmp_path)}
    ((setting, reason),) = mistakes("run all", both)
    assert setting == "--kubeconfig"
    assert reason.startswith("cannot be combined with --policies")


def test_an_inventory_of_nothing_is_refused() -> None:
    assert not load_settings("run inventory", {"cards": "off", "allocations": "on"}).cards
    ((setting, reason),) = mistakes("run inventory", {"cards": "off"})
    assert setting == "--cards"
    assert reason.startswith("needs --allocations on")


def test_annotations_are_either_read_or_written() -> None:
    given = {"kubeconfig": "in-cluster", "cards": "off", "annotations": "on"}
    assert load_settings("run inventory", given).annotations
    with pytest.raises(SettingsError) as error:
        load_settings("run inventory", given | {"write_annotations": "on"})
    reasons = [each.reason for each in error.value.mistakes]
    assert [reason.split(" on")[0] for reason in reasons] == [
        "needs --allocations",
        "cannot be combined with --annotations",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("annotation_prefix", "example.com"),
        ("annotation_prefix", "Example/"),
        ("annotation_names", "a.b"),
        ("annotation_names", "a,"),
        ("annotation_lifetime", "25h"),
        ("annotation_lifetime", "-1s"),
    ],
)
def test_a_wrong_name_or_age_of_annotations_is_refused(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as error:
        load_settings("run inventory", {"kubeconfig": "in-cluster", name: value})
    assert [each.value for each in error.value.mistakes] == [repr(value)]


@pytest.mark.parametrize("value", ["cpu:mean:5m,disk used", "a.b", "load,"])
def test_a_name_that_no_sample_can_have_is_refused_as_a_metric(value: str) -> None:
    with pytest.raises(SettingsError) as error:
        load_settings("run windows", {"metrics": value})
    (mistake,) = error.value.mistakes
    assert (mistake.setting, mistake.value) == ("--metrics (TAS_METRICS)", repr(value))


@pytest.mark.parametrize(("name", "expected"), [("no", "does not exist"), (".", "is not a readable file")])
def test_an_unreadable_kubeconfig_is_refused(tmp_path: Path, name: str, expected: str) -> None:
    assert mistakes("run watch", {"kubeconfig": str(tmp_path / name)}) == [("--kubeconfig", expected)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("off", None),
        ("30%,10", DefaultLimit(30, 10)),
        ("0%,1", DefaultLimit(0, 1)),
        ("100%,5000", DefaultLimit(100, 5000)),
    ],
)
def test_the_limit_of_a_breaker_is_a_percentage_and_a_number_of_nodes(
    tmp_path: Path, text: str, expected: DefaultLimit | None
) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text("{}")
    assert load_settings("run labels", {"kubeconfig": str(file), "breaker": text}).breaker == expected
    assert load_settings("run labels", {"kubeconfig": str(file)}).breaker_all == DefaultLimit(50, 20)


@pytest.mark.parametrize(
    "text", ["30", "30%", "%,1", "30,10", "101%,1", "30%,0", "30%,5001", "30%,x", "-1%,5", "30% ,10"]
)
def test_another_limit_of_a_breaker_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text("{}")
    ((setting, _),) = mistakes("run labels", {"kubeconfig": str(file), "breaker_all": text})
    assert setting == "--breaker-all"


@pytest.mark.parametrize(("text", "seconds"), [("0", 0.0), ("0s", 0.0), ("500ms", 0.5), ("1m", 60.0)])
def test_the_wait_on_a_new_bus_may_be_nothing(tmp_path: Path, text: str, seconds: float) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text("{}")
    assert load_settings("run all", {"kubeconfig": str(file), "new_bus_wait": text}).new_bus_wait == seconds
    assert load_settings("run labels", {"kubeconfig": str(file)}).new_bus_wait == IN_FLIGHT_SECONDS
    ((setting, _),) = mistakes("run labels", {"kubeconfig": str(file), "new_bus_wait": "-1s"})
    assert setting == "--new-bus-wait"


def test_labels_that_may_be_overwritten_are_keys_without_a_prefix(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text("{}")
    given = {"kubeconfig": str(file)}
    assert load_settings("run all", given).overwrite_labels is None
    found = load_settings("run labels", given | {"overwrite_labels": "disktype, gold.v2"}).overwrite_labels
    assert found == ("disktype", "gold.v2")
    assert mistakes("run all", {"policies": str(tmp_path), "overwrite_labels": "gold"}) == [
        ("--overwrite-labels", "needs --kubeconfig")
    ]
    for wrong in ("", "gold,", "kubernetes.io/hostname", "-gold", "x" * 64):
        ((setting, reason),) = mistakes("run labels", given | {"overwrite_labels": wrong})
        assert setting == "--overwrite-labels"
        assert reason.startswith("must be")


def test_the_node_resource_is_off_by_default_and_a_whole_number(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text("{}")
    assert load_settings("run all", {"kubeconfig": str(file)}).node_resource == 0
    assert load_settings("run resources", {"node_resource": "5"}).node_resource == 5
    assert load_settings("run resources", {}).node_resource == 1000
    nothing = [("--node-resource", "must be at least 1")]
    assert mistakes("run resources", {"node_resource": "0"}) == nothing
    assert mistakes("run all", {"policies": str(tmp_path), "node_resource": "1"}) == [
        ("--node-resource", "needs --kubeconfig")
    ]
    for wrong in ("-1", "1k", "1.5", "many", "9" * 13):
        ((setting, reason),) = mistakes("run resources", {"node_resource": wrong})
        assert setting == "--node-resource"
        assert reason.startswith("must be a whole number")


def test_a_worker_that_reads_no_policies_needs_no_directory() -> None:
    assert load_settings("run materialize", {}).policies is None


def test_the_extender_and_its_health_need_different_addresses(tmp_path: Path) -> None:
    given = {"policies": str(tmp_path), "listen": "127.0.0.1:9002"}
    ((setting, reason),) = mistakes("run all", given)
    assert (setting, reason) == ("--health-listen", "must not be the extender's address (--listen)")
    assert load_settings("run all", {**given, "listen": "127.0.0.1:0", "health_listen": "127.0.0.1:0"})


def test_an_embedded_server_has_one_replica(tmp_path: Path) -> None:
    ((setting, _),) = mistakes("run all", {"policies": str(tmp_path), "replicas": "3"})
    assert setting == "--replicas"
    assert load_settings("run all", {"policies": str(tmp_path), "replicas": "3", "bus": "nats://h"}).replicas == 3


def test_a_store_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert mistakes("run bus", {"store": str(tmp_path / "file")}) == [("--store", "is not a directory")]


def test_each_command_has_its_own_default_health_port() -> None:
    addresses = [load_settings(command, REQUIRED).health_listen for command in RUN if command != "run all"]
    assert len(set(addresses)) == len(addresses)


def test_clients_use_the_running_bus_by_default() -> None:
    assert load_settings("publish", {}).bus is None
    assert load_settings("run materialize", {}).bus is None


@pytest.mark.parametrize("command", COMMANDS)
def test_every_default_is_valid(command: str) -> None:
    assert any(True for _ in settings_of(command))
    given = REQUIRED
    settings = load_settings(command, given)
    for name, setting in settings_of(command):
        default = setting.default_for(command)
        assert default is None or name in given or getattr(settings, name) == setting.parse(default)
        assert setting.shown_default(command)


def test_every_setting_belongs_to_existing_commands() -> None:
    for name, setting in every_setting():
        assert setting.commands, name
        assert set(setting.commands) <= set(COMMANDS), name
        assert set(setting.default_of) <= set(setting.commands), name


def test_no_variable_is_also_set_by_kubernetes() -> None:
    """A service named `tas-bus` puts TAS_BUS_PORT and TAS_BUS_SERVICE_HOST into each pod of its namespace."""
    for name, _ in every_setting():
        assert not re.search(r"_(PORT|SERVICE_HOST|SERVICE_PORT)$", variable(name)) or name == "embedded_port"


def test_the_page_lists_every_setting() -> None:
    page = settings_page()
    for name, setting in every_setting():
        assert f"`{flag(name)}`<br>`{variable(name)}`" in page
        assert setting.help in page
    assert Path("docs/reference/settings.md").read_text() == page
