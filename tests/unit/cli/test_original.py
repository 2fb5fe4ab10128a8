"""Command lines of the original TAS, as in its documentation and its deployment."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.loading import every_setting
from cli.options import settings_command
from workers.http.address import Address
from workers.process.log_form import LogLevel
from workers.registry import workers_of_all
from workers.settings import Settings, variable


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A file for each flag that needs one, by the flag's name."""
    for name in ("tls.crt", "tls.key", "ca.crt", "config"):
        (tmp_path / name).touch()
    return {
        "cert": str(tmp_path / "tls.crt"),
        "key": str(tmp_path / "tls.key"),
        "cacert": str(tmp_path / "ca.crt"),
        "kubeConfig": str(tmp_path / "config"),
    }


def run(command: str, *arguments: str, **variables: str) -> tuple[Result, list[Settings]]:
    loaded: list[Settings] = []

    def body(settings: Settings) -> int:
        """Keeps the settings."""
        loaded.append(settings)
        return 0

    runner = CliRunner(env={variable(name): variables.get(variable(name)) for name, _ in every_setting()})
    made = settings_command("made", settings_as=command)(body)
    return runner.invoke(made, arguments), loaded


def loaded(command: str, *arguments: str, **variables: str) -> Settings:
    result, settings = run(command, *arguments, **variables)
    assert result.exit_code == 0, result.output
    return settings[0]


@pytest.mark.parametrize("dashes", ["-", "--"])
@pytest.mark.parametrize("joined", [True, False], ids=["=", "space"])
def test_flags_have_one_dash_or_two_and_a_space_or_an_equals_sign(
    files: dict[str, str], dashes: str, joined: bool
) -> None:
    texts = files | {"port": "9443", "syncPeriod": "2s", "v": "4"}
    words = [[f"{dashes}{name}={text}"] if joined else [f"{dashes}{name}", text] for name, text in texts.items()]

    settings = loaded("run all", *(word for pair in words for word in pair))

    assert [settings.cert, settings.key, settings.cacert] == [Path(files[name]) for name in ("cert", "key", "cacert")]
    assert settings.listen == Address("", 9443)
    assert settings.period == 2.0
    assert settings.kubeconfig == Path(files["kubeConfig"])
    assert settings.log_level is LogLevel.DEBUG


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the account of a pod in which the command runs."""
    account = tmp_path / "account"
    account.mkdir()
    for name in ("token", "ca.crt"):
        (account / name).touch()
    monkeypatch.setattr("workers.kubernetes.credentials.SERVICE_ACCOUNT", account)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return account


DEPLOYED = "--syncPeriod=2s --cert={cert} --key={key} --cacert={cacert} --v=2"
"""The arguments in the original's deployment, with other files."""


@pytest.mark.usefixtures("pod")
def test_the_command_of_the_originals_deployment(files: dict[str, str]) -> None:
    settings = loaded("run all", *DEPLOYED.format(**files).split())

    assert (settings.period, settings.log_level) == (2.0, LogLevel.INFO)
    assert settings.kubeconfig == "in-cluster"
    assert settings.listen == Address("", 9001)
    assert workers_of_all(settings) == (
        "materialize",
        "windows",
        "watch",
        "status",
        "evaluate",
        "extender",
        "labels",
        "marks",
        "collect",
        "events",
    )


@pytest.mark.usefixtures("pod")
def test_in_a_pod_a_given_address_counts(files: dict[str, str]) -> None:
    command = DEPLOYED.format(**files).split()

    assert loaded("run all", *command, "--port=9443").listen == Address("", 9443)
    assert loaded("run all", *command, TAS_LISTEN="127.0.0.1:80").listen == Address("127.0.0.1", 80)


