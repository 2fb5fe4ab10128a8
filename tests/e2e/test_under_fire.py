"""A cluster in use, two replicas of every worker, and one fault after another: at the end everything is right.

Nodes, values and policies change all the time, pods are created, and the workers are restarted one by one. By default a
small cluster for a minute. `TAS_FIRE=half-hour` is a large one for half an hour: `make fire` runs it. All figures are
written to the file `TAS_FIRE_REPORT`, and `python -m tests.e2e.fire.plots` draws the file.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path

import orjson
import pytest

from bus.connection import Bus
from tests.integration.servers import eventually

from .cluster import Cluster, extender
from .conftest import find_binaries
from .controlplane import ControlPlane, control_plane
from .fire.faults import Faults
from .fire.figures import LIVED_SECONDS, SERVER_HEAP, Report, events, grown, leases, requests
from .fire.observer import Observer
from .fire.size import SIZES
from .fire.stage import Stage, stage
from .fire.users import Users

pytestmark = [pytest.mark.nightly, pytest.mark.seeded]

SIZE = SIZES[os.environ.get("TAS_FIRE", "minute")]
SETTLED_SECONDS = 300.0
"""Within this time after the last fault everything must be right, on a busy machine."""

LAST_PODS = [f"fire-last-{number}" for number in range(10)]


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane for this test alone, which kills its API server."""
    found = find_binaries()
    if found is None:
        pytest.skip("no control plane to test against")
    folder = tmp_path / "plane"
    folder.mkdir()
    with control_plane(folder, found) as plane:
        yield plane


@pytest.mark.timeout(3600)
async def test_after_faults_of_every_kind_each_label_is_right_and_no_process_has_grown(
    plane: ControlPlane, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    async with stage(plane, tmp_path, SIZE) as scene:
        users, faults = Users(scene), Faults(scene)
        observer = Observer(scene, users)
        await users.arrive()
        await scene.adapter.serve("v1beta2")
        for each in scene.replicas:
            each.start()
        for each in scene.replicas:
            await each.ready()

        async def labels_are_right() -> bool:
            return not await observer.count_wrong_labels()

        await eventually(labels_are_right, within=SETTLED_SECONDS, every=SIZE.measure_seconds / 2)
        entry = extender(f"http://127.0.0.1:{scene.port}", names_only=True, httpTimeout="2s")
        with Cluster(plane).scheduler(entry), reporting(scene, users, faults, observer) as report:
            began = time.time()
            everything = (
                *(users.change_values(), users.change_objects(), users.create_pods()),
                *(observer.probe(), observer.measure()),
            )
            async with meanwhile(*everything):
                await faults.go_on()
            lasted = time.time() - began

            try:
                settled = await eventually(labels_are_right, within=SETTLED_SECONDS, every=SIZE.measure_seconds / 2)
            except AssertionError as error:
                must = users.labels()
                raise AssertionError({node: must[node] for node in await users.with_wrong_labels()}) from error
            async with Bus.connect(scene.server.url, name="fire", streams=()) as bus:
                await bus.wait_connected()
                await eventually(lambda: is_lag_zero(bus), within=SETTLED_SECONDS, every=0.2)
            # The scheduler asks either extender. Its view may be behind that of the workers that write labels.
            await eventually(observer.extenders_agree, within=SETTLED_SECONDS, every=0.2)
            policy_of = {name: users.a_policy() for name in LAST_PODS}
            for name, policy in policy_of.items():
                await users.create_pod(name, policy)
            await eventually(lambda: all_placed(users), within=SETTLED_SECONDS, every=0.2)
            placed = await users.follow_pods()
        for each in scene.replicas:
            each.must_run()

    assert {kind.split()[0] for _, kind in faults.noted} == faults.KINDS
    assert any(request.endswith(" 429") for request in report.requests), "no request was refused"
    assert report.events["kubernetes_watch_expired"], "no watch has expired"
    assert report.events["source_failed"], "no poll of the adapter has failed"
    assert observer.statuses[200] > observer.statuses.total() / 2, observer.statuses
    assert not observer.errors
    assert not {name for name in LAST_PODS if placed[name] in users.rejected(policy_of[name])}
    assert grown(report.growth) == {}
    assert observer.freed, "no worker has returned memory"
    assert SERVER_HEAP in {life.name for life in observer.memory.sizes}, "nats-server has logged no collection"
    if lasted > 3 * LIVED_SECONDS:
        assert len(report.growth) > len(scene.replicas) / 2, "too few processes have lived long enough"
    waits = sorted(wait for _, wait in users.waits)
    measured(
        f"under fire: {len(faults.noted)} faults in {lasted:.0f} s; {len(waits)} pods placed, median "
        f"{waits[len(waits) // 2]:.1f} s, last {waits[-1]:.1f} s; every label is right {settled:.1f} s after the end"
    )


@contextmanager
def reporting(scene: Stage, users: Users, faults: Faults, observer: Observer) -> Iterator[Report]:
    """Completes the report at the end of the body, also if the body fails."""
    report = Report(size=asdict(scene.size))
    try:
        yield report
    finally:
        report.faults = faults.noted
        report.waits = users.waits
        report.wrong_labels = observer.wrong_labels
        report.statuses = observer.statuses
        report.memory = {str(life): sizes for life, sizes in observer.memory.sizes.items()}
        restarted = [at for at, kind in faults.noted if kind.startswith("rolling")]
        after = restarted[0] if restarted else time.time()
        report.growth = observer.memory.growth(after=after, leases=leases(scene.replicas))
        report.requests = requests(scene.plane.folder.glob("audit*.log"))
        report.events = events(scene.replicas)
        if path := os.environ.get("TAS_FIRE_REPORT"):
            Path(path).write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))


@asynccontextmanager
async def meanwhile(*work: Coroutine[object, object, None]) -> AsyncIterator[None]:
    """Runs these during the body; an error of any of them fails the test."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end


async def is_lag_zero(bus: Bus) -> bool:
    """Whether no shared consumer has messages to deliver or to wait for."""
    names = (await bus.api("CONSUMER.NAMES.SAMPLES"))["consumers"]
    found = [await bus.api(f"CONSUMER.INFO.SAMPLES.{name}") for name in names]
    shared = [info for info in found if "durable_name" in info["config"]]
    assert shared, "no shared consumer"
    return not any(info["num_pending"] + info["num_ack_pending"] for info in shared)


async def all_placed(users: Users) -> bool:
    await users.follow_pods()
    return not users.pending
