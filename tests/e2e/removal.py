"""The real API server for a history of the law of removal: does the changes, and reports all writes to the judge."""

import asyncio
import itertools
import json
import os
import random
import signal
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from bus.trying import Tries
from tas.values.backoff import Backoff
from tests.integration.removal.api import ADMIN, LABELS, Api, manifest, replacing
from tests.integration.removal.judge import Judge
from tests.integration.removal.model import Key, Spec
from tests.integration.removal.observed import NodeState, Request, Written
from tests.integration.servers import eventually
from tests.integration.watched import meanwhile
from tests.kubernetes.admin import MERGE_PATCH, POLICIES, Admin, AdminError
from tests.sandbox import Call
from workers.kubernetes.credentials import Credentials

from .cluster import Cluster

ORDER_SECONDS = 0.3
"""How long a write waits for earlier writes that the watch of the other resource delivers later."""

EARLY_SECONDS = 0.2
"""How much earlier than this process other processes may see a write."""

TURN = "tests/turn"
"""An annotation that every write of the test changes, and no other."""

CONNECTING = Tries((aiohttp.ClientConnectionError,), within=60.0, wait=Backoff(first=0.1, longest=1.0))
"""A busy API server ends a connection whose handshake takes too long."""

STOPS_SECONDS = (0.2, 1.2)
NODE_PATHS = "/api/v1/nodes"
KINDS = {"node": NODE_PATHS, "policy": f"{POLICIES}/taspolicies"}

_turns = itertools.count(1)


