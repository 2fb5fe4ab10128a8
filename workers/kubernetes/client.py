"""Asking the API server: list, watch, get, patch, create, delete. One attempt each; to try again is the caller's."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

import aiohttp
import msgspec
from prometheus_client import CollectorRegistry, Counter

from workers.kubernetes.credentials import Credentials
from workers.kubernetes.errors import (
    ExpiredError,
    GoneError,
    KubernetesError,
    RejectedError,
    UnavailableError,
    decode_status,
    error_of,
)
from workers.kubernetes.resources import PODS, Metadata, Object, Resource

CALL_SECONDS = 10.0
"""How long one question may take, of a list each page."""

LIST_SECONDS = 60.0
"""How long a whole list may take."""

CONNECT_SECONDS = 5.0
"""How long a connection may take, of the time that the question has."""

WRITE_SECONDS = 2.0
"""How old the reads of a conditional patch may be when it is sent (monotonic seconds)."""

PAGE_OBJECTS = 500

WATCH_SECONDS = 300.0
"""After how long the API server is asked to end a watch; each time up to a tenth less, so that not all end at once."""

SILENT_SECONDS = 100.0
"""After so long without a word a watch counts as dead: the API server sends a bookmark about every minute."""

MAX_EVENT_BYTES = 16 << 20
"""The largest event that is read: no object is nearly as large."""

MERGE_PATCH = "application/merge-patch+json"

T = TypeVar("T", bound=Object)


class Listing(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A complete list, as of `resource_version`: what is not in it was not there."""

    items: tuple[T, ...]
    resource_version: str


class ChangeType(StrEnum):
    """What a watch tells."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class Change(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One event of a watch. Of a BOOKMARK `object` holds no more than the resource version that has been reached.

    DELETED comes as well for an object that the selector does not match any more. It holds the last state, and the
    resource version of the deletion.
    """

    type: ChangeType
    object: T

    @property
    def resource_version(self) -> str:
        """Up to where the watch has come with this event."""
        return self.object.metadata.resource_version


class _ListMetadata(msgspec.Struct, kw_only=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct, Generic[T], kw_only=True):
    kind: str
    metadata: _ListMetadata
    items: tuple[T, ...] | None = None  # a list of none is written as null by some


class _Event(msgspec.Struct, kw_only=True):
    type: str
    object: msgspec.Raw


