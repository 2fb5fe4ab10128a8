"""The fixture `cluster`: one control plane for all tests of a process. Its logs are kept if a test fails."""

import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from cli.crd import crd_manifest
from tests.integration.conftest import bus, kept_servers, server, tas
from tests.kubernetes.fixtures import admin, client, node

from . import binaries
from .admission import keep_parameters
from .api import ApiError
from .cluster import NODES, Cluster
from .controlplane import control_plane
from .installation import Installation, installation
from .processes import until

__all__ = ["admin", "bus", "client", "kept_servers", "node", "server", "tas"]

LOGS = {"logs", "audit.log"}
FOLDER = Path(__file__).parent
EXAMPLES = FOLDER / "examples"
TEST_SECONDS = 1200
"""Only against hanging, also on a machine four times slower."""

_cluster_key = pytest.StashKey[Cluster]()
_folder_key = pytest.StashKey[Path]()
_booted_key = pytest.StashKey[int]()
_started_key = pytest.StashKey[int]()
_kept_key = pytest.StashKey[list[str]]()
MEASURED = "tas-e2e-measured"
"""The property of a test's report that holds a line of the fixture `measured`."""

KEPT = "tas-e2e-kept"
"""The key under which a worker of pytest-xdist reports the folder of the logs that it kept."""


find_binaries = cache(binaries.find)


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A running cluster with three equal nodes, without a scheduler."""
    found = find_binaries()
    assert found is not None, "tests with this fixture are skipped without binaries"
    folder = Path(tempfile.mkdtemp(prefix="tas-e2e-"))
    pytestconfig.stash[_folder_key] = folder
    try:
        with control_plane(folder, found) as plane:
            cluster = Cluster(plane)
            pytestconfig.stash[_cluster_key] = cluster
            cluster.create_nodes(*NODES)
            keep_parameters(cluster)
            pytestconfig.stash[_booted_key] = len(cluster.processes)
            yield cluster
    finally:
        # Keys and data are always deleted. At the end of the session it is known whether the logs are kept.
        for path in folder.iterdir():
            if path.is_dir() and path.name not in LOGS:
                shutil.rmtree(path)
            elif path.name not in LOGS:
                path.unlink()


@pytest.fixture(scope="session")
def programs() -> Mapping[str, Path]:
    """The path of each binary by its name, for tests without a cluster."""
    found = find_binaries()
    assert found is not None, "tests with this fixture are skipped without binaries"
    return found


@pytest.fixture(scope="session")
def prometheus_binary(programs: Mapping[str, Path]) -> Path:
    """The binary of a real Prometheus."""
    return programs["prometheus"]


@pytest.fixture(scope="session")
def crd(cluster: Cluster) -> None:
    """TASPolicies are served."""
    cluster.kubectl("apply", "-f", "-", stdin=crd_manifest())
    until(partial(_are_policies_served, cluster), "policies are served")


def _are_policies_served(cluster: Cluster) -> bool:
    with suppress(ApiError):  # 404, and 429 while the API server prepares the storage
        cluster.api.get("/apis/telemetry.intel.com/v1alpha1/taspolicies")
        return True
    return False


@pytest.fixture(scope="session")
def product_namespace(cluster: Cluster) -> str:
    """The namespace in `deploy/rbac`."""
    return cluster.create_namespace("telemetry-aware-scheduling")


@pytest.fixture(scope="module")
def site(
    cluster: Cluster, crd: None, product_namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """An installation in which nothing is wrong; each test mends what it breaks."""
    # It would find the metrics and workloads of the policies of other tests.
    cluster.kubectl("delete", "taspolicies", "--all", "--all-namespaces")
    namespace = cluster.create_namespace()
    with installation(cluster, namespace, tmp_path_factory.mktemp("installation")) as found:
        yield found
    cluster.delete_policies(namespace)
    cluster.delete_pods(namespace)


@pytest.fixture
def kubeconfig(cluster: Cluster, crd: None) -> Path:
    """The kubeconfig of an administrator, for the scenarios of `tests.kubernetes`."""
    return cluster.kubeconfig


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace for one test. Afterwards its pods and policies are deleted."""
    name = cluster.create_namespace()
    yield name
    cluster.delete_policies(name)
    cluster.delete_pods(name)


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Prints a line with a measurement at the end of the session's output."""
    return partial(record_property, MEASURED)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the worked examples, which take minutes, unless an argument names their folder or a file in it."""
    if collection_path != EXAMPLES:
        return None
    named = (config.invocation_params.dir / each.partition("::")[0] for each in config.args)
    return None if any(path.resolve().is_relative_to(EXAMPLES) for path in named) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives these tests more time than others: they start processes. Leaves most scenarios to `make nightly`."""
    for item in items:
        if item.path.is_relative_to(FOLDER):
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TEST_SECONDS))
            if is_scenario(item) and item.get_closest_marker("real_api") is None:
                item.add_marker(pytest.mark.nightly)


def is_scenario(item: pytest.Item) -> bool:
    """Whether the test is one of `tests.kubernetes`, which `make test` runs with the sandbox."""
    return isinstance(item, pytest.Function) and item.function.__module__.startswith("tests.kubernetes.")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips tests without their binaries, all with one line of the summary."""
    needs = {"cluster", "programs"}
    if isinstance(item, pytest.Function) and needs & set(item.fixturenames) and find_binaries() is None:
        pytest.skip(binaries.MISSING)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Notes which processes ran before the test."""
    cluster = item.config.stash.get(_cluster_key, None)
    item.stash[_started_key] = len(cluster.processes) if cluster else 0
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows with a failure the end of the logs of processes that this test started or found running."""
    report = yield
    cluster = item.config.stash.get(_cluster_key, None)
    if report.failed and cluster is not None:
        booted = item.config.stash.get(_booted_key, 0)
        for number, process in enumerate(cluster.processes):
            if number >= booted and (number >= item.stash[_started_key] or process.is_running):
                report.sections.append((f"log of {process.name}: {process.log}", process.tail()))
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Keeps the logs of a session that failed, or if TAS_E2E_KEEP is set."""
    folder = session.config.stash.get(_folder_key, None)
    if folder is None:
        return
    if exitstatus == 0 and not os.environ.get("TAS_E2E_KEEP"):
        shutil.rmtree(folder)
    elif hasattr(session.config, "workeroutput"):
        session.config.workeroutput[KEPT] = str(folder)
    else:
        session.config.stash[_kept_key].append(str(folder))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Notes the folder of the logs that a worker of pytest-xdist kept."""
    if folder := getattr(node, "workeroutput", {}).get(KEPT):
        node.config.stash[_kept_key].append(folder)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_kept_key] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the measurements, and the folders of kept logs."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    lines = [line for each in reports for name, line in each.user_properties if name == MEASURED]
    if lines:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(str(line))
    for folder in terminalreporter.config.stash[_kept_key]:
        terminalreporter.write_line(f"logs of the control plane: {folder}")
