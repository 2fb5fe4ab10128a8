"""What is measured under fire: memory, labels, answers of the extender, requests to the API server."""

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import mean, quantiles
from types import MappingProxyType
from typing import Any, NamedTuple

import psutil

from tests.integration.replicas import Replica

WARM_UP_SECONDS = 300.0
"""How long a process starts up: until then it gets the first change of each of 2,000 nodes, and its memory grows."""

LIVED_SECONDS = 300.0
"""How long a process must have lived after that before the growth of its memory says anything."""

GROWTH = 0.02
"""How much more memory a process may use in the last third of its life than in the middle third."""

HEAP_GROWTH = 0.1
"""As much for the live heap of nats-server, whose lower quartile differs by up to 4 % between thirds of a flat run."""

WORKERS = "system:serviceaccount:"

SERVER = "nats-server"
SERVER_HEAP = "nats-server, live heap"
"""What is left after a garbage collection. Between two of them the garbage grows to as much again.

So the resident memory of a Go process goes up and down, and says nothing about growth. The live heap has peaks, too, of
up to three times the level below them: what consumers that start again read from the beginning is on its way. So the
lower quartile is compared: a leak lifts the level, and the place of the peaks does not matter.
"""

_COLLECTION = re.compile(rb"^gc \d+ @.* \d+->\d+->(\d+) MB,", re.MULTILINE)
"""A line of `GODEBUG=gctrace=1`: the heap at the begin and at the end of the collection, and what is left."""

_TAIL_BYTES = 16384


@dataclass(slots=True, kw_only=True)
class Report:
    """Everything that was measured; times are Unix seconds.

    Attributes:
        size: The cluster and its load.
        faults: When each fault began, and which fault it was.
        waits: When each pod was created, and how many seconds it waited for its node.
        wrong_labels: How many nodes had labels other than those of the policies, at each time.
        memory: The resident bytes of each process, a worker's without what its allocator keeps free, and the live heap
            of nats-server, at each time.
        growth: See `Memory.growth`.
        statuses: How often the extenders answered with each status; 0: no answer.
        requests: How often each request was sent to the API server.
        events: How often each event was logged.
    """

    size: dict[str, Any]
    faults: list[tuple[float, str]] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)
    wrong_labels: list[tuple[float, int]] = field(default_factory=list)
    memory: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    growth: dict[str, float] = field(default_factory=dict)
    statuses: dict[int, int] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)


class Life(NamedTuple):
    """One process: the command of a replica between two ends."""

    name: str
    pid: int

    def __str__(self) -> str:
        return f"{self.name} ({self.pid})"


class Memory:
    """The resident memory of processes over time.

    A third is judged by the mean of its measurements. Not by the median: it jumps if a level of two, some MiB apart, is
    the more frequent one.

    Attributes:
        sizes: For each process its measurements: time in Unix seconds, bytes.
    """

    def __init__(self) -> None:
        self.sizes: defaultdict[Life, list[tuple[float, int]]] = defaultdict(list)

    def measure(self, processes: Iterable[tuple[str, int]]) -> None:
        """Measures each process (name, pid) that runs."""
        now = time.time()
        for name, pid in processes:
            try:
                size = psutil.Process(pid).memory_info().rss
            except psutil.Error:
                continue
            self.sizes[Life(name, pid)].append((now, size))

    def measure_heap(self, pid: int, log: Path) -> None:
        """Measures the live heap of nats-server, which writes its collections to this log."""
        with log.open("rb") as lines:
            lines.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            collections = _COLLECTION.findall(lines.read())
        if collections:
            self.sizes[Life(SERVER_HEAP, pid)].append((time.time(), int(collections[-1]) << 20))

    def growth(
        self,
        *,
        after: float,
        leases: Mapping[str, Iterable[float]] = MappingProxyType({}),
        lived: float = LIVED_SECONDS,
    ) -> dict[str, float]:
        """For each process that has lived so long: by which part its memory is larger in the last third than before.

        Compared with the middle third of its life after `WARM_UP_SECONDS`. Only measurements `after` this time count:
        until then a new bus fills up, since SAMPLES keeps ten minutes. Of nats-server it is the live heap.

        `leases`: when each replica has got a lease, by its name. A process on standby starts up again when it gets its
        first lease: until then it has not worked.
        """
        found = {}
        for life, measured in self.sizes.items():
            if life.name == SERVER:
                continue
            began, ended = measured[0][0], measured[-1][0]
            began = min((at for at in leases.get(life.name, ()) if began <= at <= ended), default=began)
            first = max(after, began + WARM_UP_SECONDS)
            sizes = [(at, size) for at, size in measured if at >= first]
            if sizes and sizes[-1][0] - sizes[0][0] >= lived:
                third = len(sizes) // 3
                level = _lower_quartile if life.name == SERVER_HEAP else mean
                before, last = ([size for _, size in part] for part in (sizes[third:-third], sizes[-third:]))
                found[str(life)] = level(last) / level(before) - 1
        return found


def grown(growth: Mapping[str, float]) -> dict[str, float]:
    """The processes of `Memory.growth` that use more memory than they may."""
    return {
        process: part
        for process, part in growth.items()
        if part > (HEAP_GROWTH if process.startswith(SERVER_HEAP) else GROWTH)
    }


def _lower_quartile(sizes: Sequence[int]) -> float:
    return quantiles(sizes, n=4)[0]


def running(replicas: Iterable[Replica]) -> list[tuple[str, int]]:
    """The name and the process of each replica that runs."""
    return [(each.name, each.pid) for each in replicas if not each.ended]


def requests(logs: Iterable[Path]) -> Counter[str]:
    """How often the account of each worker sent which request: account, verb, resource and status, from audit logs."""
    found: Counter[str] = Counter()
    for path in logs:
        with path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n") or WORKERS.encode() not in line:
                    continue
                entry = json.loads(line)
                user = entry["user"]["username"]
                if user.startswith(WORKERS) and entry["stage"] != "ResponseStarted":
                    resource = entry.get("objectRef", {}).get("resource", "")
                    status = entry.get("responseStatus", {}).get("code", 0)
                    found[f"{user.rpartition(':')[2]} {entry['verb']} {resource} {status}"] += 1
    return found


def leases(replicas: Iterable[Replica]) -> dict[str, list[float]]:
    """When each replica has got a lease, in Unix seconds."""
    return {
        each.name: [
            datetime.fromisoformat(event["time"]).timestamp()
            for event in each.events()
            if event["event"] == "lease_acquired"
        ]
        for each in replicas
    }


def events(replicas: Iterable[Replica]) -> Counter[str]:
    """How often each event is in the logs of the replicas, and how often each level."""
    found: Counter[str] = Counter()
    for each in replicas:
        for event in each.events():
            found[event["event"]] += 1
            found[f"level {event['level']}"] += 1
    return found
