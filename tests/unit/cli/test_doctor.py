"""`tas doctor`: the files of the scheduler, and the output."""

import asyncio
import base64
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import click
import msgspec
import pytest
from click.testing import CliRunner

from bus.buckets import Bucket
from bus.connection import Bus
from bus.entry import RawEntry
from bus.errors import UnavailableError
from bus.kinds import POLICY_RECORDS
from bus.records.policies import PolicyRecord
from cli import cli
from cli.doctor.bus_facts import BusRead, Stored, settled
from cli.doctor.cluster_facts import workload_of
from cli.doctor.cluster_read import unread
from cli.doctor.examination import facts_of
from cli.doctor.extender_probe import ExtenderRead
from cli.doctor.output import print_findings
from cli.doctor.probes import probed
from cli.doctor.requests import offset_of
from cli.doctor.scheduler_files import SchedulerFiles, read_scheduler
from tas.diagnosis.clocks import Offset
from tas.diagnosis.finding import Missing, Severity, finding, ok, unknown
from tas.diagnosis.metrics import MetricFacts
from tas.diagnosis.owner import Owner
from tas.diagnosis.policies import StoredPolicy
from tas.diagnosis.workloads import Expression, Workload
from tas.policy.policy import PolicyKey
from tests.unit.tas.configuring.samples import KUBEADM
from tests.unit.tas.diagnosis.samples import policy
from workers.kubernetes.resources import PlacementPod

CONFIGURATION = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
extenders:
  - urlPrefix: https://tas:9001/scheduler
    filterVerb: filter
    enableHTTPS: true
    managedResources: [{name: telemetry/scheduling, ignoredByScheduler: true}]
    tlsConfig: {caFile: /host/certs/ca.crt, certFile: /host/certs/client.crt, keyFile: /absent}