_event_decoder = msgspec.json.Decoder(_Event)
_bookmark_decoder = msgspec.json.Decoder(Object)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class RequestMetrics:
    """What is asked of the API server, by all workers of a process."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        self.requests = Counter(
            "tas_kubernetes_requests",
            "Requests to the API server by HTTP status; none: no answer.",
            ["worker", "verb", "resource", "code"],
            registry=registry,
        )
        self.events = Counter(
            "tas_kubernetes_events", "Events that watches brought.", ["worker", "resource"], registry=registry
        )


class KubernetesClient:
    """One worker's way to the API server. Connections are kept and used again. Safe for concurrent use.

    Attributes:
        server: The API server's URL.
        worker: Whose it is; the user agent is `tas-on-nats/<worker>`.
    """

    def __init__(
        self, session: aiohttp.ClientSession, credentials: Credentials, *, worker: str, metrics: RequestMetrics
    ) -> None:
        self.server = credentials.server
        self.worker = worker
        self.metrics = metrics
        self._session = session
        self._credentials = credentials

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, kubeconfig: Path | None, *, worker: str, metrics: RequestMetrics | None = None
    ) -> AsyncIterator["KubernetesClient"]:
        """A client with the credentials of a kubeconfig file, or of the pod we run in (None). Asks nothing yet.

        Raises:
            ConfigurationError: if they cannot be read.
        """
        credentials = await Credentials.load(kubeconfig)
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=credentials.tls if credentials.tls is not None else True),
            headers={"User-Agent": f"tas-on-nats/{worker}"},
            trust_env=not credentials.is_loopback,
            auto_decompress=True,
        )
        async with session:
            yield cls(session, credentials, worker=worker, metrics=metrics or RequestMetrics(None))

    async def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        """The object as it is now. Raises KubernetesError."""
        path = resource.path(namespace=namespace, name=name)
        body = await self._ask("GET", "get", resource, path, what=f"get {resource} {_told(namespace, name)}")
        return _decoded(body, resource.type)

    async def read(self, resource: Resource[Any], path: str, *, max_bytes: int) -> bytes:
        """What stands under a path that holds no object: a group's versions, or values of an API of metrics.

        `resource` is whose it is, for messages and metrics.

        Raises:
            KubernetesError: RejectedError for an answer of more than `max_bytes`, and the others.
        """
        what = f"get {path}"
        timeout = aiohttp.ClientTimeout(total=CALL_SECONDS, connect=CONNECT_SECONDS)
        async with self._answer("GET", "get", resource, path, what=what, accept="", timeout=timeout) as response:
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > max_bytes:
                    raise RejectedError(f"{what}: an answer of more than {max_bytes} bytes", code=response.status)
            return bytes(body)

    async def list(
        self,
        resource: Resource[T],
        *,
        label_selector: str = "",
        field_selector: str = "",
        page_objects: int = PAGE_OBJECTS,
    ) -> Listing[T]:
        """All objects, in all namespaces: those that there are when it is asked, no older copy.

        Raises:
            KubernetesError: at the latest after `LIST_SECONDS`.
        """
        try:
            async with asyncio.timeout(LIST_SECONDS):
                try:
                    return await self._list(resource, label_selector, field_selector, limit=page_objects)
                except GoneError:
                    # The pages' own time has run out, on a slow way or a busy server: then in one piece.
                    return await self._list(resource, label_selector, field_selector, limit=0)
        except GoneError as error:
            raise UnavailableError(str(error), code=error.code, status=error.status) from error
        except TimeoutError as error:
            raise UnavailableError(f"list {resource}: not complete within {LIST_SECONDS:g} s") from error

    async def _list(self, resource: Resource[T], labels: str, fields: str, *, limit: int) -> Listing[T]:
        decoder = msgspec.json.Decoder(_Page[resource.type])  # type: ignore[name-defined]
        query = {"labelSelector": labels, "fieldSelector": fields, "limit": str(limit or "")}
        items: list[T] = []
        while True:
            body = await self._ask(
                "GET",
                "list",
                resource,
                resource.path(),
                what=f"list {resource}",
                query=query,
                accept="PartialObjectMetadataList",
            )
            page: _Page[T] = _decoded_by(decoder, body, f"list {resource}")
            if not page.kind.endswith("List") or not page.metadata.resource_version:
                # A Status, say, would be read as an empty list, and that is the one thing that must never be made up.
                raise UnavailableError(f"list {resource}: no list but a {page.kind}: {body[:200]!r}")
            items += page.items or ()
            if not page.metadata.continue_:
                return Listing(items=tuple(items), resource_version=page.metadata.resource_version)
            query["continue"] = page.metadata.continue_

    async def watch(
        self,
        resource: Resource[T],
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        seconds: float = WATCH_SECONDS,
        silent_seconds: float = SILENT_SECONDS,
        on_open: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[Change[T], None]:
        """Every change after `resource_version`, bookmarks among them, until the API server ends the watch.

        It is asked to after `seconds`; then watch on from the last resource version. `on_open` is called when it is
        under way, though nothing may happen yet. Use it under `aclosing`.

        Raises:
            GoneError: if that version is too old: list again.
            KubernetesError: also if nothing came for `silent_seconds`.
        """
        what = f"watch {resource}"
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
            "timeoutSeconds": str(max(1, round(seconds * random.uniform(0.9, 1)))),  # noqa: S311 - spreads them
        }
        # As one that does not end by itself it takes no part in the limit of a call.
        timeout = aiohttp.ClientTimeout(
            total=None, connect=CONNECT_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=silent_seconds
        )
        decoder = msgspec.json.Decoder(resource.type)
        events = self.metrics.events.labels(self.worker, str(resource))
        async with self._answer(
            "GET",
            "watch",
            resource,
            resource.path(),
            what=what,
            query=query,
            accept="PartialObjectMetadata",
            timeout=timeout,
            silent_seconds=silent_seconds,
        ) as response:
            on_open()
            async for line in _lines(response.content, what):
                event = _decoded_by(_event_decoder, line, what)
                if event.type == "ERROR":
                    raise _error_event(what, event.object)
                change = _change(event, decoder, what)
                if change is not None:
                    events.inc()
                    yield change

    async def merge_patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Mapping[str, Any],
        *,
        field_manager: str,
        namespace: str = "",
        subresource: str = "",
        read_at: float | None = None,
    ) -> T:
        """The object after a JSON merge patch; without an effect its resource version stays.

        With `metadata.uid` and `metadata.resourceVersion` in `patch` it is conditional: 422 for another object of the
        name, 409 if it has changed. `read_at` is the monotonic time of the reads behind it: once `WRITE_SECONDS` have
        passed nothing is sent any more, looked at when a connection stands and the body is about to go.

        Raises:
            KubernetesError: ConflictError, InvalidError, NotFoundError, ExpiredError and the others.
        """
        told = f"{name}/{subresource}" if subresource else name
        what = f"patch {resource} {_told(namespace, told)}"
        body = _Body(msgspec.json.encode(patch), what=what, read_at=read_at)
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        try:
            answer = await self._ask(
                "PATCH", "patch", resource, path, what=what, query={"fieldManager": field_manager}, body=body
            )
        except KubernetesError as error:
            if body.expired is not None:
                raise body.expired from error
            raise
        return _decoded(answer, resource.type)

    async def create(self, resource: Resource[T], body: Mapping[str, Any], *, namespace: str = "") -> T:
        """The new object as the API server has it. Raises KubernetesError."""
        told = f"create {resource}" + (f" in {namespace}" if namespace else "")
        content = _json_body(body, what=told)
        path = resource.path(namespace=namespace)
        return _decoded(await self._ask("POST", "create", resource, path, what=told, body=content), resource.type)

    async def evict(self, name: str, *, namespace: str) -> None:
        """Has a pod deleted, unless a disruption budget forbids it (429). Raises KubernetesError."""
        told = f"evict {PODS} {_told(namespace, name)}"
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        }
        path = PODS.path(namespace=namespace, name=name, subresource="eviction")
        await self._ask("POST", "create", PODS, path, what=told, body=_json_body(eviction, what=told))

    async def delete(self, resource: Resource[Any], name: str, *, uid: str, namespace: str = "") -> None:
        """Deletes the object of this uid, and what belongs to it. It may take its time after this has returned.

        Raises:
            KubernetesError: ConflictError if the name is another object's by now, NotFoundError, and the others.
        """
        told = f"delete {resource} {_told(namespace, name)}"
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        path = resource.path(namespace=namespace, name=name)
        await self._ask("DELETE", "delete", resource, path, what=told, body=_json_body(options, what=told))

    async def _ask(
        self,
        method: str,
        verb: str,
        resource: Resource[Any],
        path: str,
        *,
        what: str,
        query: Mapping[str, str] | None = None,
        accept: str = "PartialObjectMetadata",
        body: "_Body | None" = None,
    ) -> bytes:
        """The body of an answer with 2xx."""
        timeout = aiohttp.ClientTimeout(total=CALL_SECONDS, connect=CONNECT_SECONDS)
        async with self._answer(
            method, verb, resource, path, what=what, query=query, accept=accept, timeout=timeout, body=body
        ) as response:
            return await response.read()

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        verb: str,
        resource: Resource[Any],
        path: str,
        *,
        what: str,
        timeout: aiohttp.ClientTimeout,
        query: Mapping[str, str] | None = None,
        accept: str,
        body: "_Body | None" = None,
        silent_seconds: float = CALL_SECONDS,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer with 2xx, to be read in the body; what goes wrong in either is a KubernetesError."""
        headers = {"Accept": _accept(accept) if resource.metadata_only else "application/json"}
        if body is not None:
            headers |= {"Content-Type": body.media_type, "Content-Length": str(len(body.content))}
        code = "none"
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(CALL_SECONDS):  # up to the headers, also for a watch and a program's token
                    headers |= await self._credentials.headers()
                    response = await stack.enter_async_context(
                        self._session.request(
                            method,
                            self.server + path,
                            params={key: value for key, value in (query or {}).items() if value},
                            headers=headers,
                            data=body,
                            timeout=timeout,
                            allow_redirects=False,
                            proxy=self._credentials.proxy,
                            server_hostname=self._credentials.server_name,
                        )
                    )
                    code = str(response.status)
                    if not 200 <= response.status < 300:
                        raise error_of(
                            what,
                            code=response.status,
                            body=await response.read(),
                            retry_after=response.headers.get("Retry-After"),
                        )
                yield response
            except TimeoutError as error:
                seconds = silent_seconds if code.startswith("2") else CALL_SECONDS
                raise UnavailableError(f"{what}: nothing from {self.server} for {seconds:g} s") from error
            except (aiohttp.ClientError, OSError) as error:
                raise UnavailableError(f"{what}: {self.server}: {str(error) or repr(error)}") from error
            finally:
                self.metrics.requests.labels(self.worker, verb, str(resource), code).inc()


