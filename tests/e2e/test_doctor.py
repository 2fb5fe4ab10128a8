"""`tas doctor` on an installation that is broken in each way: exactly that is found, its command mends it, it is gone.

What other programs do in between is in test_doctor_between.py, and buses of other kinds in test_doctor_bus.py.
"""

import json
import select
import signal
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import yaml

from bus.buckets import REFUSALS, configuration
from bus.connection import Bus
from bus.errors import BusError
from bus.scrapes import publish_scrape
from tas.samples.sample import Scrape
from tas.values.quantity import parse_quantity
from tests.certificates import Authority
from tests.integration.servers import answered, eventually

from .api import Object
from .cluster import NODES
from .installation import (
    MANIFEST,
    METRIC,
    POLICY,
    SERVICE,
    UNREACHED,
    Findings,
    Installation,
    affinity,
    descheduler,
    policy,
    workload,
)
from .nats import delete_stream
from .processes import free_ports, running, until
from .product import TAS
from .test_tls import USER

NOTHING = parse_quantity("0")

WORKLOADS = {f"workloads.{name}" for name in ("affinity", "daemonset", "key", "label", "policy", "resource")}
DESCHEDULERS = {f"descheduler.{name}" for name in ("nodes", "present", "resource", "version")}
OF_A_USER = (
    WORKLOADS
    | DESCHEDULERS
    | {
        "clocks.nodes",
        "policies.mirrored",
        "policies.served",
        "rights.accounts",
        "scheduler.alike",
    }
)
"""What only somebody knows who may read the cluster."""

OF_A_BUS = (
    WORKLOADS
    | DESCHEDULERS
    | {
        *(
            f"bus.{name}"
            for name in ("consumers", "copies", "credentials", "limits", "replicas", "streams", "sync", "version")
        ),
        *(f"metrics.{name}" for name in ("agree", "fresh", "late", "nodes", "present", "sources", "values")),
        *(f"policies.{name}" for name in ("any", "frozen", "label", "mirrored", "valid", "written")),
        *(f"workers.{name}" for name in ("asked", "behind", "clocks", "concerns", "expires", "ready", "running")),
        "bus.room",
        "clocks.bus",
        "clocks.samples",
    }
)
"""What is not known without the bus."""


def severities(found: Findings) -> dict[str, set[str]]:
    return {check: {each["severity"] for each in findings} for check, findings in found.items()}


def change_environment(manifest: Path, *variables: Object) -> None:
    """Sets the environment of the scheduler in its manifest."""
    pod = yaml.safe_load(manifest.read_text())
    pod["spec"]["containers"][0]["env"] = variables
    manifest.write_text(json.dumps(pod))


class Connecting(socketserver.StreamRequestHandler):
    """A proxy that connects its clients to the port that they name, on this machine whatever host they name."""

    def handle(self) -> None:
        port = int(self.rfile.readline().split()[1].rpartition(b":")[2])
        while self.rfile.readline().strip():
            pass
        with socket.create_connection(("127.0.0.1", port)) as server:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            others = {self.connection: server, server: self.connection}
            while True:
                for each in select.select(list(others), [], [])[0]:
                    data = each.recv(1 << 16)
                    if not data:
                        return
                    others[each].sendall(data)


@contextmanager
def connecting_proxy() -> Iterator[str]:
    """Runs such a proxy, and returns its URL."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connecting) as proxy:
        proxy.daemon_threads = True
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{proxy.server_address[1]}"
        proxy.shutdown()


# The scheduler and certificates


async def test_a_scheduler_that_is_not_configured(site: Installation) -> None:
    await site.has()
    assert "client_refused" not in site.product.process.log.read_text()
    site.manifest.write_text(MANIFEST)
    unknown = ("extender.expires", "extender.reached", "proxy.scheduler", "workloads.resource", *UNREACHED)
    found = await site.has("scheduler.configured", *unknown)
    site.configure(found["scheduler.configured"][0]["run"])
    await site.has()


async def test_the_scheduler_of_another_control_plane_node(site: Installation) -> None:
    await site.has()
    site.control_plane(NODES[1])
    found = await site.has("scheduler.alike")
    assert found["scheduler.alike"][0]["what"] == f"{NODES[1]}: no scheduler"
    site.control_plane(NODES[1], is_one=False)
    await site.has()


FIELDS: dict[str, Object] = {
    "scheduler.verifies": {"tlsConfig": {"certFile": "/host/certs/client.crt", "keyFile": "/host/certs/client.key"}},
    "scheduler.weight": {"weight": 1},
    "scheduler.names": {"nodeCacheCapable": False},
    "scheduler.outage": {"ignorable": False, "managedResources": []},
}
"""Fields of the extender's entry, by check. tests/unit/tas/diagnosis/test_scheduler.py has each alone."""


