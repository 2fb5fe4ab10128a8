"""Programs in another language get events and publish samples by the AsyncAPI document alone."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.installed import EXAMPLES, ROOT

from .cluster import Cluster
from .processes import clean_environment, running, until
from .product import product

PACKAGES = ("@nats-io/transport-node@3.4.0", "@nats-io/jetstream@3.4.0")
INSTALL_SECONDS = 60.0
NODE = "node-of-events"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the programs, and with the packages that they need from the registry."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    folder = tmp_path / "node"
    folder.mkdir()
    for program in ("subscribers/consumer.mjs", "publishers/publish_table.mjs"):
        shutil.copy(EXAMPLES / program, folder)
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", *PACKAGES]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm has not installed the client for NATS within {INSTALL_SECONDS:g} s")
    if done.returncode != 0:
        pytest.skip(f"npm cannot install the client for NATS: {done.stderr[-300:]}")
    return folder


def test_a_program_in_node_js_gets_events_by_the_asyncapi_document_alone(
    cluster: Cluster, namespace: str, folder: Path, tmp_path: Path
) -> None:
    rules = [{"metricname": "health_metric", "operator": "Equals", "target": 2}]
    strategies = {"dontschedule": {"rules": rules}}
    with product(cluster, tmp_path) as tas, tas.policy(namespace, "demo", strategies):
        tas.publish({NODE: {"health_metric": 2}})
        until(lambda: tas.passes(namespace, "demo", [NODE]) == set(), "the node violates the policy")
        document = str(ROOT / "docs" / "reference" / "events" / "asyncapi.json")
        command = ["node", "consumer.mjs", document, tas.bus, "violation"]
        with running("consumer", command, folder=folder, env=clean_environment()) as consumer:

            def printed() -> list[dict[str, Any]]:
                consumer.must_run()
                complete, _, _ = consumer.log.read_text().rpartition("\n")
                return [json.loads(line) for line in complete.splitlines() if line.startswith("{")]

            (first,) = until(printed, "the violation has started")
            tas.publish({NODE: {"health_metric": 0}})
            first, second = until(lambda: printed()[1:] and printed(), "the violation has ended")
    assert [each["type"].rpartition("scheduling.")[2] for each in (first, second)] == [
        "violation.started.v1",
        "violation.ended.v1",
    ]
    for each in (first, second):
        assert each["missing"] == []
        assert (each["data"]["node"], each["data"]["namespace"], each["data"]["policy"]) == (NODE, namespace, "demo")
    assert first["id"] != second["id"]


def test_a_program_in_node_js_publishes_a_table_by_the_asyncapi_document_alone(
    cluster: Cluster, namespace: str, folder: Path, tmp_path: Path
) -> None:
    rules = [{"metricname": "load1", "operator": "GreaterThan", "target": 1}]
    nodes = [f"node-of-a-table-{number}" for number in range(1200)]
    with product(cluster, tmp_path) as tas, tas.policy(namespace, "demo", {"dontschedule": {"rules": rules}}):
        document = str(ROOT / "docs" / "reference" / "events" / "asyncapi.json")
        pairs = [f"{node}={number % 3}" for number, node in enumerate(nodes)]
        command = ["node", "publish_table.mjs", document, tas.bus, "load1", *pairs]
        done = subprocess.run(
            command, cwd=folder, env=clean_environment(), capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == 2  # more than 1,000 nodes take two parts
        passing = {node for number, node in enumerate(nodes) if number % 3 != 2}
        until(lambda: tas.passes(namespace, "demo", nodes) == passing, "the values of all nodes count")
