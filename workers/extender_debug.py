"""`/debug/explain` of the extender: what it would answer now, and why, from the view that it answers from."""

import time
from collections.abc import Callable, Mapping
from http import HTTPStatus

import msgspec
from aiohttp import web

from tas.errors import shortened
from tas.explain import explain_node, explain_pod, explain_policy
from tas.extender.decision import Pod
from tas.extender.telemetry import TelemetryDecider
from tas.names import is_dns_label, is_label_value, is_subdomain
from tas.policy import POD_LABEL, PolicyKey
from tas.view import View

PATH = "/debug/explain"

MAX_NODES = 100
"""How many nodes one answer explains: to explain 15,000 would hold up the scheduler for a second."""

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
        """For the health port, or if wished the extender's own."""
        return web.get(PATH, self._handle)

    async def _handle(self, request: web.Request) -> web.Response:
        try:
            explained = self._explained(request.query)
        except ValueError as error:
            return _json({"error": str(error)}, HTTPStatus.BAD_REQUEST)
        return _json(explained, HTTPStatus.OK)

    def _explained(self, query: Mapping[str, str]) -> object:
        """Raises ValueError for a question that cannot be answered."""
        now = self._clock()
        self._view.advance(now)
        if unknown := query.keys() - {"node", "policy", "pod", "nodes"}:
            raise ValueError(f"{shortened(min(unknown))}: no parameter of {PATH}: {_USAGE}")
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
