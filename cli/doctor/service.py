"""Where a Service can be reached, as the API server says."""

from pathlib import Path

from cli.doctor.cluster_read import ADMINISTRATOR
from cli.doctor.requests import requested
from tas.diagnosis.finding import Missing
from tas.diagnosis.service import NoService, ServiceFacts, ServiceName, reached_at
from workers.kubernetes.client import KubernetesClient
from workers.kubernetes.errors import ConfigurationError, ForbiddenError, NotFoundError
from workers.kubernetes.resources import ENDPOINT_SLICES, SERVICE_OF_SLICE, SERVICES
from workers.settings import flag


async def find_service(kubeconfig: Path | None, name: ServiceName, port: int) -> str | NoService | Missing:
    """As `address_of`, by the API server of a kubeconfig, or of this pod (None)."""
    try:
        async with KubernetesClient.connect(kubeconfig, worker="doctor") as client:
            return await requested(address_of(client, name, port), mend=ADMINISTRATOR)
    except ConfigurationError as error:
        return Missing(f"{flag('kubeconfig')}: {error}", "give a kubeconfig that can be read")


async def address_of(client: KubernetesClient, name: ServiceName, port: int) -> str | NoService | Missing:
    """The name or address of a Service. Raises KubernetesError."""
    try:
        spec = (await client.get(SERVICES, name.name, namespace=name.namespace)).spec
    except NotFoundError as error:
        if not error.confirms_missing(group="", plural="services", name=name.name):
            raise
        return reached_at(name, port, None)
    facts = ServiceFacts(
        external=spec.external_name,
        address=spec.cluster_ip,
        ports=frozenset(each.port for each in spec.ports),
        ready=await _ready(client, name),
    )
    return reached_at(name, port, facts)


async def _ready(client: KubernetesClient, name: ServiceName) -> list[str] | Missing:
    """The addresses of the ready endpoints of a Service."""
    try:
        slices = await client.list(ENDPOINT_SLICES, label_selector=f"{SERVICE_OF_SLICE}={name.name}")
    except ForbiddenError as error:
        return Missing(str(error))
    return [
        address
        for each in slices.items
        if each.metadata.namespace == name.namespace
        for endpoint in each.endpoints or ()
        if endpoint.conditions.ready is not False
        for address in endpoint.addresses
    ]