async def test_fields_of_the_configuration(site: Installation) -> None:
    await site.has()
    text = site.config.read_text()
    for fields in FIELDS.values():
        site.change_entry(**fields)
    found = await site.has(*FIELDS, "extender.ca")
    assert found["extender.ca"][0]["severity"] == "unknown"
    # The commands of the four findings are the same but for the weight.
    site.configure(found["scheduler.names"][0]["run"])
    assert yaml.safe_load(site.config.read_text()) == yaml.safe_load(text)
    await site.has()


async def test_a_configuration_that_the_scheduler_does_not_read(site: Installation) -> None:
    await site.has()
    text = site.config.read_text()
    site.config.write_text(text.replace("config.k8s.io/v1", "config.k8s.io/v1beta3"))
    found = await site.has("scheduler.valid")
    site.configure(found["scheduler.valid"][0]["run"])
    await site.has()


async def test_certificates_that_do_not_match(site: Installation) -> None:
    await site.has()
    # The scheduler trusts another authority.
    (site.certificates / "ca.crt").write_bytes(Authority("another").certificate)
    found = await site.has("extender.ca", *UNREACHED)
    site.configure(found["extender.ca"][0]["run"])
    await site.has()
    # It has a certificate of another authority.
    stranger = Authority("another").client(USER)
    (site.certificates / "client.crt").write_bytes(stranger.certificate)
    (site.certificates / "client.key").write_bytes(stranger.key)
    found = await site.has("extender.client", "extender.expires", "clocks.extender", "proxy.extender")
    site.configure(found["extender.client"][0]["run"])
    await site.has()


async def test_certificates_that_are_to_be_renewed(site: Installation) -> None:
    await site.has()
    folder = site.files.folder
    # Both certificates expire soon.
    site.run(f"tas certs renew {folder} --force --days 9")
    site.configure("tas configure -cert client.crt -key client.key --cacert ca.crt")
    expected = {f"the certificate of the {whose} expires in 9 days" for whose in ("extender", "scheduler")}

    async def are_found() -> bool:
        """The extender reads its files again after a second."""
        return {each["what"] for each in (await site.has("extender.expires"))["extender.expires"]} == expected

    await eventually(are_found)
    (run,) = {each["run"] for each in (await site.doctor())["extender.expires"]}
    site.run(run.replace("DIR", str(folder)))
    site.configure("tas configure -cert client.crt -key client.key --cacert ca.crt")
    await site.has()


async def test_a_certificate_for_another_host(site: Installation) -> None:
    await site.has()
    folder = site.files.folder
    site.run(f"tas certs renew {folder} --server-name elsewhere")
    found = await site.has("extender.ca", *UNREACHED)
    site.run(found["extender.ca"][0]["run"].replace("DIR", str(folder)).replace("NAME", "localhost"))
    await site.has()


async def test_an_extender_that_hangs_or_that_nobody_asks(site: Installation) -> None:
    await site.has()
    # Nothing of the process works any more, also not the mirror of policies.
    site.product.process.send(signal.SIGSTOP)
    site.create(policy("another", "scheduleonmetric"))
    unknown = ("extender.asked", "extender.expires", "extender.ready", *UNREACHED)
    found = await site.has("extender.reached", "policies.mirrored", *unknown)
    assert found["policies.mirrored"][0]["what"] == f"not on the bus: {site.namespace}/another"
    site.product.process.send(signal.SIGCONT)
    await site.has("workloads.label")
    site.delete("taspolicy", "another")
    await site.has()
    # After a restart no scheduler has asked, until there is a pod.
    site.product.process.restart()
    await site.has("extender.asked")
    site.delete("pods", "--all")
    await site.has()