"""


def files(folder: Path, manifest: str, configuration: str = CONFIGURATION) -> SchedulerFiles:
    (folder / "scheduler.yaml").write_text(manifest)
    (folder / "config.yaml").write_text(configuration)
    for name in ("ca.crt", "client.crt"):
        (folder / name).write_text(f"PEM of {name}")
    return read_scheduler(folder / "scheduler.yaml", None)


def configured(folder: Path) -> str:
    """The manifest of kubeadm with a configuration, certificates and a proxy."""
    head, _, tail = KUBEADM.partition("    - --leader-elect=true\n")
    assert tail
    mounts = "    - {mountPath: /c.yaml, name: c, readOnly: true}\n    - {mountPath: /host/certs, name: d}\n"
    tail = tail.replace(
        "    volumeMounts:\n", f"    env:\n    - {{name: HTTPS_PROXY, value: http://p}}\n    volumeMounts:\n{mounts}", 1
    )
    volumes = (
        f"  - {{name: c, hostPath: {{path: {folder}/config.yaml}}}}\n  - {{name: d, hostPath: {{path: {folder}}}}}\n"
    )
    tail = tail.replace("  volumes:\n", f"  volumes:\n{volumes}", 1)
    return f"{head}    - --leader-elect=true\n    - --config=/c.yaml\n{tail}"


def test_the_manifest_leads_to_the_configuration_and_the_certificates_on_this_machine(tmp_path: Path) -> None:
    found = files(tmp_path, configured(tmp_path))
    assert found.origin == str(tmp_path / "config.yaml")
    assert found.url == "https://tas:9001/scheduler"
    assert found.minor == 28
    assert found.environment == {"HTTPS_PROXY": "http://p"}
    assert found.tls is not None
    assert found.tls.authority == "PEM of ca.crt"
    assert found.tls.cert == tmp_path / "client.crt"
    assert found.tls.key is None


def test_data_overrides_the_file_of_the_authority(tmp_path: Path) -> None:
    data = base64.b64encode(b"PEM in data").decode()
    found = files(tmp_path, configured(tmp_path), CONFIGURATION.replace("{caFile:", f"{{caData: {data}, caFile:"))
    assert found.tls is not None
    assert found.tls.authority == "PEM in data"


def test_a_scheduler_without_a_configuration_has_no_extender(tmp_path: Path) -> None:
    found = files(tmp_path, KUBEADM)
    assert found.configuration == {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
    }
    assert found.origin.endswith("scheduler.yaml (without --config)")


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        ("kind: Service", "kind = 'Service'"),
        ("a: [", "no YAML"),
        (f"{KUBEADM}---\n{KUBEADM}", "has 2 documents, must have one"),
        ("", "has 0 documents"),
        (KUBEADM.replace("    - --leader-elect=true\n", "    - --policy-configmap=x\n"), "reads a Policy"),
        (KUBEADM.replace("    - --leader-elect=true\n", "    - --config=/elsewhere\n"), "/elsewhere is not mounted"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path: Path, manifest: str, reason: str) -> None:
    found = files(tmp_path, manifest)
    assert isinstance(found.configuration, Missing)
    assert reason in found.configuration.reason
    assert found.configuration.mend


def test_without_the_files_nothing_is_known(tmp_path: Path) -> None:
    found = read_scheduler(tmp_path / "absent", None)
    assert isinstance(found.configuration, Missing)
    assert isinstance(found.environment, Missing)
    given = tmp_path / "config.yaml"
    given.write_text(CONFIGURATION)
    assert read_scheduler(tmp_path / "absent", given).url == "https://tas:9001/scheduler"


def stored(*names: str, at: float = 0.0) -> Stored:
    policies = [StoredPolicy(policy=policy(name)) for name in names]
    return Stored(policies, samples={}, nodes={}, sources={}, held=frozenset(), cluster=True, at=at)


def test_samples_are_judged_by_the_time_when_they_were_read() -> None:
    """The lists of a large cluster are read later, and take up to a minute."""
    none = Missing("not asked")
    found = facts_of(
        bus=BusRead(none, Offset(ahead=100.0), stored(at=1000.0), none),
        cluster=unread(none, none, is_asked=True),
        files=SchedulerFiles(none, "", None, none, None, None),
        extender=ExtenderRead("", none, none, "", none, none),
        changing=frozenset(),
        own_environment={},
        stale_after=60.0,
        now=1060.0,
    )
    assert isinstance(found.metrics, MetricFacts)
    assert found.metrics.now == 1100.0


class PolicyBus:
    """A bus that has other policies at each read; the last ones stay."""

    def __init__(self, *reads: set[str] | UnavailableError) -> None:
        self.left = list(reads)

    def on_invalid(self, *_: Any) -> None:
        raise AssertionError

    async def entries(self, _bucket: Bucket, _keys: Collection[str]) -> list[RawEntry]:
        names = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if isinstance(names, UnavailableError):
            raise names
        return [
            RawEntry(POLICY_RECORDS.key(PolicyKey("default", name)), POLICY_RECORDS.encode(record_of(name)), 1, 0.0)
            for name in names
        ]


def record_of(name: str) -> PolicyRecord:
    return PolicyRecord(policy=policy(name), uid="u", generation=1, problems=())


@pytest.mark.parametrize(
    ("before", "in_api", "later", "changing"),
    [
        ({"a"}, {"a"}, [{"a"}], set()),
        ({"a"}, {"a", "new"}, [{"a"}, UnavailableError("slow"), {"a", "new"}], {"new"}),
        ({"a", "old"}, {"a"}, [{"a", "old"}, {"a"}], {"old"}),
        ({"a", "stays"}, {"a", "never", "new"}, [{"a", "stays", "new"}], {"new"}),
    ],
    ids=["alike", "created", "deleted", "differences"],
)
async def test_only_a_policy_that_soon_is_in_both_was_changing(
    monkeypatch: pytest.MonkeyPatch, before: set[str], in_api: set[str], later: list[Any], changing: set[str]
) -> None:
    monkeypatch.setattr("cli.doctor.bus_facts.MIRROR_POLL_SECONDS", 0.0)
    if "never" in in_api:
        monkeypatch.setattr("cli.doctor.bus_facts.MIRROR_SECONDS", 0.01)
    bus = PolicyBus(*later)
    keys = frozenset(PolicyKey("default", name) for name in in_api)
    found = await settled(cast("Bus", bus), stored(*before), keys)
    assert {key.name for key in found} == changing


def test_the_date_of_an_answer_is_a_clock_of_half_a_second_and_the_time_of_the_question() -> None:
    assert offset_of("Thu, 01 Jan 1970 00:01:40 GMT", 90.0, 91.0) == Offset(ahead=10.0, doubt=1.0)
    assert isinstance(offset_of("", 0.0, 0.0), Missing)


async def test_a_time_limit_is_named_that_was_exceeded() -> None:
    async def request() -> None:
        raise TimeoutError

    async def forever() -> None:
        await asyncio.Event().wait()

    assert await probed(request()) == Missing("no answer within 5 s")
    assert await probed(forever(), seconds=0.01) == Missing("no answer within 0.01 s")


def test_the_worst_is_first_and_one_reason_is_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    absent = Missing("no bus", "start one")
    print_findings(
        [
            ok("bus.version", "new enough"),
            unknown("bus.sync", absent),
            unknown("bus.streams", absent),
            finding("bus.reached", Severity.ERROR, "refused", "start one", run="tas run all"),
        ],
        with_ok=False,
    )
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines[1:3]] == [["error", "bus.reached"], ["why:", "without"]]
    assert lines[3:5] == [["mend:", "start", "one"], ["run:", "tas", "run", "all"]]
    assert ["unknown", "bus.sync", "not", "checked:", "no", "bus"] in lines
    assert ["bus.streams", "mend:", "start", "one"] in lines
    assert lines[-1] == ["1", "error,", "2", "unknown,", "1", "ok"]
    print_findings([ok("bus.version", "new enough")], with_ok=True)
    assert "new enough" in capsys.readouterr().out


def test_all_checks_of_a_group_are_printed_as_the_group(capsys: pytest.CaptureFixture[str]) -> None:
    absent = Missing("no bus")
    rights = unknown("rights.accounts", absent)
    print_findings([unknown("bus.sync", absent), unknown("bus.streams", absent), rights], with_ok=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:3] == [["unknown", "bus", "not", "checked:", "no", "bus"], ["rights.accounts"]]
    print_findings([unknown("bus.sync", absent), unknown("bus.streams", Missing("other"))], with_ok=False)
    assert {"bus.sync", "bus.streams"} <= set(capsys.readouterr().out.split())


def placement(spec: dict[str, Any], **metadata: Any) -> Workload:
    """A pod as the API server sends it."""
    pod = {"metadata": {"name": "web-5d-x", "namespace": "default"} | metadata, "spec": spec}
    return workload_of(msgspec.json.decode(msgspec.json.encode(pod), type=PlacementPod))


def test_a_pod_is_read_with_what_matters_for_placement() -> None:
    one, two = (
        {"matchExpressions": [{"key": key, "operator": "NotIn", "values": ["violating"]}]} for key in ("demo", "other")
    )
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [one, two, {"matchFields": []}]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": one}],
    }
    spec = {
        "affinity": {"nodeAffinity": affinity, "podAffinity": {"x": 1}},
        "containers": [
            {"image": "a", "resources": {"limits": {"cpu": "1"}}},
            {"resources": {"requests": {"mem": "2"}}},
        ],
        "initContainers": [{"resources": {"limits": {"telemetry/scheduling": "1"}}}],
        "nodeSelector": {"zone": "a"},
    }
    owner = {"kind": "ReplicaSet", "name": "web-5d", "controller": True}
    labels = {"telemetry-policy": "demo", "pod-template-hash": "5d"}
    found = placement(spec, labels=labels, ownerReferences=[{"kind": "Other", "name": "o"}, owner])
    excluding = Expression("demo", "NotIn", ("violating",))
    zone = Expression("zone", "In", ("a",))
    assert found == Workload(
        namespace="default",
        name="web-5d-x",
        owner=Owner("default", "Deployment", "web"),
        policy="demo",
        resources=frozenset({"cpu", "mem", "telemetry/scheduling"}),
        required=((excluding, zone), (excluding._replace(key="other"), zone), (zone,)),
        preferred=(excluding,),
    )


def test_a_pod_without_an_affinity_requires_its_selector_or_nothing() -> None:
    assert placement({"nodeSelector": {"zone": "a"}}).required == ((Expression("zone", "In", ("a",)),),)
    without: list[dict[str, Any]] = [{}, {"affinity": {}}, {"affinity": {"nodeAffinity": {}}}]
    for spec in without:
        assert placement(spec).required == ()


@pytest.mark.parametrize("arguments", [("--skip", "bus.nothing"), ("--bus", "http://x"), ("--nothing",)])
def test_a_wrong_flag_is_an_exit_code_of_2(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli, ["doctor", *arguments], prog_name="tas")
    assert done.exit_code == 2
    assert isinstance(done.exception, SystemExit | click.ClickException)
