"""`tas demo`: each demo runs to its end, prints its steps, and fails if an expected state is not observed."""

import asyncio
import io
import os
import signal

import psutil
import pytest
from rich.console import Console

from cli.loading import load_settings
from lab.demo.demo import run_story
from lab.demo.stories import STORIES
from tests.integration.cli.tas import Tas

STEPS = {
    "health-metric": [
        "expected  every worker is ready",
        "node-1 reports health_metric=0, node-2 reports health_metric=0, node-3 reports health_metric=0",
        "observed  node-1 10, node-2 10, node-3 10",
        "observed  demo-app-1 is on node-1",
        "node-2 reports health_metric=1",
        "observed  node-2: Node violates demo-policy: health_metric of demo Equals 1",
        "expected  demo-app-2 is placed on node-1 or node-3",
        "observed  demo-app-2 is on node-3",
        "node-1 reports health_metric=2",
        "observed  node-1 has demo-policy=violating",
        "pod demo-app-1 is evicted",
        "observed  demo-app-3 is on node-3",
        "node-1 reports health_metric=0, node-2 reports health_metric=0",
        "observed  no node has a label of the demo",
        "observed  every node passes",
    ],
    "labeling": [
        "observed  MetricsSeen True, Ready True, Violating False",
        "observed  no node has a label of the demo",
        "observed  demo-app-1 is on node-1",
        "node-1 reports metric_card0=150",
        "observed  node-1 has telemetry.aware.scheduling.labeling-policy/card0=true",
        "observed  demo-app-2 is on node-2",
        "node-2 reports metric_card1=250",
        "node-2 has telemetry.aware.scheduling.labeling-policy/card1=true",
        "observed  demo-app-3 is Pending: 0/2 nodes are available: 2 node(s) didn't match Pod's node affinity",
        "node-1 reports metric_card0=50",
        "observed  node-2 has telemetry.aware.scheduling.labeling-policy/card1=true",
        "observed  demo-app-3 is on node-1",
        "node-2 reports metric_card1=50",
        "observed  no node has a label of the demo",
    ],
    "gpu": [
        "gpu-demo-1 gets two GPU cards",
        "pod demo-app-1 is created, which requests i915 1, millicores 600",
        "observed  demo-app-2 has card",
        "observed  gpu-demo-",
        "has telemetry.aware.scheduling.gpu-health/gas-disable-card",
        "has disabled card",
        "observed  demo-app-3 has card",
        "observed  demo-app-4 is Pending: 0/2 nodes are available: 2 Not enough GPU-resources",
        "observed  no node has a label of the demo",
        "observed  demo-app-4 has card",
    ],
    "memory": [
        "node-1 reports memory_MemFree_bytes=4Gi, node-2 reports memory_MemFree_bytes=8Gi",
        "observed  node-1 9, node-2 10, node-3 8",
        "observed  node-3: Node violates memory-policy: memory_MemFree_bytes of demo LessThan 2Gi",
        "observed  demo-app-1 is on node-2",
        "observed  demo-app-2 is on node-1",
        "observed  demo-app-3 is Pending: 0/3 nodes are available: 3 Node violates memory-policy",
        "node-3 reports memory_MemFree_bytes=16Gi",
        "observed  node-3 has telemetry.intel.com/recovered=",
        "observed  demo-app-3 is on node-3",
    ],
}
"""Parts of the output of each demo, in this order."""


def missing_steps(out: str, words: list[str]) -> list[str]:
    """The parts that are not in `out` after the previous parts."""
    missing, rest = [], out
    for each in words:
        _, found, after = rest.partition(each)
        if found:
            rest = after
        else:
            missing.append(each)
    return missing


def processes_of(tas: Tas) -> list[int]:
    """Processes with this user's folders in their arguments, such as the nats-server of a demo."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any(str(tas.home) in argument for argument in process.info["cmdline"] or ())
    ]


@pytest.mark.parametrize("story", STORIES)
async def test_a_demo_observes_all_that_it_expects_and_leaves_nothing(tas: Tas, story: str) -> None:
    done = await tas("demo", story, "--within", "120s")
    assert done.code == 0, done.out + done.err
    assert missing_steps(done.out, STEPS[story]) == [], done.out
    assert done.out.endswith(f"{story}: all steps succeeded\n")
    assert done.out.count("    expected  ") == done.out.count("    observed  ")
    assert "\x1b" not in done.out
    assert done.err == ""
    assert tas.left_behind() == []
    assert processes_of(tas) == []


@pytest.mark.long
@pytest.mark.ci
async def test_a_demo_fails_at_a_state_that_it_does_not_observe() -> None:
    out = io.StringIO()
    code = await run_story(
        load_settings("demo", {}),
        STORIES["health-metric"],
        console=Console(file=out, highlight=False, soft_wrap=True),
        within=40.0,
        workers=("materialize", "watch", "evaluate", "extender"),  # nobody labels
    )
    assert code == 1
    assert out.getvalue().endswith(
        " 8  node-1 reports health_metric=2\n"
        "    expected  node-1 has demo-policy=violating\n"
        "    FAILED    no node has a label of the demo (after 40 s)\n"
    )


async def test_a_demo_with_a_too_short_time_limit_fails_with_code_1(tas: Tas) -> None:
    done = await tas("demo", "memory", "--within", "1ms")
    assert done.code == 1
    assert done.out.count("FAILED") == 1
    assert done.out.endswith("memory: failed\n")
    assert tas.left_behind() == []


async def test_an_interrupted_demo_ends_with_code_1_and_leaves_nothing(tas: Tas) -> None:
    process = await tas.start("demo", "memory")
    assert process.stdout is not None
    async with asyncio.timeout(120):
        async for line in process.stdout:
            if b"all workers are started" in line:
                break
        os.kill(process.pid, signal.SIGINT)
        out, err = await process.communicate()
    assert process.returncode == 1, (out, err)
    assert tas.left_behind() == []
    assert processes_of(tas) == []


async def test_an_invalid_time_limit_is_refused(tas: Tas) -> None:
    done = await tas("demo", "labeling", "--within", "soon")
    assert done.code == 2
    assert "--within" in done.err
    assert done.out == ""
