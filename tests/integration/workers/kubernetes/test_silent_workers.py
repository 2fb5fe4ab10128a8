"""What workers say that stay ready with what they have, while the API server does not answer."""

from contextlib import AsyncExitStack
from pathlib import Path

from prometheus_client import CollectorRegistry

from tas.enforcing.brake import BrakeSettings
from tests.integration.servers import Server, eventually
from tests.integration.workers.running import running
from tests.integration.workers.whole_process import NumberedContext, settings_of_all
from tests.kubernetes.admin import Admin
from tests.kubernetes.world import deschedule
from tests.sandbox import Sandbox
from workers.runtime import WithConcerns

NAMES = ("watch", "labels", "marks", "resources", "inventory", "evictions")
FOREVER = 10**6


async def test_each_worker_that_follows_objects_says_that_it_hears_of_no_change(
    sandbox: Sandbox, admin: Admin, kubeconfig: Path, namespace: str, server: Server
) -> None:
    """`watch` alone said so, by not being ready: of a process with `labels` everything said that all is well."""
    await admin.create_policy(namespace, "demo", strategies=deschedule(taint={"effect": "NoSchedule"}))
    settings = settings_of_all(server.url, kubeconfig, stale_after=60.0, brake=BrakeSettings())
    async with AsyncExitStack() as stack:
        workers = await NumberedContext(settings, stack, CollectorRegistry(), number="").build(NAMES)
        followers = [each for each in workers if each.name != "watch"]

        def silent() -> set[str]:
            return {
                each.name
                for each in followers
                if isinstance(each, WithConcerns) and any("hears of no change of" in said for said in each.concerns())
            }

        for each in workers:
            await stack.enter_async_context(running(each))
        await eventually(lambda: all(each.unready() is None for each in followers if each.name != "evictions"))
        await eventually(lambda: sandbox.count()["watch", "pods"] > 0)
        assert silent() == set()
        sandbox.faults.answer(500, times=FOREVER, which=lambda call: call.verb in ("list", "watch"))
        sandbox.cut_watches()
        await eventually(lambda: silent() == {each.name for each in followers})
        assert all(each.unready() is None for each in followers if each.name != "evictions"), "they go on"
        sandbox.faults.clear()
        await eventually(lambda: silent() == set())
