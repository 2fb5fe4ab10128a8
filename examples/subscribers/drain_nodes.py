"""Drains the nodes that a policy has labelled: cordons them, and evicts their pods; uncordons them without the label.

`python drain_nodes.py demo-policy`

An event says when to look. What counts is the label of the node at the API server, since `labels` sets it only within
the limits of the breaker. Nothing is cordoned or evicted while labels are paused, while a breaker is tripped, and if
the breaker has not admitted the node. Disruption budgets are obeyed by the API server: such a pod is tried again.
Pods of DaemonSets and static pods stay.
"""

import argparse
import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import suppress

import aiohttp
from kubernetes_asyncio import client, config

from bus.buckets import PAUSED
from bus.connection import Bus
from bus.errors import BusError
from bus.kinds import BREAKER_RECORDS, PAUSE_RECORDS
from bus.subscription import Subscription
from tas.events.data import BreakerReset, LabelApplied, LabelRemoved
from tas.verdict.freeze import ALL, Breaker
from tas.verdict.verdict import VIOLATING

MARK = "example.com/cordoned-by"
"""The annotation of the nodes that this program has cordoned: only these are uncordoned."""

AGAIN_SECONDS = 10.0
"""The wait before the next attempt for pods that could not be evicted, and while evictions are held back."""

ERRORS = (client.ApiException, aiohttp.ClientError, TimeoutError, BusError)

log = logging.getLogger("drain")


class HeldBackError(Exception):
    """Why a node must not be drained now."""


async def check_brake(bus: Bus, policy: str, node: str) -> None:
    """Raises HeldBackError unless everything is there that allows the label; BusError."""
    if (await PAUSE_RECORDS.get(bus, PAUSED)).present:
        raise HeldBackError("labels are paused")
    for name in (policy, ALL):
        breaker = (await BREAKER_RECORDS.get(bus, name)).readable()
        if isinstance(breaker, Breaker) and breaker.trip is not None:
            raise HeldBackError(f"the breaker {name} has tripped")
        if breaker is None or node not in breaker.nodes:
            raise HeldBackError(f"the breaker {name} has not admitted {node}")


def must_move(pod: client.V1Pod) -> bool:
    """Whether a drain evicts the pod: `kubectl drain` leaves the same ones."""
    owners = pod.metadata.owner_references or []
    if any(owner.controller and owner.kind == "DaemonSet" for owner in owners):
        return False
    return "kubernetes.io/config.mirror" not in (pod.metadata.annotations or {}) and (
        pod.status.phase not in ("Succeeded", "Failed")
    )


class Drainer:
    """Compares all nodes with their labels, and does what is missing. It may be killed at any line, or run twice."""

    def __init__(self, api: client.ApiClient, bus: Bus, policy: str) -> None:
        self.wake = asyncio.Event()
        self._core = client.CoreV1Api(api)
        self._bus = bus
        self._policy = policy

    async def run(self) -> None:
        """Works when woken up, and again while something is left to do."""
        while True:
            self.wake.clear()
            finished = False
            try:
                finished = await self.work()
            except ERRORS as error:
                log.warning("interrupted: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(None if finished else AGAIN_SECONDS):
                    await self.wake.wait()

    async def work(self) -> bool:
        """One pass over all nodes; returns whether nothing is left to do. Raises `ERRORS`."""
        finished = True
        for node in (await self._core.list_node()).items:
            name = node.metadata.name
            if (node.metadata.labels or {}).get(self._policy) == VIOLATING:
                try:
                    finished = await self._drain(node) and finished
                except HeldBackError as reason:
                    log.info("%s is not drained: %s", name, reason)
                    finished = False
            elif MARK in (node.metadata.annotations or {}):
                await self._patch(node, cordoned=None)
                log.info("%s is uncordoned", name)
        return finished

    async def _drain(self, node: client.V1Node) -> bool:
        """Whether all pods that must move are gone."""
        name = node.metadata.name
        await check_brake(self._bus, self._policy, name)
        if not node.spec.unschedulable:
            await self._patch(node, cordoned=True)
            log.info("%s is cordoned", name)
        pods = await self._core.list_pod_for_all_namespaces(field_selector=f"spec.nodeName={name}")
        left = [pod for pod in pods.items if must_move(pod)]
        for pod in left:
            await check_brake(self._bus, self._policy, name)  # somebody may pause in between
            await self._evict(pod)  # changes nothing for a pod that is being deleted
        return not left

    async def _evict(self, pod: client.V1Pod) -> None:
        metadata = client.V1ObjectMeta(name=pod.metadata.name, namespace=pod.metadata.namespace)
        eviction = client.V1Eviction(
            metadata=metadata,
            delete_options=client.V1DeleteOptions(preconditions=client.V1Preconditions(uid=pod.metadata.uid)),
        )
        try:
            await self._core.create_namespaced_pod_eviction(metadata.name, metadata.namespace, eviction)
        except client.ApiException as error:
            if error.status == 429:
                log.info("%s/%s stays for now: a disruption budget needs it", metadata.namespace, metadata.name)
            elif error.status not in (404, 409):  # gone, or another pod of this name
                raise
        else:
            log.info("%s/%s is evicted", metadata.namespace, metadata.name)

    async def _patch(self, node: client.V1Node, *, cordoned: bool | None) -> None:
        """Changes the node, if it is still as it was read: 409 otherwise, and the next pass reads it again."""
        annotations = {MARK: f"drain-{self._policy}" if cordoned else None}
        metadata = {"resourceVersion": node.metadata.resource_version, "annotations": annotations}
        await self._core.patch_node(node.metadata.name, {"metadata": metadata, "spec": {"unschedulable": cordoned}})


async def main(arguments: Sequence[str] | None = None) -> None:
    """Drains until cancelled."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy", help="the name of a policy with the strategy deschedule: the key of its label")
    parser.add_argument("--bus", default=os.environ.get("TAS_BUS", "nats://127.0.0.1:4222"))
    parser.add_argument("--kubeconfig", help="default: ~/.kube/config")
    given = parser.parse_args(arguments)
    of = (LabelApplied, LabelRemoved, BreakerReset)
    own_name = f"drain-{given.policy}"[:64].replace(".", "_")
    # Events of the last minute, so that none is missed between the first pass and the begin of the subscription.
    subscription = Subscription(given.bus, own_name, of=of, policy=given.policy, resync=True, since_seconds=60)
    async with (
        await config.new_client_from_config(given.kubeconfig) as api,
        subscription as events,
        asyncio.TaskGroup() as tasks,
    ):
        drainer = Drainer(api, events.bus, given.policy)
        tasks.create_task(drainer.run())
        async for _ in events:
            drainer.wake.set()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
