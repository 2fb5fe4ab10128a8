"""The processes around one run: a control plane with nodes, an extender or none, a source, and a scheduler."""

import http.client
import json
import ssl
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import orjson
from prometheus_client.parser import text_string_to_metric_families

from bus.server import EmbeddedServer
from cli.crd import crd_manifest
from tests.bench import cluster
from tests.bench.stand import FILTER, PRIORITIZE, Stand, module, product
from tests.certificates import Authority
from tests.e2e.api import Api, ApiError, Object
from tests.e2e.cluster import Cluster, extender
from tests.e2e.controlplane import ADMIN_GROUP, ControlPlane, control_plane
from tests.e2e.processes import Process, free_ports, until
from tests.integration.servers import eventually
from tests.unit.tas.gpu import notation

CRD = "taspolicies.telemetry.intel.com"
WORKERS = ("materialize", "watch", "evaluate", "labels", "extender")
"""The workers of `tas run all --kubeconfig`; `status` is a part of `watch`."""

NO_LIMIT = (
    *("--breaker", "100%,1", "--breaker-all", "100%,1", "--flap-budget", "0"),
    *("--label-rate", "off", "--label-rate-all", "off"),
)
"""Limits that are never exceeded, so that admissions are measured, too."""

PERIOD_SECONDS = 10.0
"""How often each node reports."""

WITHIN = 300.0
"""The time limit of each step, on a busy machine."""

CALL_SECONDS = 60.0
USER = "system:kube-scheduler"
POLICY = cluster.policy_name(0)
WEIGHT = 5
"""As in docs/start/scheduler.md."""

