"""The standard pair of Prometheus that scrape the same, from the exporter to an answer of filter."""

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp

from tests.integration.cli.tas import FREE, Tas, demo_policy, filter_request, policy_folder
from tests.integration.servers import eventually

from .processes import free_ports
from .prometheus import EVERY_SECOND, exporter, prometheus

POLICY = """\
    dontschedule:
      rules:
        - {metricname: written_health, operator: GreaterThan, target: 1}
        - {metricname: polled_health, operator: GreaterThan, target: 1}
"""
NAMES = ("written_health written", "polled_health polled")
"""Metric and source. Each source has both metrics, since both have one series."""

CONFIG = "metrics: {written_health: {series: health}, polled_health: {series: health}}\n"


def replica(name: str) -> dict[str, object]:
    """As the Prometheus Operator configures a replica of a Prometheus."""
    labels = {"prometheus": "monitoring/k8s", "prometheus_replica": f"prometheus-k8s-{name}"}
    return {**EVERY_SECOND, "global": {"scrape_interval": "1s", "external_labels": labels}}


def federating(*urls: str) -> dict[str, object]:
    """A Prometheus that has the series of both replicas, which differ by the label of the replica alone."""
    job = {
        "job_name": "federate",
        "honor_labels": True,
        "metrics_path": "/federate",
        "params": {"match[]": ["health"]},
        "static_configs": [{"targets": [url.removeprefix("http://") for url in urls]}],
    }
    return {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}


async def replicas_in(url: str, query: str) -> set[str]:
    """The replicas of the series in the answer."""
    with suppress(aiohttp.ClientError):
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{url}/api/v1/query", params={"query": query}) as answer,
        ):
            found = (await answer.json())["data"]["result"]
            return {each["metric"].get("prometheus_replica", "") for each in found}
    return set()


async def sent_by(url: str) -> float:
    """How many samples a Prometheus has sent by remote write."""
    with suppress(aiohttp.ClientError):
        async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
            name = "prometheus_remote_storage_samples_total{"
            return sum(float(line.split()[-1]) for line in (await answer.text()).splitlines() if line.startswith(name))
    return 0.0


async def test_a_pair_counts_once_and_the_other_one_goes_on_alone_facts_n70_facts_n73(
    tas: Tas, prometheus_binary: Path, tmp_path: Path
) -> None:
    (tmp_path / "sources.yaml").write_text(CONFIG)
    folders = {name: tmp_path / name for name in ("a", "b", "both")}
    for folder in folders.values():
        folder.mkdir()
    with ExitStack() as stack:
        async with exporter("# TYPE health gauge\nhealth 1\n") as exported:
            (port,) = free_ports(1)
            receiver = f"127.0.0.1:{port}"
            targets = {exported.address: {"node": "node-1"}}
            pair = {
                name: stack.enter_context(
                    prometheus(
                        prometheus_binary,
                        folders[name],
                        targets,
                        writes_to=f"http://{receiver}/api/v1/write",
                        based_on=replica(name),
                    )
                )
                for name in ("a", "b")
            }
            federated = federating(*(url for url, _ in pair.values()))
            both, _ = stack.enter_context(prometheus(prometheus_binary, folders["both"], {}, based_on=federated))
            command = [
                *("run", "all", "--bus", "embedded", "--period", "200ms", *FREE),
                *("--policies", str(policy_folder(tmp_path, demo_policy(POLICY)))),
                *("--source", f"polled:prometheus={both}", "--source", f"written:remote-write={receiver}"),
                *("--source-config", str(tmp_path / "sources.yaml")),
            ]
            async with tas.running(*command) as running:
                await running.ready()
                extender = (await running.logged("extender_listening"))["url"]

                async def values() -> dict[str, str]:
                    """By source, the health of the node."""
                    (node,) = [
                        each for each in (await tas("get", "nodes", "--json")).json if each["node"] == "node-1"
                    ] or [{"samples": []}]
                    found = {f"{each['metric']} {each['source']}": each["value"] for each in node["samples"]}
                    return {name: found[name] for name in NAMES if name in found}

                async def have(value: str) -> bool:
                    return await values() == dict.fromkeys(NAMES, value)

                async def rejected() -> set[str]:
                    async with (
                        aiohttp.ClientSession() as session,
                        session.post(f"{extender}/filter", json=filter_request("node-1", "node-2")) as answer,
                    ):
                        return set((await answer.json())["FailedAndUnresolvableNodes"])

                async def rejects(*nodes: str) -> bool:
                    return await rejected() == set(nodes)

                async def refused() -> dict[str, Any]:
                    listed = (await tas("get", "sources", "--json")).json
                    return {each["source"]: each["refused"] for each in listed if each.get("refused")}

                await eventually(lambda: have("1"), every=0.5)

                async def are_both_there() -> bool:
                    names = {f"prometheus-k8s-{name}" for name in pair}
                    return await replicas_in(both, "health") == names and all(
                        [await sent_by(url) > 0 for url, _ in pair.values()]
                    )

                await eventually(are_both_there, every=0.5)  # else the case is not met
                assert await refused() == {}
                assert await rejects()

                exported.text = "# TYPE health gauge\nhealth 2\n"
                await eventually(lambda: have("2"), every=0.5)
                assert await rejects("node-1")

                # The other replica goes on alone. Where both are federated, the last value of the dead one stays until
                # its series ends there, so only what is written has no gap.
                pair["a"][1].kill()
                exported.text = "# TYPE health gauge\nhealth 1\n"

                async def goes_on() -> bool:
                    found = await values()
                    return found.keys() == set(NAMES) and found[NAMES[0]] == "1"

                await eventually(goes_on, every=0.5)
                assert await refused() == {}
                await running.end()
