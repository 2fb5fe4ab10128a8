"""Calls an extender as kube-scheduler does (`pkg/scheduler/extender.go`, `k8s.io/kube-scheduler/extender/v1`)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from lab.sandbox.resources import Object

DEFAULT_TIMEOUT_SECONDS = 5.0
SCORE_UNIT = 10
"""MaxNodeScore over MaxExtenderPriority: the factor of an extender's scores, before its weight."""


class ExtenderError(Exception):
    """A failed call, with the scheduler's message."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """The result of a filter call."""

    feasible: list[str]
    failed: dict[str, str]
    """Reasons by node, for nodes where evicting pods could help."""
    unresolvable: dict[str, str]
    """Reasons by node, for nodes where evicting pods cannot help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extender:
    """An entry of `extenders` in a scheduler's configuration, with `nodeCacheCapable: true`."""

    url_prefix: str
    filter_verb: str
    prioritize_verb: str
    bind_verb: str
    weight: int
    timeout_seconds: float
    ignorable: bool
    managed_resources: frozenset[str]

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> "Extender":
        """The extender of an entry.

        Raises ValueError for unsupported fields: whole nodes, TLS, and times in other units than seconds.
        """
        if not entry.get("nodeCacheCapable") or entry.get("enableHTTPS"):
            raise ValueError("the sandbox calls extenders with nodeCacheCapable: true and without enableHTTPS only")
        timeout = str(entry.get("httpTimeout") or f"{DEFAULT_TIMEOUT_SECONDS}s")
        return cls(
            url_prefix=str(entry["urlPrefix"]).rstrip("/"),
            filter_verb=str(entry.get("filterVerb", "")),
            prioritize_verb=str(entry.get("prioritizeVerb", "")),
            bind_verb=str(entry.get("bindVerb", "")),
            weight=int(entry.get("weight", 1)),
            timeout_seconds=float(timeout.removesuffix("s")),
            ignorable=bool(entry.get("ignorable")),
            managed_resources=frozenset(each["name"] for each in entry.get("managedResources") or ()),
        )

    def is_interested(self, pod: Object) -> bool:
        """Whether the scheduler calls the extender for a pod: false if the pod uses none of its managed resources."""
        if not self.managed_resources:
            return True
        spec = pod["spec"]
        for container in [*spec.get("containers", ()), *(spec.get("initContainers") or ())]:
            resources = container.get("resources") or {}
            if not self.managed_resources.isdisjoint({*resources.get("requests", ()), *resources.get("limits", ())}):
                return True
        return False

    async def filter(self, session: aiohttp.ClientSession, pod: Object, names: Sequence[str]) -> Filtered:
        """The nodes that pass and fail; ExtenderError if the call fails."""
        answer = _lower(await self._send(session, self.filter_verb, pod, names))
        if message := answer.get("error"):
            raise ExtenderError(message)
        feasible = answer.get("nodenames") or []
        for name in feasible:
            if name not in names:
                raise ExtenderError(
                    f'extender "{self.url_prefix}" claims a filtered node "{name}" which is not found in the input '
                    "node list"
                )
        unresolvable = answer.get("failedandunresolvablenodes") or {}
        failed = {
            name: reason for name, reason in (answer.get("failednodes") or {}).items() if name not in unresolvable
        }
        return Filtered(feasible, failed, unresolvable)

    async def prioritize(self, session: aiohttp.ClientSession, pod: Object, names: Sequence[str]) -> dict[str, int]:
        """The weighted score of each node; empty if the call fails, which the scheduler ignores."""
        scores = dict.fromkeys(names, 0)
        try:
            hosts = [_lower(host) for host in await self._send(session, self.prioritize_verb, pod, names)]
            if any(type(host["score"]) is not int for host in hosts):
                return {}
            for host in hosts:
                if host["host"] in scores:
                    scores[host["host"]] += host["score"] * self.weight * SCORE_UNIT
        except (ExtenderError, KeyError, TypeError, AttributeError):
            return {}
        return scores

    async def bind(self, session: aiohttp.ClientSession, pod: Object, node: str) -> None:
        """Has the extender bind a pod; ExtenderError if the extender has not done it, or the call fails."""
        metadata = pod["metadata"]
        head = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
        answer = _lower(await self._post(session, self.bind_verb, head | {"Node": node}))
        if message := answer.get("error"):
            raise ExtenderError(message)

    async def _send(self, session: aiohttp.ClientSession, verb: str, pod: Object, names: Sequence[str]) -> Any:
        metadata = {key: value for key, value in pod["metadata"].items() if key != "managedFields"}
        request = {"Pod": pod | {"metadata": metadata}, "Nodes": None, "NodeNames": list(names)}
        return await self._post(session, verb, request)

    async def _post(self, session: aiohttp.ClientSession, verb: str, request: Object) -> Any:
        url = f"{self.url_prefix}/{verb}"
        timeout = aiohttp.ClientTimeout(total=self.timeout_seconds)
        try:
            async with session.post(url, json=request, timeout=timeout) as response:
                if response.status != 200:
                    raise ExtenderError(f"failed {verb} with extender at URL {url}, code {response.status}")
                body = await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ExtenderError(f'Post "{url}": {error or type(error).__name__}') from error
        if not body:
            raise ExtenderError("EOF")
        try:
            return json.loads(body)
        except ValueError as error:
            raise ExtenderError(f"cannot decode the answer of {url}: {error}") from error


def _lower(answer: Any) -> dict[str, Any]:
    """The answer with keys in lower case: Go's decoder ignores the case of keys."""
    if not isinstance(answer, dict):
        raise ExtenderError(f"json: cannot unmarshal {type(answer).__name__} into an object")
    return {key.lower(): value for key, value in answer.items()}
