"""Requests to the API server: list, watch, get, patch, create, delete. One attempt each; the caller retries."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import aiohttp
import msgspec
from aiohttp.connector import NEEDS_CLEANUP_CLOSED

from tas.enforcing.removal import READ_AGE_SECONDS
from tas.errors import line_of, shortened
from workers.http.body import TooLargeError, body_start, failed_request, whole_body
from workers.http.protocol import BoundedConnector
from workers.kubernetes.credentials import Credentials
from workers.kubernetes.errors import (
    ExpiredError,
    GoneError,
    KubernetesError,
    RejectedError,
    SilentError,
    TooLargeResponseError,
    UnavailableError,
    decode_status,
    error_of,
)
from workers.kubernetes.metrics import RequestMetrics
from workers.kubernetes.resources import PODS, VERSIONS, Metadata, Object, Resource
from workers.kubernetes.silence import Silence

CALL_SECONDS = 10.0
"""Time limit of a request; of a list, of each page."""

LIST_SECONDS = 60.0
"""Time limit of a whole list."""

CONNECT_SECONDS = 5.0
"""Time limit of connecting, within the limit of the request."""

WRITE_SECONDS = READ_AGE_SECONDS
"""Maximum age of the reads of a conditional patch when it is sent (monotonic seconds)."""

SMALLER_PAGES = 16
"""The pages of a list are smaller by this factor if one had too many bytes: 31 of the largest objects, 47 MiB."""

WATCH_SECONDS = 300.0
"""The requested duration of a watch, each time up to a tenth less, so that watches end at different times."""

SILENT_SECONDS = 100.0
"""A watch without any event for this long is opened again: its connection may be dead.

If nothing comes from the API server at all, one of the watches is opened again each third of it: `Silence`.
"""

LOOKS = 50
"""So often within `SILENT_SECONDS` a watch looks whether it is its turn: each two seconds."""

MAX_OBJECT_BYTES = 16 << 20
"""The largest object, or event of a watch, that is read: far above the size of any object."""

MAX_LIST_BYTES = 256 << 20
"""The largest page of a list that is read: 500 objects, or all if the server cannot give pages any more."""

MERGE_PATCH = "application/merge-patch+json"

READ_AT_ONCE = 500
"""So many objects of a list are read without a pause, which takes some 10 ms."""

T = TypeVar("T", bound=Object)
T_contra = TypeVar("T_contra", bound=Object, contravariant=True)


class Listing(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A complete list as of `resource_version`: an object that is not in it did not exist then."""

    items: tuple[T, ...]
    resource_version: str


class ListReader(Protocol[T_contra]):
    """Takes a list in while it arrives: the objects of a large list are never in memory all at once."""

    def begin(self) -> None:
        """A list begins. What came of another one that did not become complete has no meaning."""
        ...

    def read(self, items: Sequence[T_contra]) -> None:
        """Some objects of the list."""
        ...


class Collected(Generic[T]):
    """Keeps all objects of a list."""

    def __init__(self) -> None:
        self.items: list[T] = []

    def begin(self) -> None:
        """Drops the objects of a list that did not become complete."""
        self.items.clear()

    def read(self, items: Sequence[T]) -> None:
        """Keeps some objects."""
        self.items += items


class ChangeType(StrEnum):
    """The types of watch events."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class Change(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """An event of a watch. In a BOOKMARK `object` has only the resource version that the watch has reached.

    DELETED also means that the selector does not match the object any more. It holds the last state, and the resource
    version of the deletion.
    """

    type: ChangeType
    object: T

    @property
    def resource_version(self) -> str:
        """The resource version that the watch has reached with this event."""
        return self.object.metadata.resource_version


class ServerVersion(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer of `/version`: `gitVersion` is such as `v1.31.4`."""

    git_version: str = ""


class _ListMetadata(msgspec.Struct, kw_only=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct, Generic[T], kw_only=True):
    kind: str
    metadata: _ListMetadata
    items: tuple[T, ...] | None = None  # some servers write an empty list as null


