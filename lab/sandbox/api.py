"""The API over HTTP: maps paths to verbs, and answers with objects, tables, paged lists and watches."""

import asyncio
import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from lab.sandbox.cluster import Cluster
from lab.sandbox.discovery import discover, root
from lab.sandbox.errors import Cause, PageNotFoundError, StatusError, invalid, method_not_allowed
from lab.sandbox.forms import Form, accepted
from lab.sandbox.metrics import Metrics
from lab.sandbox.protobuf import decode_object
from lab.sandbox.resources import CRDS, DEPLOYMENTS, NODES, PODS, RESOURCES, Object, Resource
from lab.sandbox.selectors import Matches, parse_selectors
from lab.sandbox.store import ForgottenError, encode, partial, whole
from lab.sandbox.tables import table
from lab.sandbox.watch import Watch

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
MAX_BODY_BYTES = 3 * 1024 * 1024
"""The limit of the API server."""
WATCH_SECONDS = 1800
"""How long a watch without `timeoutSeconds` lasts; the API server takes a random time of 1 to 2 times this."""

UNKNOWN_FORM = "the body of the request was in an unknown format - accepted media types include: "
CONTINUE_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


@dataclass(slots=True, kw_only=True)
class Call:
    """One request over HTTP."""

    verb: str
    """`get`, `list`, `watch`, `create`, `patch` or `delete`; the HTTP method for paths that are not of a resource."""
    path: str
    resource: str = ""
    """The plural of the resource; empty for discovery."""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    user_agent: str = ""
    status: int = 0
    """The status of the answer; 0 before the answer, and if the connection was dropped before."""
    answered: float = 0.0
    """When the complete answer was ready to be sent, in seconds since 1970; 0 if no complete answer was sent."""