class _Body:
    """What is sent, unless it has become too old when its turn comes."""

    def __init__(self, content: bytes, *, what: str, read_at: float | None, media_type: str = MERGE_PATCH) -> None:
        self.content = content
        self.media_type = media_type
        self.expired: ExpiredError | None = None
        self._what = what
        self._read_at = read_at

    async def __aiter__(self) -> AsyncIterator[bytes]:
        age = 0.0 if self._read_at is None else time.monotonic() - self._read_at
        if age > WRITE_SECONDS:
            # The headers may have gone; a request whose body never comes does nothing, and its connection is closed.
            self.expired = ExpiredError(f"{self._what}: read {age:.1f} s ago")
            raise self.expired
        yield self.content


def _json_body(value: Mapping[str, Any], *, what: str) -> _Body:
    return _Body(msgspec.json.encode(value), what=what, read_at=None, media_type="application/json")


async def _lines(content: aiohttp.StreamReader, what: str) -> AsyncIterator[bytes]:
    """The lines of a stream, of any length up to `MAX_EVENT_BYTES`."""
    begun = bytearray()
    async for piece in content.iter_any():
        first, *others = piece.split(b"\n")
        begun += first
        for other in others:
            if begun:
                yield bytes(begun)
            begun = bytearray(other)
        if len(begun) > MAX_EVENT_BYTES:
            raise RejectedError(f"{what}: an event of more than {MAX_EVENT_BYTES} bytes")
    # What is left without a line's end was cut off.