class _Event(msgspec.Struct, kw_only=True):
    type: str
    object: msgspec.Raw


_event_decoder = msgspec.json.Decoder(_Event)
_bookmark_decoder = msgspec.json.Decoder(Object)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class KubernetesClient:
    """A worker's client of the API server. It reuses connections. Safe for concurrent use.

    Attributes:
        server: The API server's URL.
        worker: The worker's name; the user agent is `tas-on-nats/<worker>`.
        silence: When the API server was last heard.
        expires: When the certificate that it shows to the API server expires, in seconds since 1970; infinite without.
    """

    def __init__(
        self, session: aiohttp.ClientSession, credentials: Credentials, *, worker: str, metrics: RequestMetrics
    ) -> None:
        self.server = credentials.server
        self.worker = worker
        self.metrics = metrics
        self.silence = Silence()
        self.expires = credentials.expires
        self._session = session
        self._credentials = credentials

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, kubeconfig: Path | None, *, worker: str, metrics: RequestMetrics | None = None
    ) -> AsyncIterator["KubernetesClient"]:
        """A client with the credentials of a kubeconfig file, or of this pod (None). Sends no request yet.

        Raises ConfigurationError if they cannot be read.
        """
        credentials = await Credentials.load(kubeconfig)
        session = aiohttp.ClientSession(
            # Before Python 3.12.8 a TLS connection that is closed during a watch may stay open: aiohttp then ends it.
            connector=BoundedConnector(
                ssl=credentials.tls if credentials.tls is not None else True,
                enable_cleanup_closed=NEEDS_CLEANUP_CLOSED,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),  # an adapter of metrics may set some through the API server
            headers={"User-Agent": f"tas-on-nats/{worker}"},
            trust_env=not credentials.is_loopback,
        )
        async with session:
            yield cls(session, credentials, worker=worker, metrics=metrics or RequestMetrics(None))

    async def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        """The current object. Raises KubernetesError."""
        path = resource.path(namespace=namespace, name=name)
        body = await self._call("GET", "get", resource, path, what=f"get {resource} {_full_name(namespace, name)}")
        return _decode(body, resource.type)

    async def read(self, resource: Resource[Any], path: str, *, max_bytes: int) -> bytes:
        """The response for a path without an object: the versions of a group, or values of a metrics API.

        `resource` is the resource in messages and metrics.
        Raises KubernetesError: RejectedError for a response of more than `max_bytes`, and others.
        """
        return await self._call("GET", "get", resource, path, what=f"get {path}", accept="", max_bytes=max_bytes)

    async def version(self) -> tuple[ServerVersion, str]:
        """The version of the API server, and the header `Date` of its answer; empty without one.

        Raises KubernetesError.
        """
        timeout = aiohttp.ClientTimeout(total=CALL_SECONDS, connect=CONNECT_SECONDS)
        async with self._response(
            "GET", "get", VERSIONS, "/version", what="get /version", accept="", timeout=timeout
        ) as response:
            body = await whole_body(response, max_bytes=MAX_OBJECT_BYTES)
            return _decode(body, ServerVersion), response.headers.get("Date", "")

    async def list(
        self,
        resource: Resource[T],
        *,
        label_selector: str = "",
        page_objects: int | None = None,
    ) -> Listing[T]:
        """All objects of all namespaces, as of the time of the request, not of an older copy.

        Raises KubernetesError after `LIST_SECONDS` at the latest.
        """
        whole: Collected[T] = Collected()
        version = await self.read_list(resource, whole, label_selector=label_selector, page_objects=page_objects)
        return Listing(items=tuple(whole.items), resource_version=version)

    async def read_list(
        self,
        resource: Resource[T],
        reader: ListReader[T],
        *,
        label_selector: str = "",
        page_objects: int | None = None,
    ) -> str:
        """Hands a list as of `list` to the reader while it arrives, and returns its resource version.

        `begin` is called again if the list has to be requested once more. Raises KubernetesError as `list`.
        """
        page_objects = page_objects or resource.page_objects
        read = partial(self._read_list, resource, reader, label_selector)
        try:
            async with asyncio.timeout(LIST_SECONDS):
                try:
                    return await read(limit=page_objects)
                except GoneError:
                    # The continue token has expired, on a slow network or a busy server: list again without pages.
                    return await read(limit=0)
                except TooLargeResponseError:
                    # 500 objects of a megabyte, as any user may create them: the list must still become complete.
                    return await read(limit=max(1, page_objects // SMALLER_PAGES))
        except GoneError as error:
            raise UnavailableError(str(error), code=error.code, status=error.status) from error
        except TimeoutError as error:
            raise UnavailableError(f"list {resource}: not complete within {LIST_SECONDS:g} s") from error

    async def _read_list(self, resource: Resource[T], reader: ListReader[T], labels: str, *, limit: int) -> str:
        decoder = msgspec.json.Decoder(_Page[resource.type])  # type: ignore[name-defined]
        query = {"labelSelector": labels, "limit": str(limit or "")}
        reader.begin()
        while True:
            body = await self._call(
                "GET",
                "list",
                resource,
                resource.path(),
                what=f"list {resource}",
                query=query,
                accept="PartialObjectMetadataList",
                max_bytes=MAX_LIST_BYTES,
            )
            page: _Page[T] = _decode_with(decoder, body, f"list {resource}")
            if not page.kind.endswith("List") or not page.metadata.resource_version:
                # A Status, for example, would be read as an empty list, and an empty list must never be invented.
                kind = shortened(page.kind)
                raise UnavailableError(f"list {resource}: the response is no list, but a {kind}: {body[:200]!r}")
            metadata, items = page.metadata, page.items or ()
            del body, page  # else the bytes of two pages are in memory
            for start in range(0, len(items), READ_AT_ONCE):
                await asyncio.sleep(0)  # a probe must not wait for a list of 150,000 pods
                reader.read(items[start : start + READ_AT_ONCE])
            if not metadata.continue_:
                return metadata.resource_version
            query["continue"] = metadata.continue_
            del items

    async def watch(
        self,
        resource: Resource[T],
        *,
        resource_version: str,
        label_selector: str = "",
        seconds: float = WATCH_SECONDS,
        silent_seconds: float = SILENT_SECONDS,
        on_open: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[Change[T], None]:
        """Every change after `resource_version`, with bookmarks, until the API server ends the watch.

        The watch ends after `seconds`; the caller continues from the last resource version. `on_open` is called when
        the watch is established, before any event. Use it under `aclosing`.
        Raises GoneError if that version is too old: list again. Raises SilentError if nothing arrived for
        `silent_seconds`, or for a part of it by all watches of the client (`Silence`).
        """
        what = f"watch {resource}"
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "labelSelector": label_selector,
            "timeoutSeconds": str(max(1, round(seconds * random.uniform(0.9, 1)))),  # noqa: S311 - spreads the ends of watches
        }
        # A watch has no total limit: it does not end by itself.
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS, sock_connect=CONNECT_SECONDS)
        decoder = msgspec.json.Decoder(resource.type)
        events = self.metrics.events.labels(self.worker, str(resource))
        async with self._response(
            "GET",
            "watch",
            resource,
            resource.path(),
            what=what,
            query=query,
            accept="PartialObjectMetadata",
            timeout=timeout,
        ) as response:
            on_open()
            with self.silence.watching() as watch:
                async for line in _lines(self._pieces(response.content, what, watch, silent_seconds), what):
                    event = _decode_with(_event_decoder, line, what)
                    if event.type == "ERROR":
                        raise _error_event(what, event.object)
                    change = _change(event, decoder, what)
                    if change is not None:
                        events.inc()
                        yield change

    async def _pieces(
        self, content: aiohttp.StreamReader, what: str, watch: object, seconds: float
    ) -> AsyncIterator[bytes]:
        """What comes by a watch. Raises SilentError as soon as the watch is to be opened again."""
        while (remaining := self.silence.remaining(watch, seconds)) > 0:
            try:
                # Others open, are heard and end meanwhile, so the turn of this one may come sooner or later.
                async with asyncio.timeout(min(remaining, seconds / LOOKS)):
                    piece = await content.readany()
            except TimeoutError:
                continue
            if not piece:
                return
            self.silence.heard(watch)
            yield piece
        raise SilentError(f"{what}: no data from {self.server} for {seconds:g} s, or none by any watch")

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
        """The object after a JSON merge patch; a patch without an effect keeps its resource version.

        With `metadata.uid` and `metadata.resourceVersion` in `patch` the patch is conditional: 422 for another object
        of the name, 409 if the object has changed. `read_at` is the monotonic time of the reads that the patch is based
        on: after `WRITE_SECONDS` nothing is sent. The age is checked on the open connection, right before the body.
        Raises KubernetesError: ConflictError, InvalidError, NotFoundError, ExpiredError and others.
        """
        path_name = f"{name}/{subresource}" if subresource else name
        what = f"patch {resource} {_full_name(namespace, path_name)}"
        body = _Body(patch, what=what, read_at=read_at, media_type=MERGE_PATCH)
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        query = {"fieldManager": field_manager}
        answer = await self._call("PATCH", "patch", resource, path, what=what, query=query, body=body)
        return _decode(answer, resource.type)

    async def create(self, resource: Resource[T], body: Mapping[str, Any], *, namespace: str = "") -> T:
        """The created object, as returned by the API server. Raises KubernetesError."""
        text = f"create {resource}" + (f" in {namespace}" if namespace else "")
        content = _Body(body, what=text)
        path = resource.path(namespace=namespace)
        return _decode(await self._call("POST", "create", resource, path, what=text, body=content), resource.type)

    async def bind(
        self,
        name: str,
        *,
        namespace: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str],
        read_at: float | None = None,
    ) -> None:
        """Assigns the pod with this uid to a node, and adds annotations to it, in one write (facts.md g20).

        `read_at` is as in `merge_patch`. Raises KubernetesError: ConflictError if the pod has a node, has another uid
        or is being deleted, NotFoundError, and others. After an UnavailableError other than ThrottledError the pod may
        be bound nevertheless.
        """
        text = f"bind {PODS} {_full_name(namespace, name)}"
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": annotations},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        body = _Body(binding, what=text, read_at=read_at)
        path = PODS.path(namespace=namespace, name=name, subresource="binding")
        await self._call("POST", "create", PODS, path, what=text, body=body)

    async def evict(self, name: str, *, namespace: str) -> None:
        """Evicts a pod. A disruption budget may forbid that (429). Raises KubernetesError."""
        text = f"evict {PODS} {_full_name(namespace, name)}"
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        }
        path = PODS.path(namespace=namespace, name=name, subresource="eviction")
        await self._call("POST", "create", PODS, path, what=text, body=_Body(eviction, what=text))

    async def delete(self, resource: Resource[Any], name: str, *, uid: str, namespace: str = "") -> None:
        """Requests the deletion of the object with this uid, and of its dependents, in the background.

        Raises KubernetesError: ConflictError if the name now belongs to another object, NotFoundError, and others.
        """
        text = f"delete {resource} {_full_name(namespace, name)}"
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        path = resource.path(namespace=namespace, name=name)
        await self._call("DELETE", "delete", resource, path, what=text, body=_Body(options, what=text))

    async def _call(
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
        max_bytes: int = MAX_OBJECT_BYTES,
    ) -> bytes:
        timeout = aiohttp.ClientTimeout(total=CALL_SECONDS, connect=CONNECT_SECONDS)
        try:
            async with self._response(
                method, verb, resource, path, what=what, query=query, accept=accept, timeout=timeout, body=body
            ) as response:
                return await whole_body(response, max_bytes=max_bytes)
        except KubernetesError as error:
            if body is not None and body.expired is not None:
                raise body.expired from error
            raise

    @asynccontextmanager
    async def _response(
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
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A 2xx response, to be read within the body; errors of request and body are KubernetesErrors."""
        headers = {"Accept": _accept(accept) if resource.metadata_only else "application/json"}
        if body is not None:
            headers |= {"Content-Type": body.media_type, "Content-Length": str(len(body.content))}
        code = "none"
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(CALL_SECONDS):  # until the response headers, also for watches and tokens
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
                    self.silence.heard()
                    if not 200 <= response.status < 300:
                        raise error_of(
                            what,
                            code=response.status,
                            body=await body_start(response),
                            retry_after=response.headers.get("Retry-After"),
                        )
                yield response
            except TooLargeError as error:
                raise TooLargeResponseError(f"{what}: {error}", code=response.status) from error
            except TimeoutError as error:
                raise UnavailableError(f"{what}: no data from {self.server} for {CALL_SECONDS:g} s") from error
            except (aiohttp.ClientError, OSError) as error:
                raise UnavailableError(line_of(f"{what}: {self.server}: {failed_request(error)}")) from error
            finally:
                self.metrics.requests.labels(self.worker, verb, str(resource), code).inc()


class _Body:
    """A request body, which is not sent if its reads are too old by then."""

    def __init__(
        self, value: Mapping[str, Any], *, what: str, read_at: float | None = None, media_type: str = "application/json"
    ) -> None:
        self.content = msgspec.json.encode(value)
        self.media_type = media_type
        self.expired: ExpiredError | None = None
        self._what = what
        self._read_at = read_at

    async def __aiter__(self) -> AsyncIterator[bytes]:
        age = 0.0 if self._read_at is None else time.monotonic() - self._read_at
        if age > WRITE_SECONDS:
            # The headers may have been sent. A request without its body has no effect, and its connection is closed.
            self.expired = ExpiredError(f"{self._what}: read {age:.1f} s ago")
            raise self.expired
        yield self.content


async def _lines(pieces: AsyncIterator[bytes], what: str) -> AsyncIterator[bytes]:
    """The lines of a stream, of any length up to `MAX_OBJECT_BYTES`."""
    line_start = bytearray()
    async for piece in pieces:
        first, *others = piece.split(b"\n")
        line_start += first
        for other in others:
            if line_start:
                yield bytes(line_start)
            line_start = bytearray(other)
        if len(line_start) > MAX_OBJECT_BYTES:
            raise RejectedError(f"{what}: an event of more than {MAX_OBJECT_BYTES} bytes")
    # A last line without a line end is incomplete and is dropped.


def _accept(kind: str) -> str:
    # A server that does not support this returns whole objects, which are decoded the same way.
    return f"application/json;as={kind};g=meta.k8s.io;v=v1,application/json"


def _full_name(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name


def _error_event(what: str, status: msgspec.Raw) -> KubernetesError:
    text = decode_status(bytes(status))
    return error_of(what, code=(text.code if text else 0) or 500, body=bytes(status))


def _change(event: _Event, decoder: "msgspec.json.Decoder[T]", what: str) -> Change[T] | None:
    if event.type == ChangeType.BOOKMARK:
        # A bookmark may lack every field but the version, so only its metadata is decoded.
        metadata = Metadata(
            resource_version=_decode_with(_bookmark_decoder, event.object, what).metadata.resource_version
        )
        return Change(type=ChangeType.BOOKMARK, object=decoder.type(metadata=metadata))
    try:
        kind = ChangeType(event.type)
    except ValueError:
        return None
    return Change(type=kind, object=_decode_with(decoder, event.object, what))


D = TypeVar("D")


def _decode(body: bytes, kind: type[D]) -> D:
    return _decode_with(msgspec.json.Decoder(kind), body, "answer")


def _decode_with(decoder: "msgspec.json.Decoder[D]", body: bytes | msgspec.Raw, what: str) -> D:
    try:
        return decoder.decode(body)
    except _UNREADABLE as error:
        # A truncated response, or one of another server: the next may be complete.
        raise UnavailableError(line_of(f"{what}: unreadable: {error}: {bytes(body)[:200]!r}")) from error