@pytest.mark.parametrize("missing", ["token", "ca.crt", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"])
def test_outside_of_a_pod_the_command_of_the_original_names_no_cluster(
    files: dict[str, str], pod: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    (pod / missing).unlink(missing_ok=True)
    monkeypatch.delenv(missing, raising=False)

    result, settings = run("run all", *DEPLOYED.format(**files).split())

    assert (result.exit_code, settings) == (2, [])
    assert "--policies (TAS_POLICIES): must be given" in result.stderr


@pytest.mark.usefixtures("pod")
def test_nothing_is_taken_from_the_pod_without_the_flag_of_the_original(files: dict[str, str]) -> None:
    """As in the pod of a CI job."""
    policies = str(Path(files["cert"]).parent)
    tls = {f"TAS_{name.upper()}": files[name] for name in ("cert", "key", "cacert")}
    assert run("run all", "--syncPeriod=2s", "--v=2")[0].exit_code == 2
    assert run("run all", **tls)[0].exit_code == 2
    for settings in (
        loaded("run all", *DEPLOYED.format(**files).split(), "--policies", policies),
        loaded("run all", *DEPLOYED.format(**files).split(), TAS_POLICIES=policies),
        loaded("run extender", *DEPLOYED.format(**files).split()[1:-1]),
        loaded("up", "--policies", policies),
        loaded("demo"),
    ):
        assert settings.kubeconfig is None
        assert settings.listen == Address("127.0.0.1", 9001)
    given = loaded("run all", *DEPLOYED.format(**files).split(), "--kubeConfig", files["kubeConfig"])
    assert given.kubeconfig == Path(files["kubeConfig"])
    assert given.listen == Address("127.0.0.1", 9001)


@pytest.mark.parametrize(("verbosity", "level"), [("0", "info"), ("3", "info"), ("4", "debug"), ("10", "debug")])
def test_verbosity_is_a_log_level(verbosity: str, level: str) -> None:
    assert loaded("run extender", "-v", verbosity).log_level == level


@pytest.mark.usefixtures("logging_restored")
def test_flags_without_use_for_the_extender_are_logged(files: dict[str, str]) -> None:
    flags = ("-syncPeriod", "2s", "--kubeConfig", files["kubeConfig"], "-port=9443")
    result, (settings,) = run("run extender", *flags)
    assert settings.listen == Address("", 9443)
    line = json.loads(result.stderr)
    assert (line["event"], line["level"]) == ("flags_unused", "warning")
    assert line["flags"] == ["--syncPeriod", "--kubeConfig"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--port", "9001", "--listen", ":9002"),
            "--port = '9001': cannot be combined with --listen, which is the same setting",
        ),
        (("-v=2", "--log-level", "info"), "--v = '2': cannot be combined with --log-level"),
        (("--kubeConfig", "a", "--kubeconfig", "b"), "--kubeConfig = 'a': cannot be combined with --kubeconfig"),
        (("--syncPeriod=5s", "--period=1s"), "--syncPeriod = '5s': cannot be combined with --period"),
        (("-port", "99999"), "--port = '99999': must be a port from 1 to 65535"),
        (("-port", "-1"), "--port = '-1': must be a port from 1 to 65535"),
        (("-v", "much"), "--v = 'much': must be a whole number, at least 0"),
        (("-syncPeriod", "0"), "--period (TAS_PERIOD) = '0': must be"),
        (("-cert", "/nowhere"), "--cert (TAS_CERT) = '/nowhere': does not exist"),
    ],
)
def test_a_contradicting_or_invalid_flag_is_an_error(arguments: tuple[str, ...], words: str) -> None:
    result, settings = run("run all", "--policies", "/", *arguments)
    assert result.exit_code == 2
    assert f"tas run all: {words}" in result.stderr
    assert settings == []


def test_a_flag_of_the_original_counts_before_our_variable() -> None:
    assert loaded("run extender", "--port", "9443", TAS_LISTEN=":80").listen == Address("", 9443)


def test_all_errors_are_reported_together() -> None:
    result, _ = run("run extender", "-port", "x", "--max-body", "0")
    assert len(result.stderr.splitlines()) == 2


def test_other_commands_refuse_flags_of_the_original() -> None:
    result, _ = run("run materialize", "-port", "1")
    assert result.exit_code == 2


def test_help_explains_the_flags_of_the_original() -> None:
    text = " ".join(run("run all", "--help")[0].output.split())
    assert "Flags of the original:" in text
    assert "-v, --v NUMBER --log-level info; from 4 on, debug." in text
    assert "-cert, --cert FILE" in text


CARDS = (
    "--cert={cert} --key={key} --cacert={cacert} --kubeConfig {kubeConfig} -port 9001 --v=4 "
    "--enableAllowlist --enableDenylist=T --balancedResource tiles"
)


def test_the_command_line_of_gpu_aware_scheduling(files: dict[str, str]) -> None:
    settings = loaded("run gpu", *CARDS.format(**files).split())
    assert settings.listen == Address("", 9001)
    assert (settings.cert, settings.kubeconfig) == (Path(files["cert"]), Path(files["kubeConfig"]))
    assert (settings.allowlist, settings.denylist) == (True, True)
    assert settings.balanced_resource == "gpu.intel.com/tiles"
    assert settings.log_level == "debug"
    assert loaded("run gpu", "--enableAllowlist=false").allowlist is False
    plain = loaded("run gpu")
    assert (plain.allowlist, plain.denylist, plain.balanced_resource, plain.one_start) == (False, False, None, False)
    assert (plain.listen, plain.kubeconfig) == (Address("127.0.0.1", 9020), "in-cluster")


@pytest.mark.usefixtures("logging_restored")
def test_limits_of_requests_are_accepted_and_logged(files: dict[str, str]) -> None:
    result, _ = run("run gpu", "-qps", "50", "--burst=100", "--kubeConfig", files["kubeConfig"])
    assert json.loads(result.stderr)["flags"] == ["--qps", "--burst"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--enableAllowlist=maybe",), "--enableAllowlist = 'maybe': must be true or false"),
        (("--enableAllowlist", "--allowlist", "on"), "--enableAllowlist = 'true': cannot be combined with --allowlist"),
        (("--balancedResource", "a b"), "--balanced-resource (TAS_BALANCED_RESOURCE) = 'a b': must be the name of a"),
        (("--card-score", "best"), "--card-score (TAS_CARD_SCORE) = 'best': must be pack, spread or prefer"),
    ],
)
def test_an_invalid_flag_about_cards_is_an_error(files: dict[str, str], arguments: tuple[str, ...], words: str) -> None:
    result, settings = run("run gpu", "--kubeConfig", files["kubeConfig"], *arguments)
    assert (result.exit_code, settings) == (2, [])
    assert f"tas run gpu: {words}" in result.stderr


def test_flags_about_cards_are_those_of_the_other_original() -> None:
    assert run("run gpu", "--syncPeriod", "2s")[0].exit_code == 2
    assert run("run all", "--policies", "/", "--enableAllowlist")[0].exit_code == 2