def _accept(kind: str) -> str:
    # Who cannot do this gives whole objects, which are read the same.
    return f"application/json;as={kind};g=meta.k8s.io;v=v1,application/json"


def _told(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name


def _error_event(what: str, status: msgspec.Raw) -> KubernetesError:
    told = decode_status(bytes(status))
    return error_of(what, code=(told.code if told else 0) or 500, body=bytes(status))


def _change(event: _Event, decoder: "msgspec.json.Decoder[T]", what: str) -> Change[T] | None:
    """None for a type of event that is not known."""
    if event.type == ChangeType.BOOKMARK:
        # It may lack anything but the version, so it is read as metadata alone.
        metadata = Metadata(
            resource_version=_decoded_by(_bookmark_decoder, event.object, what).metadata.resource_version
        )
        return Change(type=ChangeType.BOOKMARK, object=_only(decoder.type, metadata))
    try:
        kind = ChangeType(event.type)
    except ValueError:
        return None
    return Change(type=kind, object=_decoded_by(decoder, event.object, what))


def _only(kind: type[T], metadata: Metadata) -> T:
    return kind(metadata=metadata)


D = TypeVar("D")


def _decoded(body: bytes, kind: type[D]) -> D:
    return _decoded_by(msgspec.json.Decoder(kind), body, "answer")


def _decoded_by(decoder: "msgspec.json.Decoder[D]", body: bytes | msgspec.Raw, what: str) -> D:
    try:
        return decoder.decode(body)
    except _UNREADABLE as error:
        # Half an answer, or a stranger's: the next may be whole.
        raise UnavailableError(f"{what}: unreadable: {error}: {bytes(body)[:200]!r}") from error
