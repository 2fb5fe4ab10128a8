"""An adapter behind the real aggregator: an HTTPS server, and the objects by which the API server finds it."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from aiohttp import web

from lab.sandbox.errors import PageNotFoundError, StatusError
from lab.sandbox.metrics import CUSTOM, USAGE, USAGE_VERSION
from tests.certificates import Authority
from tests.integration.servers import eventually
from tests.kubernetes.admin import Admin, AdminError
from tests.kubernetes.collect_scenarios import Adapter
from tests.sandbox import Metrics

NAMESPACE = "default"
SERVICE = "metrics-adapter"
SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"


def service(name: str, port: int) -> dict[str, object]:
    """A Service by which the API server finds a server on loopback.

    Its type is ExternalName, since endpoints may not be on loopback. The aggregator needs no endpoints of such a
    Service, and requires a certificate for the Service's name in the cluster.
    """
    spec = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def api_service(
    group: str, version: str, priority: int, *, service: str, port: int, authority: Authority
) -> dict[str, object]:
    """The registration of a version of an API that the server behind a Service serves."""
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{version}.{group}"},
        "spec": {
            "group": group,
            "version": version,
            "groupPriorityMinimum": 100,
            "versionPriority": priority,
            "service": {"name": service, "namespace": NAMESPACE, "port": port},
            "caBundle": base64.b64encode(authority.certificate).decode(),
        },
    }


class AggregatedAdapter(Adapter):
    """Serves `metrics` through the API server.

    Attributes:
        down: Whether it closes every connection without an answer.
    """

    def __init__(self, admin: Admin, authority: Authority) -> None:
        self.metrics = Metrics()
        self.down = False
        self._admin = admin
        self._authority = authority
        self._registered: set[str] = set()
        self._connections: set[asyncio.BaseTransport] = set()
        self._port = 0

    @classmethod
    @asynccontextmanager
    async def start(cls, admin: Admin, folder: Path) -> AsyncIterator["AggregatedAdapter"]:
        """Runs on loopback."""
        authority = Authority("adapter")
        adapter = cls(admin, authority)
        async with adapter._listening(folder):
            await admin.create(SERVICES, service(SERVICE, adapter._port))
            try:
                yield adapter
            finally:
                await adapter.serve()
                await admin.delete(f"{SERVICES}/{SERVICE}")

    @asynccontextmanager
    async def _listening(self, folder: Path) -> AsyncIterator[None]:
        pair = self._authority.server(SERVICE, dns=(f"{SERVICE}.{NAMESPACE}.svc",))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        certificate, key = folder / "adapter.crt", folder / "adapter.key"
        certificate.write_bytes(pair.certificate)
        key.write_bytes(pair.key)
        context.load_cert_chain(certificate, key)
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
            await site.start()
            self._port = runner.addresses[0][1]
            yield
        finally:
            # A TLS connection that is closed waits for the other end, perhaps longer than the test's loop runs.
            for connection in self._connections:
                if isinstance(connection, asyncio.WriteTransport):
                    connection.abort()
            await runner.cleanup()

    async def serve(self, *versions: str, usage: bool = False) -> None:
        """Registers these and unregisters all others, and waits until the API server has applied the change."""
        services = {f"{version}.{CUSTOM}": (CUSTOM, version, 100 - place) for place, version in enumerate(versions)}
        if usage:
            services[f"{USAGE_VERSION}.{USAGE}"] = (USAGE, USAGE_VERSION, 100)
        self.metrics.versions, self.metrics.usage_is_served = list(versions), usage
        for name in self._registered - services.keys():
            await self._admin.delete(f"{API_SERVICES}/{name}")
        for name in self._registered & services.keys():
            priority = {"spec": {"versionPriority": services[name][2]}}
            await self._admin.patch(f"{API_SERVICES}/{name}", priority)
        for name in services.keys() - self._registered:
            registration = api_service(*services[name], service=SERVICE, port=self._port, authority=self._authority)
            await self._admin.create(API_SERVICES, registration)
        self._registered = set(services)
        await eventually(partial(self._is_discovered, versions))

    async def _is_discovered(self, versions: Sequence[str]) -> bool:
        """Whether the API server offers exactly these versions of the custom metrics API, in this order."""
        try:
            found = await self._admin.get(f"/apis/{CUSTOM}")
        except AdminError as error:
            if error.status != 404:
                raise
            return not versions
        return [each["version"] for each in found["versions"]] == list(versions)

    async def _answer(self, request: web.Request) -> web.Response:
        if request.transport is not None:
            self._connections.add(request.transport)
            if self.down:
                request.transport.abort()
        if (raw := self.metrics.raw(request.path)) is not None:
            return web.Response(body=raw.body, content_type=raw.content_type)
        try:
            answer = self.metrics.answer(request.path)
        except StatusError as error:
            return web.json_response(error.to_object(), status=error.code)
        except PageNotFoundError:
            answer = None
        if answer is None:
            return web.Response(status=404, text="404 page not found\n")
        return web.json_response(answer)
