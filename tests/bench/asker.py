"""The load of agents: prioritize of names, asked of one agent after another at an even rate.

`python -m tests.bench.asker PORT RATE NODES NAME…` asks until SIGTERM, then prints an `Asked` as one line of JSON.
"""

import signal
import sys
import time
from collections.abc import Sequence
from itertools import cycle, islice

import msgspec

from tas.agents.file import AgentVerb
from tests.bench import cluster
from tests.bench.client import Client, post

LISTS = 16


class Asked(msgspec.Struct, frozen=True):
    """How many answers came, in which time."""

    answers: int
    seconds: float

    @property
    def rate(self) -> float:
        """Answers a second."""
        return self.answers / self.seconds


def _ask(port: int, rate: float, nodes: int, agents: Sequence[str]) -> Asked:
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    names = cluster.node_names(nodes)
    bodies = [
        cluster.requesting(number, found)
        for number, found in enumerate(islice(cluster.lists_of_names(names, nodes, seed=nodes), LISTS))
    ]
    requests = cycle([post(f"/{agent}/{AgentVerb.PRIORITIZE}", body) for body in bodies for agent in agents])
    answers, began = 0, time.monotonic()
    with Client(port) as client:
        while not stopped:
            client.ask(next(requests))
            answers += 1
            if answers == 1:
                print("asking", flush=True)
            time.sleep(max(0.0, began + answers / rate - time.monotonic()))
    return Asked(answers=answers, seconds=time.monotonic() - began)


if __name__ == "__main__":
    found = _ask(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    print(msgspec.json.encode(found).decode())