class RealApi:
    """Reports every write of nodes and policies to the judge, in the order of the writes."""

    def __init__(self, admin: Admin, cluster: Cluster, judge: Judge, log: Callable[[str], None]) -> None:
        self._admin = admin
        self._cluster = cluster
        self._judge = judge
        self._log = log
        self._current: dict[tuple[str, Key], dict[str, Any]] = {}
        self._waiting: list[tuple[int, float, str, dict[str, Any], bool]] = []
        self._handed_on: dict[tuple[str, Key], dict[str, Any]] = {}
        self._seen: list[tuple[float, int]] = []
        self._stops: list[tuple[float, float]] = []
        self._audit = cluster.audit.mark()
        judge.observed.early = EARLY_SECONDS
        of_workers = judge.stopped
        judge.stopped = lambda at: of_workers(at) + self._stopped(at)

    # Changes by users

    def nodes(self) -> Mapping[str, NodeState]:
        heads = [each["metadata"] for (kind, _), each in self._current.items() if kind == "node"]
        return {head["name"]: NodeState(0.0, head["uid"], head.get("labels", {})) for head in heads if _ours(head)}

    async def add_node(self, node: str, labels: Mapping[str, str]) -> None:
        metadata = {"name": node, "labels": {"kubernetes.io/hostname": node, **labels}, "annotations": _turn()}
        await self._seen_here("node", await self._admin.create(NODE_PATHS, {"metadata": metadata}))

    async def delete_node(self, node: str) -> None:
        await self._gone("node", ("", node), f"{NODE_PATHS}/{node}")

    async def label_node(self, node: str, labels: Mapping[str, str | None], *, manager: str = ADMIN) -> None:
        body = json.dumps({"metadata": {"labels": dict(labels), "annotations": _turn()}})
        path = f"{NODE_PATHS}/{node}?fieldManager={manager}"
        written = await self._admin.request("PATCH", path, json.loads(body), content_type=MERGE_PATCH)
        await self._seen_here("node", written)

    async def put_policy(self, key: Key, spec: Spec, before: Spec | None) -> None:
        path = self._admin.policies(key[0])
        if before is None:
            written = await self._admin.create(path, manifest(key, spec))
        else:
            written = await self._admin.patch(f"{path}/{key[1]}", {"spec": replacing(before, spec)})
        await self._seen_here("policy", written)

    async def delete_policy(self, key: Key) -> None:
        await self._gone("policy", key, f"{self._admin.policies(key[0])}/{key[1]}")

    async def _seen_here(self, kind: str, written: Mapping[str, Any]) -> None:
        """Waits until the watch has delivered this write."""
        head = written["metadata"]
        key = (head.get("namespace", ""), head["name"])

        def seen() -> bool:
            return _version(self._current.get((kind, key))) >= _version(written)

        await eventually(seen)

    async def _gone(self, kind: str, key: Key, path: str) -> None:
        await self._admin.delete(path)
        await eventually(lambda: (kind, key) not in self._current)

    # Faults

    async def disturb(self, chance: random.Random) -> None:
        """Stops the API server for a moment. Only the sandbox has other faults."""
        if chance.random() < 0.7:
            return
        seconds = chance.uniform(*STOPS_SECONDS)
        self._log(f"API server: stopped for {seconds:.2f} s")
        (pid,) = (each.pid for each in self._cluster.processes if each.name == "kube-apiserver")
        began = time.time()
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._stops.append((began, time.time()))
            os.kill(pid, signal.SIGCONT)

    def hide_policies(self, chance: random.Random) -> None:
        """Only the sandbox can do this."""

    def calm(self) -> None:
        """Without faults there is nothing to end."""

    def _stopped(self, at: float) -> float:
        """How long a patch that arrived at this time may have waited for the API server."""
        waited = [end - began for began, end in self._stops if end <= at <= end + ORDER_SECONDS + self._judge.late()]
        return max(waited, default=0.0)

    # Reports to the judge

    async def follow(self, kind: str, session: aiohttp.ClientSession, server: str, version: str) -> None:
        """Follows a watch. Runs until cancelled."""
        query = {"watch": "1", "resourceVersion": version}
        timeout = aiohttp.ClientTimeout(total=None)
        watch = partial(session.get, server + KINDS[kind], params=query, timeout=timeout)
        async with await CONNECTING.of(watch) as response:
            async for line in response.content:
                event = json.loads(line)
                self._take(kind, event["object"], gone=event["type"] == "DELETED")

    def _take(self, kind: str, found: dict[str, Any], *, gone: bool) -> None:
        head = found["metadata"]
        key = (head.get("namespace", ""), head["name"])
        if gone:
            self._current.pop((kind, key), None)
        else:
            self._current[kind, key] = found
        self._seen.append((time.time(), max(_version(found), self._seen[-1][1] if self._seen else 0)))
        self._waiting.append((_version(found), time.time(), kind, found, gone))

    async def hand_on(self) -> None:
        """Reports in order the writes that have waited long enough, and requests. Runs until cancelled."""
        while True:
            await asyncio.sleep(ORDER_SECONDS / 3)
            self._read_audit()
            until = time.time() - ORDER_SECONDS - self._judge.late()
            ripe = [each for each in self._waiting if each[1] < until]
            self._waiting = [each for each in self._waiting if each[1] >= until]
            for version, at, kind, found, gone in sorted(ripe, key=lambda each: each[0]):
                self._hand_on(version, at, kind, found, gone=gone)

    def _hand_on(self, version: int, at: float, kind: str, found: dict[str, Any], *, gone: bool) -> None:
        head = found["metadata"]
        key = (head.get("namespace", ""), head["name"])
        before = self._handed_on.pop((kind, key), None)
        if not gone:
            self._handed_on[kind, key] = found
        turn = head.get("annotations", {}).get(TURN)
        turn_before = None if before is None else before["metadata"].get("annotations", {}).get(TURN)
        written = Written(
            version=version,
            at=at,
            kind=kind,
            key=key,
            now=None if gone else found,
            before=before,
            by_test=turn != turn_before,
        )
        self._judge.take(written)

    def _read_audit(self) -> None:
        """Notes the requests of `labels` from the audit log."""
        path = self._cluster.audit.path
        with path.open("rb") as log:
            log.seek(self._audit)
            lines = log.read().splitlines(keepends=True)
        for line in lines:
            if not line.endswith(b"\n"):
                break
            self._audit += len(line)
            if LABELS.encode() in line:
                self._note(json.loads(line))

    def _note(self, entry: Mapping[str, Any]) -> None:
        meant = entry.get("objectRef", {})
        if not entry["userAgent"].startswith(LABELS) or entry["stage"] != "ResponseComplete":
            return
        at = datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp()
        place = bisect_right(self._seen, (at + EARLY_SECONDS + self._judge.late(), 0))
        call = Call(
            verb=entry["verb"],
            path=entry["requestURI"],
            user_agent=entry["userAgent"],
            status=entry.get("responseStatus", {}).get("code", 0),
            answered=datetime.fromisoformat(entry["stageTimestamp"]).timestamp(),
        )
        request = Request(at, self._seen[place - 1][1] if place else 0, call)
        if (entry["verb"], meant.get("resource")) == ("list", "taspolicies"):
            self._judge.observed.lists.append(request)
        elif (entry["verb"], meant.get("resource")) == ("patch", "nodes"):
            self._judge.observed.patches.setdefault(meant["name"], []).append(request)

    def other_nodes(self) -> dict[str, Mapping[str, str]]:
        """The labels of each node that is of no history: its policies are about these nodes, too."""
        heads = [each["metadata"] for (kind, _), each in self._current.items() if kind == "node"]
        return {head["name"]: head.get("labels", {}) for head in heads if not _ours(head)}

    async def relabel(self, nodes: Mapping[str, Mapping[str, str]]) -> None:
        """Gives nodes these labels and no others."""
        for node, labels in nodes.items():
            found = (await self._admin.get(f"{NODE_PATHS}/{node}"))["metadata"].get("labels", {})
            if found != labels:
                await self._admin.label_node(node, dict.fromkeys(found) | dict(labels))

    async def clean(self) -> None:
        """Deletes the nodes and policies of histories."""
        for kind, key in list(self._current):
            if kind == "policy":
                await self._gone(kind, key, f"{self._admin.policies(key[0])}/{key[1]}")
        for node in self.nodes():
            await self.delete_node(node)


