"""What `inventory` publishes about pods, with a real nats-server and the sandbox."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from bus.buckets import OUTCOMES
from bus.connection import Bus
from bus.outcomes import OutcomeReader, publish_outcomes
from lab.sandbox.resources import PODS
from tas.outcomes.outcome import Outcome, Placed, Result
from tests.integration.servers import Server, answered, eventually
from tests.integration.workers.running import epoch_on, running
from tests.sandbox import Sandbox
from workers.inventory.worker import Inventory
from workers.kubernetes.client import KubernetesClient


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox.start(nodes=["a", "b.c"]) as sandbox:
        yield sandbox


@asynccontextmanager
async def inventory(bus: Bus, sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[Callable[..., float]]:
    """A replica of `inventory`; gives its metrics."""
    registry = CollectorRegistry()
    async with (
        KubernetesClient.connect(sandbox.kubeconfig(tmp_path / "kubeconfig"), worker="inventory") as client,
        running(Inventory(bus, client, registry=registry, card_metrics=0, cards=False, outcomes=True)),
    ):
        yield lambda name, **labels: registry.get_sample_value(name, labels) or 0.0


async def logged(bus: Bus) -> list[Placed | Outcome]:
    found: list[Placed | Outcome] = []
    async with aclosing(OutcomeReader(bus, after=0).batches()) as batches:
        async for batch in batches:
            if not batch.messages:
                return found
            for message in batch.messages:
                assert isinstance(message.event, Placed | Outcome)
                found.append(message.event)
    raise AssertionError


def word(event: Placed | Outcome) -> str:
    return f"placed {event.node}" if isinstance(event, Placed) else f"{event.container} {event.restart} {event.result}"


def ago(seconds: float) -> str:
    return datetime.fromtimestamp(time.time() - seconds, UTC).isoformat()


def add_pod(sandbox: Sandbox, name: str, node: str, **status: Any) -> None:
    spec = {
        "nodeName": node,
        "containers": [{"name": "main", "image": "pause", "resources": {"requests": {"cpu": "100m"}}}],
    }
    body = {"metadata": {"name": name, "labels": {"app": "web"}}, "spec": spec}
    sandbox.cluster.create(PODS, "default", body, manager="test")
    sandbox.cluster.patch(PODS, "default", name, {"status": status}, manager="kubelet", status=True)


def end(sandbox: Sandbox, name: str, code: int = 1, restarts: int = 0, waits: bool = False) -> None:
    """A container of a pod ends, and may then wait for its restart."""
    ended = {"terminated": {"exitCode": code, "startedAt": ago(20), "finishedAt": ago(10)}}
    state = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended} if waits else {"state": ended}
    status = {"containerStatuses": [{"name": "main", "restartCount": restarts, **state}]}
    sandbox.cluster.patch(PODS, "default", name, {"status": status}, manager="kubelet", status=True)


def running_since(seconds: float) -> dict[str, Any]:
    """The status of a pod that was placed and started so long ago."""
    return {
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": ago(seconds)}],
        "containerStatuses": [
            {"name": "main", "restartCount": 0, "state": {"running": {"startedAt": ago(seconds)}}},
            {"name": "NO NAME", "restartCount": 0, "state": {"terminated": {"exitCode": 1, "finishedAt": ago(5)}}},
        ],
    }


async def test_defect_k4_what_becomes_of_pods_is_published_once(
    server: Server, bus: Bus, tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one of two replicas, also after the other has ended, and on a new bus what is new then."""
    monkeypatch.setattr("workers.inventory.outcomes.LOOK_SECONDS", 0.05)
    add_pod(sandbox, "old", "a", **running_since(7200))
    add_pod(sandbox, "lasting", "a", **running_since(61))

    async def has(*words: str) -> bool:
        return [word(each) for each in await logged(bus)] == list(words)

    async with AsyncExitStack() as first:
        metric = await first.enter_async_context(inventory(bus, sandbox, tmp_path))
        await eventually(lambda: has("placed a", "main 0 running"))
        assert metric("tas_outcomes_pods") == 2
        add_pod(sandbox, "web", "b.c")
        end(sandbox, "web", waits=True)
        await eventually(lambda: has("placed a", "main 0 running", "placed b.c", "main 0 failed"))
        async with inventory(bus, sandbox, tmp_path) as other:
            await eventually(lambda: other("tas_outcomes_pods") == 3)
            end(sandbox, "web", code=0, restarts=1)
            await eventually(lambda: other("tas_outcomes_waiting") >= 2)  # what the first one publishes, too
            await first.aclose()
            end(sandbox, "lasting")
            known = ("placed a", "main 0 running", "placed b.c", "main 0 failed", "main 1 succeeded", "main 0 failed")
            await eventually(lambda: has(*known))
            await eventually(lambda: other("tas_outcomes_waiting") == 0)
            assert other("tas_outcomes_total", event="placed") == 0  # that was long before the end of the log
            stored = (await logged(bus))[3]
            assert isinstance(stored, Outcome)
            assert (stored.node, stored.labels, stored.result) == ("b.c", {"app": "web"}, Result.FAILED)
            # Agents keep the namespaces apart: one without a name would be that of all.
            assert [each.namespace for each in await logged(bus)] == ["default"] * len(known)
            assert stored.finished is not None
            assert stored.started == pytest.approx(stored.finished - 10)
            # A repetition is dropped by the server.
            before = await epoch_on(bus, OUTCOMES)
            await answered(lambda: publish_outcomes(bus, [stored, stored]))
            assert await epoch_on(bus, OUTCOMES) == before

            await server.restart(wiped=True)
            add_pod(sandbox, "later", "a", phase="Failed")
            await eventually(lambda: has("placed a", " 0 failed"))

    async with inventory(bus, sandbox, tmp_path) as third:
        await eventually(lambda: third("tas_outcomes_pods") == 4)
        add_pod(sandbox, "last", "a")
        await eventually(lambda: third("tas_outcomes_total", event="placed") > 0)

        # Another list has a pod that no watch has shown, and that was placed before the end of the log.
        sandbox.cut_watches()
        sandbox.faults.answer(503, times=4, which=lambda call: call.verb in {"list", "watch"})
        add_pod(sandbox, "listed", "a", **running_since(1800))
        sandbox.forget_history()
        await eventually(lambda: third("tas_outcomes_pods") == 6)
        add_pod(sandbox, "end", "b.c")
        await eventually(lambda: third("tas_outcomes_total", event="placed") == 2)
        # What happened long before the end of the log is in it.
        placed = [word(each) for each in await logged(bus) if isinstance(each, Placed)]
        assert placed == ["placed a", "placed a", "placed b.c"]
