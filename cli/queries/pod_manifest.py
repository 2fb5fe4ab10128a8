"""A pod in a manifest: what it asks of GPU cards, and its policy."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import click
import msgspec

from tas.enforcing.pod import PodKey
from tas.gpu.claim import ContainerRequest, DevicePod
from tas.policy.policy import POD_LABEL
from workers.process.manifests import ManifestError, read_yaml

TEMPLATES = ("template", "jobTemplate")
"""Fields of the spec of a workload on the way to the template of its pods."""


class DescribedPod(NamedTuple):
    """A pod as its manifest describes it; `policy` is its label `telemetry-policy`."""

    pod: DevicePod
    policy: str | None


class _Resources(msgspec.Struct):
    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None


class _Container(msgspec.Struct):
    name: str = ""
    resources: _Resources | None = None


class _Metadata(msgspec.Struct):
    uid: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    containers: list[_Container]
    init_containers: list[_Container] | None = None


class _Pod(msgspec.Struct):
    spec: _Spec
    metadata: _Metadata | None = None


def pod_of_manifest(key: PodKey, data: bytes) -> DescribedPod:
    """The pod of the first document that is a pod or has a template of pods, under this name.

    Raises click.ClickException if there is none, or if it cannot be read.
    """
    try:
        documents = list(read_yaml(data))
    except ManifestError as error:
        raise click.ClickException(f"--manifest: {error}") from error
    for document in documents:
        found = _pod(document)
        if found is not None:
            try:
                return _described(key, msgspec.convert(found, _Pod))
            except msgspec.ValidationError as error:
                raise click.ClickException(f"--manifest: {error}") from error
    raise click.ClickException("--manifest: neither a pod nor a workload with a template of pods")


def _pod(document: object) -> Mapping[str, Any] | None:
    """The document itself if it has containers, else the template of a workload; None if there is neither."""
    while isinstance(document, dict):
        spec = document.get("spec")
        if not isinstance(spec, dict):
            return None
        if "containers" in spec:
            return document
        document = next((spec[name] for name in TEMPLATES if name in spec), None)
    return None


def _described(key: PodKey, found: _Pod) -> DescribedPod:
    metadata = found.metadata or _Metadata()
    pod = DevicePod(
        key=key,
        uid=metadata.uid,
        containers=tuple(map(_request, found.spec.containers)),
        init_containers=tuple(map(_request, found.spec.init_containers or ())),
        annotations=metadata.annotations or {},
    )
    return DescribedPod(pod, (metadata.labels or {}).get(POD_LABEL))


def _request(container: _Container) -> ContainerRequest:
    resources = container.resources or _Resources()
    requests, limits = (
        {name: str(amount) for name, amount in (amounts or {}).items()}
        for amounts in (resources.requests, resources.limits)
    )
    return ContainerRequest(name=container.name, requests=requests, limits=limits)