def stage(cluster: Cluster) -> Callable[[Judge, Path, Callable[[str], None]], Any]:
    """The API server of `cluster` for one history at a time."""

    @asynccontextmanager
    async def on_cluster(judge: Judge, _: Path, log: Callable[[str], None]) -> AsyncIterator[tuple[Api, Path]]:
        credentials = await Credentials.load(cluster.kubeconfig)
        async with AsyncExitStack() as stack:
            admin = await stack.enter_async_context(Admin.connect(cluster.kubeconfig))
            connector = aiohttp.TCPConnector(ssl=credentials.tls if credentials.tls is not None else True)
            session = await stack.enter_async_context(
                aiohttp.ClientSession(connector=connector, headers=await credentials.headers(), read_bufsize=1 << 20)
            )
            api = RealApi(admin, cluster, judge, log)
            others: dict[str, Mapping[str, str]] = {}
            stack.push_async_callback(
                api.relabel, others
            )  # when the judge sees it no more: nothing of TAS removes these
            for kind, path in KINDS.items():
                listed = await _listed(admin, path)
                for found in listed["items"]:
                    api._take(kind, found, gone=False)
                version = listed["metadata"]["resourceVersion"]
                await stack.enter_async_context(meanwhile(api.follow(kind, session, credentials.server, version)))
            others.update(api.other_nodes())
            await stack.enter_async_context(meanwhile(api.hand_on()))
            await api.clean()
            with suppress(asyncio.CancelledError):
                yield api, cluster.kubeconfig
            await api.clean()

    return on_cluster


async def _listed(admin: Admin, path: str) -> dict[str, Any]:
    """The list of a resource, also if the API server still prepares its storage (429)."""
    found: dict[str, Any] = {}

    async def answered() -> bool:
        try:
            found.update(await admin.get(path))
        except AdminError as error:
            if error.status != 429:
                raise
        return bool(found)

    await eventually(answered, every=0.2)
    return found


def _ours(head: Mapping[str, Any]) -> bool:
    return TURN in head.get("annotations", {})


def _turn() -> dict[str, str]:
    return {TURN: str(next(_turns))}


def _version(found: Mapping[str, Any] | None) -> int:
    return 0 if found is None else int(found["metadata"]["resourceVersion"])