CARDS = "N(0..7) i160 mc8000"
PART_OF_A_CARD = {"gpu.intel.com/i915": "1", "gpu.intel.com/millicores": "100"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """The files of an extender and of its client, each with the authority of the other side."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> "Tls":
        """New certificates in this folder."""
        authority = Authority("bench")
        (folder / "ca.crt").write_bytes(authority.certificate)
        for name, pair in (("server", authority.server("bench")), ("client", authority.client(USER))):
            (folder / f"{name}.crt").write_bytes(pair.certificate)
            (folder / f"{name}.key").write_bytes(pair.key)
        return cls(folder=folder)

    @property
    def server_files(self) -> tuple[str, str, str]:
        """Certificate, key, and the authority of clients."""
        return str(self.folder / "server.crt"), str(self.folder / "server.key"), str(self.folder / "ca.crt")

    def flags(self) -> list[str]:
        """The flags of `tas run`."""
        cert, key, cacert = self.server_files
        return ["--cert", cert, "--key", key, "--cacert", cacert, "--client-names", USER]

    def configuration(self) -> Object:
        """The fields of the scheduler's entry."""
        names = {"certFile": "client.crt", "keyFile": "client.key", "caFile": "ca.crt"}
        return {"enableHTTPS": True, "tlsConfig": {field: str(self.folder / name) for field, name in names.items()}}

    def context(self) -> ssl.SSLContext:
        """For our own requests."""
        context = ssl.create_default_context(cafile=self.folder / "ca.crt")
        context.load_cert_chain(self.folder / "client.crt", self.folder / "client.key")
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A running extender: where it listens, and the processes that belong to it."""

    port: int
    tls: Tls | None
    processes: Sequence[Process]

    @property
    def url(self) -> str:
        """The URL, without a path."""
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"

    def ask(self, path: str, names: Sequence[str]) -> Any:
        """The answer about a pod of the policy and these nodes."""
        if self.tls is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=CALL_SECONDS)
        else:
            context = self.tls.context()
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=CALL_SECONDS, context=context)
        try:
            connection.request("POST", path, cluster.names_only(0, names), {"Content-Type": "application/json"})
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            raise RuntimeError(f"{path}: {response.status} {body[:500]!r}")
        return orjson.loads(body)

    def samples(self) -> dict[str, float]:
        """The metrics of all its processes, by name and labels as in their text form."""
        found: dict[str, float] = {}
        for process in self.processes:
            for name, value in metrics(_get(f"{health(process)}/metrics")).items():
                found[name] = found.get(name, 0.0) + value
        return found


def metrics(text: str) -> dict[str, float]:
    """Each sample of a page of metrics, by name and labels."""
    return {
        f"{each.name}{{{','.join(f'{key}={value}' for key, value in sorted(each.labels.items()))}}}": each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


def health(process: Process) -> str:
    """The URL of a worker's health port. Raises RuntimeError before it listens."""
    for line in process.log.read_bytes().splitlines():
        if line.startswith(b"{") and (event := orjson.loads(line))["event"] == "health_listening":
            return str(event["url"])
    raise RuntimeError(f"{process.name} does not listen:\n{process.tail()}")


def _get(url: str) -> str:
    host, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=CALL_SECONDS)
    try:
        connection.request("GET", f"/{path}")
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        raise RuntimeError(f"{url}: {response.status}")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """A running server that `collect` polls."""

    process: Process
    port: int

    @property
    def url(self) -> str:
        """The URL of the Prometheus."""
        return f"http://127.0.0.1:{self.port}"

    def flags(self, seconds: float) -> list[str]:
        """The flags of `tas run all` that polls the server every so many seconds."""
        return ["--source", f"prometheus={self.url}", "--period", f"{seconds:g}s"]

    def answers(self) -> bool:
        """Whether the server answers. Raises RuntimeError if the process has ended."""
        self.process.must_run()
        with suppress(OSError):
            self.heat(())
            return True
        return False

    def heat(self, names: Collection[str]) -> None:
        """Makes these nodes exceed each target from now on, and no others."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=CALL_SECONDS)
        try:
            connection.request("PUT", "/hot", orjson.dumps(sorted(names)))
            response = connection.getresponse()
            response.read()
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            raise RuntimeError(f"/hot: {response.status}")


class World:
    """A control plane with `names` as its nodes, which run every pod at once."""

    def __init__(self, stand: Stand, plane: ControlPlane, tls: Tls) -> None:
        self.stand = stand
        self.plane = plane
        self.tls = tls
        self.names: list[str] = []
        self._with_cards = 0
        self._policies: set[str] = set()
        self._cluster = Cluster(plane)
        self._kubeconfig = plane.kubeconfig("tas", ADMIN_GROUP)

    @classmethod
    @contextmanager
    def start(cls, stand: Stand, binaries: Mapping[str, Path]) -> Iterator["World"]:
        """A control plane with the policy, without nodes."""
        tls = Tls.create(stand.subfolder("tls"))
        with control_plane(stand.subfolder("control-plane"), binaries) as plane:
            world = cls(stand, plane, tls)
            world._cluster.apply(crd_manifest())
            world._cluster.kubectl("wait", "--for=condition=Established", f"crd/{CRD}", f"--timeout={WITHIN:.0f}s")
            world.set_policies({POLICY: cluster.policy_spec(0)})
            yield world

    def set_policies(self, specs: Mapping[str, Object]) -> None:
        """Creates or replaces these policies, by name, and deletes all others."""
        kind = {"apiVersion": "telemetry.intel.com/v1alpha1", "kind": "TASPolicy"}
        items = [
            kind | {"metadata": {"name": name, "namespace": cluster.NAMESPACE}, "spec": spec}
            for name, spec in specs.items()
        ]
        self._cluster.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        for name in self._policies - set(specs):
            self._cluster.kubectl("delete", "taspolicy", name, "--namespace", cluster.NAMESPACE)
        self._policies = set(specs)

    def grow(self, count: int) -> None:
        """Adds nodes, of 5 KB each, until there are `count`."""
        for name in cluster.node_names(count)[len(self.names) :]:
            self.plane.api.create("/api/v1/nodes", _node(name))
            self.names.append(name)

    def add_cards(self) -> None:
        """Gives each node GPU cards that have none yet."""
        node = notation.Node(CARDS)
        amounts = dict(node.allocatable)
        for name in self.names[self._with_cards :]:
            path = f"/api/v1/nodes/{name}"
            self.plane.api.patch(path, {"metadata": {"labels": node.labels}})
            self.plane.api.patch(f"{path}/status", {"status": {"capacity": amounts, "allocatable": amounts}})
        self._with_cards = len(self.names)

    # Pods

    def create_pods(self, count: int, *, managed: bool, cards: bool = False) -> None:
        """Pods that name the policy; `managed`: with the resource for which the scheduler calls the extender.

        With `cards` each requests a part of a GPU card instead, and names no policy.
        """
        for number in range(count):
            if cards:
                container = {"name": "main", "image": "pause", "resources": {"limits": PART_OF_A_CARD}}
                name = f"pod-{number:04}"
                self._cluster.create_pod(cluster.NAMESPACE, name, managed=False, containers=[container])
                continue
            self._cluster.create_pod(cluster.NAMESPACE, f"pod-{number:04}", policy=POLICY, managed=managed)

    def placements(self) -> list[str]:
        """The node of each pod; empty for a pod without a node."""
        path = f"/api/v1/namespaces/{cluster.NAMESPACE}/pods"
        return [str(pod["spec"].get("nodeName", "")) for pod in self.plane.api.get(path)["items"]]

    async def delete_pods(self) -> None:
        """Deletes all pods, and what the scheduler has written about them."""
        for kind in ("pods", "events"):
            await eventually(partial(self._is_deleted, f"/api/v1/namespaces/{cluster.NAMESPACE}/{kind}"), within=WITHIN)

    def _is_deleted(self, path: str) -> bool:
        """Whether nothing is left; deletes once more. One request may not be enough for thousands of objects."""
        with suppress(OSError, ApiError):
            self.plane.api.delete(path)
        return not self.plane.api.get(path, limit="1")["items"]

    # Processes

    @asynccontextmanager
    async def source(self) -> AsyncIterator[tuple[EmbeddedServer, "Source"]]:
        """A new bus, and what starts the source of samples on it."""
        async with EmbeddedServer.start(self.stand.subfolder("bus")) as server:
            with ExitStack() as stack:
                yield server, Source(self, server, stack)

    @contextmanager
    def polled(self, *, crossing: float = 0.0) -> Iterator["Polled"]:
        """A server for all nodes, of which some cross a target between two requests, as a process of its own."""
        (port,) = free_ports(1)
        options = ["--listen", f"127.0.0.1:{port}", "--nodes", str(len(self.names)), "--crossing", str(crossing)]
        with self.stand.process("telemetry", [*module("tests.bench.telemetry"), *options]) as process:
            polled = Polled(process=process, port=port)
            until(polled.answers, "telemetry answers")
            yield polled

    @contextmanager
    def floor(self, *, tls: bool, same: bool) -> Iterator[Served]:
        """The extender with the fixed answer."""
        (port,) = free_ports(1)
        files = self.tls.server_files if tls else ()
        command = [
            *module("tests.bench.e2e.floor"),
            "--listen",
            f"127.0.0.1:{port}",
            *files,
            *(["same"] if same else []),
        ]
        with self.stand.process("fixed answer", command) as process:
            yield Served(port=port, tls=self.tls if tls else None, processes=[process])

    @contextmanager
    def product(self, url: str, *flags: str, tls: bool = False, apart: bool = False) -> Iterator[Served]:
        """The product on the bus at `url`: all workers in one process, which gets `flags`, or each in its own."""
        (port,) = free_ports(1)
        listen = ["--listen", f"127.0.0.1:{port}", *(self.tls.flags() if tls else ())]
        kubeconfig = ["--kubeconfig", str(self._kubeconfig)]
        labels = [*kubeconfig, *NO_LIMIT]
        extra = {"all": [*labels, *listen, *flags], "extender": listen, "watch": kubeconfig, "labels": labels}
        with ExitStack() as stack:
            processes = [
                stack.enter_context(self.stand.process(worker, [*product(worker, url), *extra.get(worker, [])]))
                for worker in (WORKERS if apart else ("all",))
            ]
            yield Served(port=port, tls=self.tls if tls else None, processes=processes)

    @contextmanager
    def cards_product(self, url: str, *, tls: bool) -> Iterator[Served]:
        """The extender for GPU cards and `inventory` on the bus at `url`, as processes of their own."""
        (port,) = free_ports(1)
        listen = ["--listen", f"127.0.0.1:{port}", *(self.tls.flags() if tls else ())]
        kubeconfig = ["--kubeconfig", str(self._kubeconfig)]
        flags = {"inventory": [*kubeconfig, "--new-bus-wait", "0s"], "gpu": [*kubeconfig, *listen]}
        with ExitStack() as stack:
            processes = [
                stack.enter_context(self.stand.process(worker, [*product(worker, url), *more]))
                for worker, more in flags.items()
            ]
            yield Served(port=port, tls=self.tls if tls else None, processes=processes)

    async def ready(self, served: Served) -> None:
        """Waits until each of its workers is ready."""

        def is_ready() -> bool:
            for process in served.processes:
                process.must_run()
            with suppress(OSError, RuntimeError):
                return all(_get(f"{health(process)}/readyz") for process in served.processes)
            return False

        await eventually(is_ready, within=WITHIN)

    async def listening(self, served: Served) -> None:
        """Waits until it answers."""

        def answers() -> bool:
            for process in served.processes:
                process.must_run()
            with suppress(OSError):
                return bool(served.ask(FILTER, ["a"]))
            return False

        await eventually(answers, within=WITHIN)

    async def settled(self, served: Served) -> set[str]:
        """Waits until it has a fresh value and a verdict of every node, and returns the nodes that it rejects."""

        def is_settled() -> bool:
            found = served.samples()
            idle = found["tas_verdict_nodes_pending{}"] == found["tas_label_nodes_pending{}"] == 0
            return idle and found["tas_verdicts{}"] >= len(self.names)

        await eventually(lambda: len(served.ask(PRIORITIZE, self.names)) == len(self.names), within=WITHIN)
        await eventually(is_settled, within=WITHIN)
        return set(self.names) - set(served.ask(FILTER, self.names)["NodeNames"])

    def entry(self, served: Served, *, names_only: bool) -> Object:
        """The scheduler's entry of an extender."""
        tls = {} if served.tls is None else served.tls.configuration()
        return extender(served.url, names_only=names_only, weight=WEIGHT, httpTimeout="30s", **tls)

    def cards_entry(self, served: Served, *, binds: bool) -> Object:
        """The scheduler's entry of an extender for GPU cards."""
        managed = [{"name": name, "ignoredByScheduler": False} for name in PART_OF_A_CARD]
        verbs = {"bindVerb": "scheduler/bind"} if binds else {}
        return self.entry(served, names_only=True) | {"managedResources": managed} | verbs


class Source:
    """Reports all nodes on a bus, all at first and then each in `PERIOD_SECONDS`."""

    def __init__(self, world: World, server: EmbeddedServer, stack: ExitStack) -> None:
        self._world = world
        self._server = server
        self._stack = stack

    def start(self) -> Process:
        """The process, which ends with the bus."""
        count = len(self._world.names)
        arguments = [self._server.url, str(count / PERIOD_SECONDS), str(count), "steady"]
        command = [*module("tests.bench.publisher"), *arguments]
        return self._stack.enter_context(self._world.stand.process("source", command))


@cache
def _node(name: str) -> Object:
    """A node as in the other benchmarks, without what the API server writes itself."""
    found: Object = orjson.loads(cluster.node_object(name))
    kept = ("name", "labels", "annotations")
    return found | {"metadata": {key: found["metadata"][key] for key in kept}}


def scheduler_metrics(api: Api) -> dict[str, float]:
    """The scheduler's own metrics. Raises RuntimeError if it does not show them."""
    try:
        return metrics(str(api.get("/metrics")["text"]))
    except ApiError as error:
        raise RuntimeError(str(error)) from error
