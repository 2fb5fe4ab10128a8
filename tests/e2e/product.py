"""The product as a user runs it: `tas run all` with an embedded bus, a folder of policies, and `tas publish`."""

import http.client
import json
import signal
import ssl
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import aiohttp

from tests.forks import Fork, ForkedProcess

from .cluster import POLICY_LABEL, Cluster
from .processes import Process, clean_environment, free_ports, running, until

if TYPE_CHECKING:
    from tests.integration.replicas import Replica

PUBLISH_SECONDS = 100.0
"""Time limit of `tas publish`, on a busy machine."""

CALL_SECONDS = 60.0
"""Time limit of a request to the extender, on a busy machine."""

EXPLAINED = 100
"""The most nodes that one answer explains."""

READING = {"get", "explain"}
"""Commands that change nothing."""

TAS = [sys.executable, "-m", "cli"]


def environment(folder: Path) -> dict[str, str]:
    """Without settings of the person who runs the tests, and without the bus that this person runs."""
    clean = clean_environment(XDG_RUNTIME_DIR=str(folder))
    # Every test has a new bus, so nothing from an earlier one is on its way.
    return {name: value for name, value in clean.items() if not name.startswith("TAS_")} | {"TAS_NEW_BUS_WAIT": "0s"}


class Product:
    """A running `tas run all`, as a user uses it."""

    def __init__(
        self,
        process: Process,
        *,
        folder: Path,
        port: int,
        health_port: int,
        bus: str,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.process = process
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
        self.health = f"http://127.0.0.1:{health_port}"
        self._tls = tls
        self.bus = bus
        self.policies = folder / "policies"
        self._port = port
        self._env = environment(folder)

    @contextmanager
    def policy(self, namespace: str, name: str, strategies: Mapping[str, object]) -> Iterator[None]:
        """A policy file in the folder, created atomically and removed on exit."""
        policy = {
            "apiVersion": "telemetry.intel.com/v1alpha1",
            "kind": "TASPolicy",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"strategies": strategies},
        }
        temporary = self.policies / f".{namespace}-{name}"
        temporary.write_text(json.dumps(policy))
        file = temporary.rename(self.policies / f"{namespace}-{name}.yaml")
        yield
        file.unlink()

    def publish(self, samples: Mapping[str, Mapping[str, float]]) -> None:
        """Publishes samples, measured now: values by metric by node.

        A command that fails is repeated, as a person would do: a node may not be known yet, or a bus be too busy.
        """
        commands = [
            ("publish", node, *(f"{metric}={value}" for metric, value in metrics.items()), "--bus", self.bus)
            for node, metrics in samples.items()
        ]
        deadline = time.monotonic() + PUBLISH_SECONDS
        while failed := self._failed(commands):
            if time.monotonic() > deadline:
                raise RuntimeError("\n".join(failed.values()))
            commands = [command for command in commands if command in failed]

    def _failed(self, commands: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
        """Runs commands of `tas` beside one another; what those say that fail, by command."""
        with ExitStack() as stack:
            running = {command: stack.enter_context(self._forked(*command)) for command in commands}
            ended = {command: fork.wait(PUBLISH_SECONDS) for command, (fork, _) in running.items()}
            return {
                command: f"tas {' '.join(command)} ended with {code}: {running[command][1].read_text()}"
                for command, code in ended.items()
                if code != 0
            }

    @contextmanager
    def _forked(self, *arguments: str) -> Iterator[tuple[Fork, Path]]:
        """A running command of `tas`, and the file of its errors."""
        with TemporaryDirectory(prefix="tas-forked-") as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            with out.open("wb") as its_out, err.open("wb") as its_err:
                output = (its_out.fileno(), its_err.fileno())
                fork = Fork(("-m", "cli", *arguments), output=output, env=self._env, cwd=Path(folder))
            try:
                yield fork, err
            finally:
                fork.kill()
                fork.wait()

    def tas(self, *arguments: str) -> str:
        """The output of a command of `tas` on the product's bus; one that only reads is repeated if it fails.

        A busy bus does not answer within the time that the command gives it.
        """
        deadline = time.monotonic() + (PUBLISH_SECONDS if arguments[0] in READING else 0.0)
        while True:
            with self._forked(*arguments, "--bus", self.bus) as (fork, err):
                code = fork.wait(PUBLISH_SECONDS)
                if code == 0:
                    return err.with_name("out").read_text()
                if time.monotonic() > deadline:
                    raise RuntimeError(f"tas {' '.join(arguments)} ended with {code}: {err.read_text()}")

    def passes(self, namespace: str, policy: str, names: Iterable[str]) -> set[str]:
        """The nodes that pass the filter for a pod of this policy."""
        answer = self._ask("filter", namespace, policy, names)
        assert isinstance(answer, dict)
        return set(answer["NodeNames"])

    def scores(self, namespace: str, policy: str, names: Iterable[str]) -> dict[str, int]:
        """The score of each node for a pod of this policy."""
        answer = self._ask("prioritize", namespace, policy, names)
        assert isinstance(answer, list)
        return {item["Host"]: item["Score"] for item in answer}

    def answers(self) -> bool:
        """Whether a request over a new connection is answered."""
        connection = self._connection()
        try:
            connection.request("GET", "/version")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection("127.0.0.1", self._port, timeout=CALL_SECONDS)
        return http.client.HTTPSConnection("127.0.0.1", self._port, timeout=CALL_SECONDS, context=self._tls)

    def _ask(self, verb: str, namespace: str, policy: str, names: Iterable[str]) -> object:
        pod = {"metadata": {"name": "candidate", "namespace": namespace, "labels": {POLICY_LABEL: policy}}}
        body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": list(names)})
        connection = self._connection()
        try:
            connection.request("POST", f"/scheduler/{verb}", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
            assert response.status == 200, text
            answer: object = json.loads(text)
            return answer
        finally:
            connection.close()


@contextmanager
def product(
    cluster: Cluster,
    folder: Path,
    *flags: str,
    kubeconfig: Path | None = None,
    site: Path | None = None,
    tls: ssl.SSLContext | None = None,
    bus: str | None = None,
) -> Iterator[Product]:
    """Runs the product in one process, with `flags` of `tas run all`, and waits until it is ready.

    With `kubeconfig` policies and nodes come from the API server, else policies from a folder. Packages in `site` are
    installed too. `tls` is for the test's requests; `flags` have the settings of the server. `bus` is the address of a
    nats-server; None: an embedded one.
    """
    port, health_port, bus_port = free_ports(3)
    for name in ("policies", "store"):
        (folder / name).mkdir()
    command = [
        *("-m", "cli", "run", "all", "--bus", bus or "embedded"),
        *(("--embedded-port", str(bus_port), "--store", str(folder / "store")) if bus is None else ()),
        *(("--policies", str(folder / "policies")) if kubeconfig is None else ("--kubeconfig", str(kubeconfig))),
        *("--listen", f"127.0.0.1:{port}"),
        *("--health-listen", f"127.0.0.1:{health_port}"),
        *flags,
    ]
    name = f"tas-{len(cluster.processes)}"
    # SIGTERM also if the test is killed, so that the product ends its nats-server.
    env = environment(folder) | ({} if site is None else {"PYTHONPATH": str(site)})
    with running(
        name, command, folder=cluster.folder, env=env, death_signal=signal.SIGTERM, kind=ForkedProcess
    ) as process:
        cluster.processes.append(process)
        until(lambda: is_ready(process, health_port), "tas is ready")
        address = bus or f"nats://{(folder / 'store' / 'token').read_text().strip()}@127.0.0.1:{bus_port}"
        yield Product(process, folder=folder, port=port, health_port=health_port, bus=address, tls=tls)


@contextmanager
def lone_extension(cluster: Cluster, tas: Product, name: str, site: Path, **environ: str) -> Iterator[str]:
    """Runs one extension of `site` in its own process, on the bus of a running product, and returns its URL."""
    port, health_port = free_ports(2)
    command = [
        *("-m", "cli", "run", "extender", "--only", name, "--bus", tas.bus),
        *("--listen", f"127.0.0.1:{port}", "--health-listen", f"127.0.0.1:{health_port}"),
    ]
    env = environment(cluster.folder) | {"PYTHONPATH": str(site)} | environ
    label = f"tas-{name}-{len(cluster.processes)}"
    with running(label, command, folder=cluster.folder, env=env, kind=ForkedProcess) as process:
        cluster.processes.append(process)
        until(lambda: is_ready(process, health_port), f"{name} is ready")
        yield f"http://127.0.0.1:{port}"


async def lets_pass(extender: "Replica", namespace: str, policy: str, nodes: Collection[str]) -> set[str]:
    """The nodes that this extender passes for a pod of this policy, as its health port says: it may share the other."""
    query = {"pod": f"{namespace}/asked", "policy": policy}
    found: set[str] = set()
    async with aiohttp.ClientSession() as session:
        names = list(nodes)
        for first in range(0, len(names), EXPLAINED):
            some = {"nodes": ",".join(names[first : first + EXPLAINED])}
            async with session.get(f"{extender.health_url()}/debug/explain", params=query | some) as answer:
                found |= {each["node"] for each in (await answer.json())["candidates"] if each["passes"]}
    return found


def is_ready(process: Process, port: int, host: str = "127.0.0.1") -> bool:
    """Whether the process serves /readyz with 200. Raises RuntimeError if the process has ended."""
    process.must_run()
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False  # it does not listen yet
    finally:
        connection.close()
