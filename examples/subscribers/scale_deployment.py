"""Gives a Deployment fewer replicas while several nodes violate a policy, and all replicas afterwards.

`python scale_deployment.py --policy default/demo-policy --nodes 2 --normal 10 --reduced 2 default/batch`

An event says when to look. What counts are the verdicts of all nodes: so it does not matter if an event comes twice, or
if some were lost. A node whose state is not known changes nothing.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

import aiohttp
from kubernetes_asyncio import client, config

from bus.connection import Bus
from bus.errors import BusError
from bus.kinds import NODE_VERDICTS
from bus.subscription import Subscription
from tas.events.data import MetricEnded, MetricFresh, MetricStale, ViolationEnded, ViolationStarted
from tas.policy.policy import PolicyKey, StrategyType
from tas.policy.rules import State

ERRORS = (client.ApiException, aiohttp.ClientError, TimeoutError, BusError)


def full_name(text: str) -> tuple[str, str]:
    """A namespace and a name."""
    namespace, _, name = text.partition("/")
    if not namespace or not name:
        raise argparse.ArgumentTypeError(f"{text!r} must be NAMESPACE/NAME")
    return namespace, name


def replicas(
    nodes: Collection[str], states: Mapping[str, State], *, needed: int, normal: int, reduced: int
) -> int | None:
    """The replicas that the Deployment must have: `reduced` if at least `needed` of the nodes violate the policy.

    None if that depends on nodes whose state is not known.
    """
    violating = sum(states.get(node) is State.VIOLATED for node in nodes)
    unknown = sum(states.get(node, State.UNKNOWN) is State.UNKNOWN for node in nodes)
    if violating >= needed:
        return reduced
    return normal if violating + unknown < needed else None


async def stored_states(bus: Bus, policy: PolicyKey, strategy: StrategyType) -> dict[str, State]:
    """The state of each node, as evaluated last. Raises BusError."""
    states: dict[str, State] = {}
    for entry in await NODE_VERDICTS.entries(bus):
        verdict = entry.readable()
        of_policy = None if verdict is None else verdict.policies.get(policy)
        if of_policy is not None and strategy in of_policy.strategies:
            states[entry.key] = of_policy.strategies[strategy].state
    return states


async def main(arguments: Sequence[str] | None = None) -> None:
    """Scales at the start and after each event, until cancelled."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("deployment", type=full_name, metavar="NAMESPACE/NAME")
    parser.add_argument("--bus", default=os.environ.get("TAS_BUS", "nats://127.0.0.1:4222"))
    parser.add_argument("--kubeconfig", help="default: ~/.kube/config")
    parser.add_argument("--policy", required=True, type=full_name, metavar="NAMESPACE/NAME")
    parser.add_argument("--strategy", default=StrategyType.DONTSCHEDULE, type=StrategyType)
    parser.add_argument(
        "--selector", default="", help="only nodes with these labels, as the nodeSelector of the policy"
    )
    parser.add_argument("--nodes", required=True, type=int, help="so many nodes must violate the policy")
    parser.add_argument("--normal", required=True, type=int, help="replicas otherwise")
    parser.add_argument("--reduced", required=True, type=int, help="replicas then")
    given = parser.parse_args(arguments)
    namespace, name = given.deployment
    policy = PolicyKey(*given.policy)
    of = (ViolationStarted, ViolationEnded, MetricStale, MetricFresh, MetricEnded)

    async def scale(bus: Bus) -> None:
        states = await stored_states(bus, policy, given.strategy)
        listed = await client.CoreV1Api(api).list_node(label_selector=given.selector)
        nodes = [node.metadata.name for node in listed.items]
        wanted = replicas(nodes, states, needed=given.nodes, normal=given.normal, reduced=given.reduced)
        deployments = client.AppsV1Api(api)
        current = (await deployments.read_namespaced_deployment_scale(name, namespace)).spec.replicas
        if wanted not in (None, current):
            await deployments.patch_namespaced_deployment_scale(name, namespace, {"spec": {"replicas": wanted}})

    # Events that come twice, only restate what is, or happened before the first call of `scale`, do no harm.
    own_name = f"scale-{namespace}-{name}"[:64].replace(".", "_")
    subscription = Subscription(given.bus, own_name, of=of, policy=str(policy), resync=True, since_seconds=60)
    async with await config.new_client_from_config(given.kubeconfig) as api, subscription as events:
        await events.bus.wait_connected()
        try:
            await scale(events.bus)
        except ERRORS as error:
            missing = isinstance(error, client.ApiException) and error.status == 404
            sys.exit(f"there is no Deployment {namespace}/{name}" if missing else f"cannot scale: {error}")
        async for _ in events:
            try:
                await scale(events.bus)
            except ERRORS as error:
                await events.retry(error)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
