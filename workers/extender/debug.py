"""`/debug/explain` of the extender: its current answers and their reasons, from the view that it serves from."""

import time
from collections.abc import Callable, Mapping
from http import HTTPStatus

import msgspec
from aiohttp import web

from tas.errors import shortened
from tas.explain.explain import explain_node, explain_policy
from tas.explain.pods import explain_pod
from tas.extender.decision import Pod
from tas.extender.telemetry import TelemetryDecider
from tas.policy.policy import POD_LABEL, PolicyKey
from tas.values.names import is_dns_label, is_label_value, is_subdomain
from tas.view.view import View

PATH = "/debug/explain"

MAX_NODES = 100
"""Limit of nodes in a response: explaining 15,000 nodes would delay the scheduler by a second."""

_USAGE = (
    f"one of ?node=NAME, ?policy=NAMESPACE/NAME or ?pod=NAMESPACE/NAME&policy=NAME[&nodes=A,B], at most {MAX_NODES}"
)


class ExplainHandler:
    """Answers `GET /debug/explain` with the JSON of `tas.explain`."""

    def __init__(self, view: View, decider: TelemetryDecider, *, clock: Callable[[], float] = time.time) -> None:
        self._view = view
        self._decider = decider
        self._clock = clock

    def route(self) -> web.RouteDef:
        """The route, for the health port or the extender's port."""
        return web.get(PATH, self._handle)

    async def _handle(self, request: web.Request) -> web.Response:
        try:
            explained = self._explained(request.query)
        except ValueError as error:
            return _json({"error": str(error)}, HTTPStatus.BAD_REQUEST)
        return _json(explained, HTTPStatus.OK)

    def _explained(self, query: Mapping[str, str]) -> object:
        """The explanation that `query` requests. Raises ValueError for an invalid query."""
        now = self._clock()
        self._view.advance(now)
        if unknown := query.keys() - {"node", "policy", "pod", "nodes"}:
            raise ValueError(f"{shortened(min(unknown))}: not a parameter of {PATH}: {_USAGE}")
        if "pod" in query and "node" not in query:
            return self._pod(query, now)
        if query.keys() == {"node"}:
            if not is_subdomain(query["node"]):
                raise ValueError(f"node = {shortened(query['node'])}: must be a node's name")
            return explain_node(self._view, query["node"], now)
        if query.keys() == {"policy"}:
            return explain_policy(self._view, PolicyKey(*_pair("policy", query["policy"])), now, limit=MAX_NODES)
        raise ValueError(_USAGE)

    def _pod(self, query: Mapping[str, str], now: float) -> object:
        namespace, name = _pair("pod", query["pod"])
        policy = query.get("policy")
        if policy is not None and not is_label_value(policy):
            raise ValueError(f"policy = {shortened(policy)}: must be the value of the pod's label {POD_LABEL}")
        nodes = query["nodes"].split(",") if "nodes" in query else sorted(self._view.nodes)[:MAX_NODES]
        if len(nodes) > MAX_NODES:
            raise ValueError(f"nodes: {len(nodes)} given, at most {MAX_NODES} are explained at once")
        labels = {} if policy is None else {POD_LABEL: policy}
        pod = Pod(namespace=namespace, name=name, uid="", labels=labels)
        return explain_pod(self._view, self._decider, pod, nodes, now)


def _pair(field: str, text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not slash or not is_dns_label(namespace) or not is_subdomain(name):
        raise ValueError(f"{field} = {shortened(text)}: must be NAMESPACE/NAME")
    return namespace, name


def _json(value: object, status: HTTPStatus) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")