class Api:
    """Answers requests."""

    def __init__(self, cluster: Cluster, metrics: Metrics, *, bookmark_seconds: float) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._bookmark_seconds = bookmark_seconds
        self._closing = False
        self._watching: set[asyncio.Transport] = set()

    def application(self) -> web.Application:
        """The application, with one handler for all paths: paths follow from the table of resources."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        return app

    @property
    def watches(self) -> int:
        """How many watches are open."""
        return len(self._watching)

    def end_watches(self) -> None:
        """Ends every watch with a complete answer, and each later watch at once: the server stops."""
        self._closing = True
        self._cluster.store.wake()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        return await self._respond(request, *call_of(request))

    async def _respond(self, request: web.Request, call: Call, resource: Resource | None) -> web.StreamResponse:
        try:
            if resource is None:
                return self._discover(request.path)
            self._cluster.must_serve(resource)
            form = accepted(request.headers.get("Accept", ""), verb=call.verb)
            if call.verb == "watch":
                return await self._watch(request, call, resource, form)
            if call.verb == "list":
                return json_answer(self._list(request.query, call, resource, form))
            return await self._act(request, call, resource, form)
        except StatusError as error:
            return json_answer(error.to_object(), error.code)
        except PageNotFoundError:
            return web.Response(status=404, text="404 page not found\n")

    def _discover(self, path: str) -> web.Response:
        if path in ("/healthz", "/livez", "/readyz"):
            return web.Response(text="ok")
        metrics = self._metrics.answer(path)
        if metrics is not None:
            return json_answer(metrics)
        served = [each for each in RESOURCES if self._cluster.serves(each)]
        document = discover(path.rstrip("/"), served, further_groups=self._metrics.groups)
        if document is None:
            if path.startswith("/api/v1/"):
                raise StatusError(404, "the server could not find the requested resource", details={})
            raise PageNotFoundError
        return json_answer(document)

    async def _act(self, request: web.Request, call: Call, resource: Resource, form: Form) -> web.Response:
        cluster, namespace, name = self._cluster, call.namespace, call.name
        agent = call.user_agent.partition("/")[0]
        manager = request.query.get("fieldManager") or agent or "unknown"
        done = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        match call.verb, call.subresource:
            case "get", "" | "status":
                answer = cluster.get(resource, namespace, name)
            case "create", "":
                answer = cluster.create(resource, namespace, await _body(request), manager=manager)
                return json_answer(self._shown(request, resource, answer, form), 201)
            case "create", "binding":
                cluster.bind(namespace, name, await _body(request), manager=manager)
                return json_answer(done | {"code": 201}, 201)
            case "create", "eviction":
                cluster.evict(namespace, name)
                return json_answer(done | {"code": 201}, 201)
            case "get" | "patch", "scale":
                if call.verb == "patch":
                    cluster.rescale(namespace, name, await _merge(request, resource), manager=manager)
                return json_answer(cluster.scale(namespace, name))
            case "patch", "" | "status" as below:
                patch = await _merge(request, resource)
                answer = cluster.patch(resource, namespace, name, patch, manager=manager, status=below == "status")
            case "delete", "":
                options = await _body(request) if request.can_read_body else {}
                uid = options.get("preconditions", {}).get("uid") if isinstance(options, dict) else None
                answer = cluster.delete(resource, namespace, name, uid=uid)
                if resource not in (PODS, CRDS):
                    details = {"name": name} | ({"group": resource.group} if resource.group else {})
                    details |= {"kind": resource.plural, "uid": answer["metadata"]["uid"]}
                    return json_answer(done | {"details": details})
            case _:
                raise method_not_allowed()
        return json_answer(self._shown(request, resource, answer, form))

    def _shown(self, request: web.Request, resource: Resource, stored: Object, form: Form) -> Object:
        if form is Form.TABLE:
            version = {"resourceVersion": stored["metadata"]["resourceVersion"]}
            return self._table(request.query, resource, [stored], version)
        return whole(resource, stored) if form is Form.WHOLE else partial(stored)

    def _table(
        self, query: Mapping[str, str], resource: Resource, objects: Sequence[Object], metadata: Object
    ) -> Object:
        include = query.get("includeObject", "")
        columns = self._cluster.columns(resource)
        return table(resource, objects, columns=columns, now=self._cluster.now(), metadata=metadata, include=include)

    def _list(self, query: Mapping[str, str], call: Call, resource: Resource, form: Form) -> Object:
        store = self._cluster.store
        matches = _selectors(resource, query)
        version, start = store.version, ""
        if token := query.get("continue"):
            version, start = _read_token(token)
        elif _version(query.get("resourceVersion", "")) > version:
            requested = query["resourceVersion"]
            raise StatusError(504, f"Timeout: Too large resource version: {requested}, current: {version}")
        try:
            found = store.items_at(resource, call.namespace, version)
        except ForgottenError as error:
            raise StatusError(410, CONTINUE_EXPIRED) from error
        found = [each for each in found if matches(each) and _list_key(each) > start]
        # The API server ignores the limit for an answer from its cache (resourceVersion 0).
        limit = 0 if query.get("resourceVersion") == "0" else int(query.get("limit") or 0)
        metadata: Object = {"resourceVersion": str(version)}
        if 0 < limit < len(found):
            metadata |= {"continue": _token(version, _list_key(found[limit - 1]))}
            if not query.get("labelSelector") and not query.get("fieldSelector"):
                metadata |= {"remainingItemCount": len(found) - limit}
            found = found[:limit]
        if form is Form.TABLE:
            return self._table(query, resource, found, metadata)
        if form is Form.PARTIAL:
            head = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
            return head | {"metadata": metadata, "items": [partial(each) for each in found]}
        items = [whole(resource, each) for each in found] if resource.is_custom else found
        head = {"kind": f"{resource.kind}List", "apiVersion": resource.group_version}
        return head | {"metadata": metadata, "items": items}

    async def _watch(self, request: web.Request, call: Call, resource: Resource, form: Form) -> web.StreamResponse:
        watch = Watch(
            self._cluster,
            resource,
            namespace=call.namespace,
            matches=_selectors(resource, request.query),
            form=form,
            tabled=lambda objects, metadata: self._table(request.query, resource, objects, metadata),
            wants_bookmarks=request.query.get("allowWatchBookmarks") in ("true", "1"),
        )
        if "sendInitialEvents" in request.query:  # clients then list first, as with a server without WatchList
            why = "Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
            cause = Cause(field="sendInitialEvents", message=why, reason="FieldValueForbidden")
            raise invalid(resource, "", [cause])
        version = _version(request.query.get("resourceVersion", ""))
        seconds = float(request.query.get("timeoutSeconds") or 0) or WATCH_SECONDS
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        call.status = 200
        if (transport := request.transport) is None:
            return response  # the client has disconnected
        self._watching.add(transport)
        # When a client disconnects, aiohttp cancels the handler, or a write raises ConnectionError first.
        with suppress(ConnectionError):
            try:
                async for lines in watch.lines(version, seconds=seconds, bookmark_seconds=self._bookmark_seconds):
                    await response.write(lines)
                    if self._closing:
                        break
                await response.write_eof()
            finally:
                self._watching.discard(transport)
        return response


def call_of(request: web.Request) -> tuple[Call, Resource | None]:
    """The request as a Call, and its resource; None if the path is not that of a resource."""
    call = Call(verb=request.method, path=request.path_qs, user_agent=request.headers.get("User-Agent", ""))
    for resource in RESOURCES:
        if not request.path.startswith(f"{root(resource)}/"):
            continue
        parts = request.path.removeprefix(f"{root(resource)}/").rstrip("/").split("/")
        if resource.is_namespaced and len(parts) > 2 and parts[0] == "namespaces":
            call.namespace, parts = parts[1], parts[2:]
        elif resource.is_namespaced and len(parts) > 1:
            continue  # only lists are possible over all namespaces
        if parts[0] != resource.plural or len(parts) > 3 or (len(parts) == 3 and parts[2] not in resource.subresources):
            call.namespace = ""
            continue
        call.resource = resource.plural
        call.name, call.subresource = [*parts[1:], "", ""][:2]
        call.verb = _verb(request, call)
        return call, resource
    return call, None


def _verb(request: web.Request, call: Call) -> str:
    match request.method:
        case "GET" if call.name:
            return "get"
        case "GET":
            return "watch" if request.query.get("watch") in ("true", "1") else "list"
        case "POST" if not call.name or call.subresource:
            return "create"
        case "PATCH" | "DELETE" if call.name:
            return request.method.lower()
        case _:
            return request.method


async def _body(request: web.Request) -> object:
    if request.content_type.endswith("protobuf"):
        return decode_object(await request.read())
    try:
        body: object = json.loads(await request.read())
    except ValueError as error:
        raise StatusError(400, f"error decoding the body of the request: {error}") from error
    return body


async def _merge(request: web.Request, resource: Resource) -> object:
    """The merge patch in the body, 415 for a patch of another kind."""
    patch = await _body(request)
    if request.content_type != MERGE_PATCH and not _is_plain_merge(request, resource, patch):
        raise StatusError(415, UNKNOWN_FORM + MERGE_PATCH)
    return patch


def _is_plain_merge(request: web.Request, resource: Resource, patch: object) -> bool:
    """Whether a strategic merge patch has the result of a merge patch: metadata and spec, without directives.

    Clients cordon and taint nodes, and scale Deployments, with such patches.
    """
    return (
        request.content_type == STRATEGIC_MERGE_PATCH
        and resource in (NODES, DEPLOYMENTS)
        and isinstance(patch, dict)
        and patch.keys() <= {"metadata", "spec"}
        and '"$' not in json.dumps(patch)
    )


def _selectors(resource: Resource, query: Mapping[str, str]) -> Matches:
    return parse_selectors(resource, labels=query.get("labelSelector", ""), fields=query.get("fieldSelector", ""))


def _version(text: str) -> int:
    if text and not text.isdigit():
        message = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        raise StatusError(500, message, reason="")
    return int(text or 0)


def _list_key(stored: Object) -> str:
    return f"{stored['metadata'].get('namespace', '')}/{stored['metadata']['name']}"


def _token(version: int, start: str) -> str:
    return base64.urlsafe_b64encode(encode({"rv": version, "start": start})).decode()


def _read_token(token: str) -> tuple[int, str]:
    try:
        decoded: dict[str, Any] = json.loads(base64.urlsafe_b64decode(token))
        return int(decoded["rv"]), str(decoded["start"])
    except (binascii.Error, ValueError, KeyError) as error:
        raise StatusError(400, f"invalid continue token: continue key is not valid: {error}") from error


def json_answer(answer: Object, status: int = 200) -> web.Response:
    """The response with an object."""
    return web.Response(body=encode(answer), status=status, content_type="application/json")