async def test_proxies(site: Installation) -> None:
    await site.has()
    config, manifest = site.config.read_text(), site.manifest.read_text()
    # No proxy is used for loopback, so the scheduler asks a Service, which this machine does not know.
    site.change_entry(urlPrefix=f"https://{SERVICE}:9001/scheduler")
    unknown = ("extender.expires", "extender.reached", *UNREACHED)
    await site.has(*unknown)
    proxy = {"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}
    change_environment(site.manifest, proxy)
    found = await site.has("proxy.scheduler", *unknown)
    host = found["proxy.scheduler"][0]["mend"].split()[1]
    change_environment(site.manifest, proxy, {"name": "NO_PROXY", "value": host})
    await site.has(*unknown)
    site.config.write_text(config)
    site.manifest.write_text(manifest)
    # This machine reaches the API server through a proxy.
    port = site.cluster.url.rpartition(":")[2]
    elsewhere = site.kubeconfig_at(f"kubernetes.default.svc:{port}")
    with connecting_proxy() as url:
        found = await site.has("proxy.here", flags=("--kubeconfig", str(elsewhere)), HTTPS_PROXY=url)
    assert found["proxy.here"][0]["run"].endswith("kubernetes.default.svc")
    await site.has()


# The bus


async def test_the_bus(site: Installation) -> None:
    await site.has()
    # A nats-server that does not sync each write.
    server = site.nats.process
    assert server is not None
    for interval, checks in (("2m", ["bus.sync"]), ("always", [])):
        site.nats.configure(interval)
        server.restart()
        await site.has(*checks)
    # A monitoring port that nobody serves, and one that was not given: of the default port nothing is believed.
    (unused,) = free_ports(1)
    found = await site.has("bus.sync", flags=("--bus-monitor", f"http://127.0.0.1:{unused}"))
    assert found["bus.sync"][0]["severity"] == "unknown"
    # A stream with other settings: deleted by a person, it is created again.
    async with Bus.connect(site.nats.url, name="test", streams=()) as bus:
        await bus.wait_connected()
        wrong = configuration(REFUSALS, first_sequence=10**15, replicas=1) | {"max_msgs_per_subject": 5}

        async def is_wrong() -> bool:
            try:
                await delete_stream(bus, REFUSALS.stream)
                await bus.api(f"STREAM.CREATE.{REFUSALS.stream}", wrong)
            except BusError:  # a worker has created it in between, or the server is too busy
                return False
            return True

        await eventually(is_wrong)
        found = await site.has("bus.streams")
        assert found["bus.streams"][0]["run"] == f"nats --server {site.nats.url} stream rm {REFUSALS.stream}"
        await delete_stream(bus, REFUSALS.stream)
    await site.has()


# The cluster


async def test_policies_and_metrics(site: Installation) -> None:
    await site.has()
    # Two namespaces want one label.
    other = site.cluster.create_namespace()
    site.create(policy(POLICY, "deschedule"), other)
    found = await site.has("policies.label")
    assert f"name: {POLICY}" in site.run(found["policies.label"][0]["run"])
    site.delete("taspolicy", POLICY, other)
    await site.has()
    # A rule that has no effect.
    ignored = {
        "rules": [{"metricname": METRIC, "operator": "LessThan"}, {"metricname": METRIC, "operator": "LessThan"}]
    }
    site.patch_policy({"strategies": {"scheduleonmetric": ignored}})
    found = await site.has("policies.valid")
    assert "scheduleonmetric" in site.run(found["policies.valid"][0]["run"])
    site.patch_policy({"strategies": {"scheduleonmetric": None}})
    await site.has()
    # The metric has the name of node_exporter in the policy (the original's issue 145).
    rules = {"rules": [{"metricname": f"node_{METRIC}", "operator": "Equals", "target": 2}]}
    site.patch_policy({"strategies": {"dontschedule": rules}})
    found = await site.has("metrics.present")
    assert found["metrics.present"][0]["mend"] == f"set metricname: {METRIC}"
    site.run(found["metrics.present"][0]["run"], editor=f"sed -i s/node_{METRIC}/{METRIC}/")
    await site.has()
    # The samples are too old for the policy.
    site.patch_policy({"staleAfter": "1s"})
    found = await site.has("metrics.fresh")
    assert "stale: older than 1 s" in site.run(found["metrics.fresh"][0]["run"], code=1)
    site.patch_policy({"staleAfter": "30m"})
    await site.has()
    # A node without samples.
    site.cluster.create_nodes("node-4")
    site.offer("node-4")
    found = await site.has("metrics.nodes")
    assert f"{METRIC} of node-4 stopped at source" in site.run(found["metrics.nodes"][0]["run"], code=1)
    site.product.publish({"node-4": {METRIC: 0}})
    await site.has()
    site.cluster.delete_nodes("node-4")
    await site.has()


async def test_workloads(site: Installation) -> None:
    await site.has()
    # No pod names the policy: the label is missing, then misspelled.
    site.template("web", {"metadata": {"labels": {"telemetry-policy": None}}})
    found = await site.has("workloads.label")
    add = f"sed -i 's/^        app: web$/&\\n        telemetry-policy: {POLICY}/'"
    site.run(found["workloads.label"][0]["run"].replace("NAME", "web"), editor=add)
    await site.has()
    site.template("web", {"metadata": {"labels": {"telemetry-policy": "doctord"}}})
    found = await site.has("workloads.policy", "workloads.label")
    site.run(found["workloads.policy"][0]["run"], editor=f"sed -i s/doctord/{POLICY}/")
    await site.has()
    # A workload that is wired only in part.
    parts: dict[str, Object] = {
        "resource": {"containers": [{"name": "main", "image": "pause"}]},
        "affinity": {"affinity": {}},
    }
    for key, bare in parts.items():
        wired, partly = workload("web"), workload("web")
        spec = partly["spec"]["template"]["spec"]
        spec |= bare
        site.replace(partly)
        # The scheduler does not ask about a pod without the resource.
        found = await site.has(f"workloads.{key}", *(["extender.asked"] if key == "resource" else []))
        assert found[f"workloads.{key}"][0]["run"] == f"kubectl --namespace {site.namespace} edit deployment web"
        site.replace(wired)
        await site.has()
    # A key that no policy sets.
    site.template("web", {"spec": affinity(POLICY, "scheduling-policy")})
    found = await site.has("workloads.key")
    site.run(found["workloads.key"][0]["run"], editor=f"sed -i s/scheduling-policy/{POLICY}/")
    await site.has()
    # A DaemonSet, whose pods would be deleted.
    agent = workload("agent", "DaemonSet", wired=False)
    agent["spec"]["template"]["spec"] |= affinity()
    site.create(agent)
    found = await site.has("workloads.daemonset")
    site.run(found["workloads.daemonset"][0]["run"], editor="sed -i /affinity:/,/violating/d")
    await site.has()
    site.delete("daemonset", "agent")


async def test_a_descheduler(site: Installation) -> None:
    await site.has()
    site.replace(descheduler("v0.25.0"))
    await site.has()  # it works where nodes offer the resource
    site.offer(NODES[2], amount=None)
    found = await site.has("descheduler.version")
    command = found["descheduler.version"][0]["run"]
    assert command == "tas run resources --kubeconfig FILE"
    offering = [
        *TAS,
        "run",
        "resources",
        "--kubeconfig",
        str(site.cluster.kubeconfig),
        "--health-listen",
        "127.0.0.1:0",
    ]
    with running("tas-resources", offering, folder=site.cluster.folder, env=site.environment()):
        await site.has()
    site.replace(descheduler())
    await site.has()
    site.offer(NODES[2], amount=None)
    await site.has("descheduler.resource")
    # Where the resource counts for the scheduler, too, its pods wait.
    site.change_entry(managedResources=[{"name": "telemetry/scheduling"}])
    found = await site.has("descheduler.resource", "scheduler.resource")
    site.configure(found["scheduler.resource"][0]["run"])
    site.offer(NODES[2])
    await site.has()


async def test_no_descheduler_and_a_cluster_in_which_it_gives_up(site: Installation) -> None:
    await site.has()
    site.delete("deployment", "descheduler")
    found = await site.has("descheduler.present")
    assert found["descheduler.present"][0]["severity"] == "hint"
    site.create(descheduler())
    await site.has()
    site.cluster.delete_nodes(*NODES[1:])
    await site.has("descheduler.nodes")
    site.cluster.create_nodes(*NODES[1:])
    site.offer(*NODES[1:])
    site.product.publish({node: {METRIC: 0} for node in NODES[1:]})
    await site.has()


async def test_rights_and_clocks(site: Installation) -> None:
    await site.has()
    site.run("kubectl delete clusterrolebinding tas-labels")
    # The API server forgets the rights while the command asks for one after the other.
    found = await site.has("rights.accounts", saying={"rights.accounts": ("tas-labels may not: get nodes, ",)})
    site.run(found["rights.accounts"][0]["run"])
    await site.has()
    # The kubelet of a node and a source have clocks that are ahead.
    site.ahead = {NODES[0]: 30.0}
    found = await site.has("clocks.nodes")
    assert "ahead of the API server" in found["clocks.nodes"][0]["what"]
    site.ahead = {}
    await site.has()
    ahead = 0.0
    async with Bus.connect(site.nats.url, name="test", streams=()) as bus:
        await bus.wait_connected()

        async def is_ahead() -> bool:
            """Not by a command: on a busy machine it starts for longer than the time that it is to be ahead."""
            nonlocal ahead
            ahead = time.time() + 4
            scrape = Scrape(source="cli", measured=ahead, arrived=ahead, sequence=0, metrics={METRIC: NOTHING})
            await answered(partial(publish_scrape, bus, NODES[0], scrape))
            return set(await site.doctor()) == {"clocks.samples"}

        await eventually(is_ahead)

    def is_replaced() -> bool:
        replaced = time.time() > ahead
        site.product.publish({NODES[0]: {METRIC: 0}})
        return replaced

    until(is_replaced, "a newer sample is published")
    await site.has()


# What cannot be reached, or must not be read


async def test_nothing_is_ok_by_mistake_and_nothing_is_changed(site: Installation) -> None:
    await site.has()
    (unused,) = free_ports(1)
    elsewhere = str(site.kubeconfig_at(f"127.0.0.1:{unused}"))
    unknown = OF_A_USER | {"clocks.api_server", "policies.crd"}
    found = await site.has("cluster.reached", *unknown, flags=("--kubeconfig", elsewhere))
    assert severities(found) == {"cluster.reached": {"error"}} | {key: {"unknown"} for key in unknown}
    found = await site.has("bus.reached", *OF_A_BUS, flags=("--bus", f"nats://127.0.0.1:{unused}"))
    assert severities(found) == {"bus.reached": {"error"}} | {key: {"unknown"} for key in OF_A_BUS}
    nobody = site.cluster.kubeconfig_for("nobody", "system:authenticated")
    found = await site.has(*OF_A_USER, flags=("--kubeconfig", str(nobody)))
    assert severities(found) == {key: {"unknown"} for key in OF_A_USER}
    assert all("forbidden" in each["what"] for findings in found.values() for each in findings)
    # Nothing is created but questions about rights, and few lists are read.
    reader = site.cluster.kubeconfig_for("reader", "system:masters")
    mark = 0

    async def finds_nothing() -> bool:
        nonlocal mark
        mark = site.cluster.audit.mark()
        return await site.doctor("--kubeconfig", str(reader)) == {}

    await eventually(finds_nothing)
    calls = site.cluster.audit.calls(mark, user="reader")
    questions = [call for call in calls if call.verb == "create"]
    assert {call.uri.rpartition("/")[2] for call in questions} == {"subjectaccessreviews"}
    assert {call.verb for call in calls} == {"create", "get", "list"}
    assert len(calls) - len(questions) <= 11
