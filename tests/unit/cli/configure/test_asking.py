"""`tas configure --wait` and `verify` ask the scheduler and the extenders: real sockets, real certificates."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from bus.trying import Tries
from cli.configure import liveness
from cli.configure.cluster_dns import ClusterDns, of_kubelet, resolved
from cli.configure.liveness import Sight, look, look_before
from cli.configure.reachability import Unreached, why_not_reached
from tas.configuring.dns import A, question
from tas.values.backoff import Backoff
from tests.certificates import Authority, Pair
from tests.e2e.processes import free_ports
from tests.unit.cli.configure.node import AUTHORITY, CLIENT, Node, code, message

SERVICE = "tas-service.tas.svc"
FILES = {"client.crt": CLIENT.certificate, "client.key": CLIENT.key, "ca.crt": AUTHORITY.certificate}


@contextmanager
def serving(
    folder: Path, pair: Pair, *, path: str = "/livez", status: int = 200, port: int = 0, clients: bool = False
) -> Iterator[int]:
    """An HTTPS server that answers on one path, and its port; `clients`: it requires a certificate of ours."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == path else 404)
            self.end_headers()

        def log_message(self, *args: object) -> None: ...

    file = folder / "server.pem"
    file.write_bytes(pair.certificate + pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    context.verify_mode = ssl.CERT_REQUIRED if clients else ssl.CERT_NONE
    context.load_verify_locations(cadata=AUTHORITY.certificate.decode())
    with HTTPServer(("127.0.0.1", port), Answer) as http:
        http.socket = context.wrap_socket(http.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield http.server_port
        finally:
            http.shutdown()
            thread.join()


# The scheduler


@pytest.mark.parametrize(("path", "alive"), [("/livez", True), ("/healthz", True), ("/nothing", False)])
def test_verify_asks_the_scheduler(node: Node, path: str, *, alive: bool) -> None:
    """The extender is on a port of this machine without a server, and so the only other difference."""
    url = ("--telemetry-url", "http://127.0.0.1:1")
    node.configure(*url)
    with serving(node.folder, AUTHORITY.server("scheduler"), path=path) as port:
        result = node.verify("--livez", f"127.0.0.1:{port}", *url, files_only=False)
    assert code(result) == 3
    assert ("the scheduler does not answer" in result.stdout) is not alive
    assert "does not reach http://127.0.0.1:1/scheduler: Connection refused" in result.stdout


def test_an_impossible_address_is_a_usage_error(node: Node) -> None:
    assert code(node.verify("--livez", "127.0.0.1:x", files_only=False)) == 2


@contextmanager
def kubelet(
    node: Node, port: int, pair: Pair | None, stop_first: threading.Event, gone: threading.Event
) -> Iterator[None]:
    """Ends the first scheduler as soon as the manifest changes, and starts another; without a certificate, none."""
    before = node.manifest.read_bytes()
    end = threading.Event()

    def run() -> None:
        while node.manifest.read_bytes() == before and not end.wait(0.01):
            pass
        stop_first.set()
        gone.wait()
        if pair is not None:
            with serving(node.folder, pair, port=port):
                end.wait()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


@contextmanager
def first_scheduler(node: Node, stop: threading.Event, gone: threading.Event) -> Iterator[int]:
    """A scheduler that runs until it is stopped."""
    ports: list[int] = []
    ready = threading.Event()

    def run() -> None:
        (free,) = free_ports(1)  # of this process alone, so the next scheduler gets it, too
        with serving(node.folder, AUTHORITY.server("first"), port=free) as port:
            ports.append(port)
            ready.set()
            stop.wait()
        gone.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(60)
        yield ports[0]
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("starts", [True, False])
def test_wait_ends_with_a_new_scheduler_or_restores_all_files(
    node: Node, monkeypatch: pytest.MonkeyPatch, *, starts: bool
) -> None:
    monkeypatch.setattr(liveness, "STEADY_SECONDS", 0.05)
    monkeypatch.setattr(liveness, "_POLL", Tries(wait=Backoff(first=0.01, longest=0.01)))
    before = node.files()
    stop, gone = threading.Event(), threading.Event()
    with (
        first_scheduler(node, stop, gone) as port,
        kubelet(node, port, AUTHORITY.server("second") if starts else None, stop, gone),
    ):
        result = node.configure("--wait", "60s" if starts else "300ms", "--livez", f"127.0.0.1:{port}")
    if starts:
        assert code(result) == 0, message(result)
        assert "the scheduler has started again" in result.stdout
        return
    assert code(result) == 1
    assert "every file is as before" in message(result)
    assert node.files() == before
    assert node.backups() == []


def test_the_scheduler_from_before_the_change_does_not_count(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hard case: nobody restarts it, and it answers all the time."""
    monkeypatch.setattr(liveness, "STEADY_SECONDS", 0.0)
    before = node.files()
    with serving(node.folder, AUTHORITY.server("first")) as port:
        assert look(f"127.0.0.1:{port}").problem is None
        result = node.configure("--wait", "500ms", "--livez", f"127.0.0.1:{port}")
    assert code(result) == 1
    assert "has not started again" in message(result)
    assert node.files() == before


def test_a_slow_scheduler_is_asked_again_for_its_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the scheduler from before the change would count as a new one."""
    slow, seen = Sight("timed out", None, is_slow=True), Sight("timed out", "certificate", is_slow=True)
    gone = Sight("Connection refused", None)
    for sights, found in (([slow, seen], seen), ([gone], gone), ([slow, slow, slow], slow)):
        left = list(sights)
        monkeypatch.setattr(liveness, "look", lambda _, left=left: left.pop(0))
        assert look_before("127.0.0.1:10259") == found
        assert left == []


def test_a_scheduler_that_does_not_answer_in_time_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "_TIMEOUT_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert look(f"127.0.0.1:{silent.getsockname()[1]}").is_slow
    assert not look("127.0.0.1:1").is_slow


# The extenders


@contextmanager
def name_server(name: str, *, is_late: bool = False) -> Iterator[ClusterDns]:
    """The DNS of a cluster that knows one name; `is_late`: it answers a question when the same has come again."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        udp.settimeout(0.05)
        end = threading.Event()

        def run() -> None:
            earlier: dict[bytes, bytes] = {}
            while not end.is_set():
                try:
                    asked, client = udp.recvfrom(512)
                except TimeoutError:
                    continue
                first = earlier.setdefault(asked[2:], asked)
                if is_late and first is asked:
                    continue
                known = asked[2:] == question(name, A, 0)[2:]
                head = first[:2] + (b"\x81\x80\0\1\0\1\0\0\0\0" if known else b"\x81\x83\0\1\0\0\0\0\0\0")
                record = b"\xc0\x0c\0\1\0\1\0\0\0\x1e\0\4\x7f\0\0\1" if known else b""
                udp.sendto(head + asked[12:] + record, client)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield ClusterDns("127.0.0.1", port=udp.getsockname()[1])
        finally:
            end.set()
            thread.join()


def test_a_late_answer_of_the_dns_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy server answers the first question while the second one waits."""
    monkeypatch.setattr("cli.configure.cluster_dns._SECONDS", 0.05)
    monkeypatch.setattr("cli.configure.cluster_dns._TRIES", Tries((TimeoutError,), times=400))
    with name_server(f"{SERVICE}.cluster.local", is_late=True) as dns:
        assert resolved(SERVICE, dns) == "127.0.0.1"


def test_a_dns_that_does_not_answer_does_not_make_the_name_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.configure.cluster_dns._SECONDS", 0.01)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        dns = ClusterDns("127.0.0.1", port=silent.getsockname()[1])
        found = why_not_reached(f"https://{SERVICE}:9001", dns, FILES)
    reason = f"{SERVICE}: the DNS of the cluster at 127.0.0.1 does not answer: no answer within 0.02 s"
    assert found == Unreached(reason, unresolved=True)


class Case(NamedTuple):
    """An extender, the host of its URL, and why the scheduler does not reach it."""

    authority: Authority = AUTHORITY
    name: str = SERVICE
    status: int = 200
    host: str = SERVICE
    reason: str | None = None


@pytest.mark.parametrize(
    "case",
    [
        Case(),
        Case(host="other.tas.svc", reason="is not known to the DNS of the cluster"),
        Case(name="tas-service", reason="not valid for"),
        Case(authority=Authority("other"), reason="its certificate is not accepted"),
        Case(status=403, reason="refuses the certificate of the scheduler"),
    ],
    ids=["reached", "unknown name", "another name", "another authority", "refused"],
)
def test_an_extender_is_reached_as_the_scheduler_reaches_it(tmp_path: Path, case: Case) -> None:
    """By the DNS of the cluster with its search domains, with the authority and the certificate of the scheduler."""
    pair = case.authority.server("extender", dns=[case.name], ips=[])
    with (
        name_server(f"{SERVICE}.cluster.local") as dns,
        serving(tmp_path, pair, path="/version", status=case.status, clients=True) as port,
    ):
        found = why_not_reached(f"https://{case.host}:{port}/scheduler", dns, FILES)
    assert (found is None) if case.reason is None else (found is not None and case.reason in found.reason)


def test_verify_has_a_note_where_no_dns_of_the_cluster_is_known(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Service has no name outside of the cluster, so that this is no difference. `.invalid` has no names at all."""
    monkeypatch.setattr("cli.configure.verify.of_kubelet", lambda: None)
    url = ("--telemetry-url", "https://tas.invalid:9001")
    node.configure(*url)
    with serving(node.folder, AUTHORITY.server("scheduler")) as port:
        result = node.verify("--livez", f"127.0.0.1:{port}", *url, files_only=False)
    assert code(result) == 0, result.stdout
    assert "Give --cluster-dns" in result.stderr


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("clusterDNS: [10.96.0.10]\nclusterDomain: c.example\n", ClusterDns("10.96.0.10", "c.example")),
        ("clusterDNS:\n- 10.96.0.10\n", ClusterDns("10.96.0.10", "cluster.local")),
        ("clusterDNS: []\n", None),
        ("clusterDNS: x\n", None),
        ("[]", None),
        ("a: [", None),
        (None, None),
    ],
)
def test_the_dns_of_the_cluster_is_that_of_the_kubelet(
    tmp_path: Path, text: str | None, found: ClusterDns | None
) -> None:
    path = tmp_path / "config.yaml"
    if text is not None:
        path.write_text(text)
    assert of_kubelet(path) == found
