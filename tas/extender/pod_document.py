"""The parts of a request's pod that few decisions need: they are decoded when a decision reads them."""

import msgspec
from msgspec import Raw

from tas.extender.fields import decode_field
from tas.gpu.claim import ContainerRequest

SUBJECT = "pod of the request"


class _Resources(msgspec.Struct, gc=False):
    requests: dict[str, str] | None = None
    limits: dict[str, str] | None = None


class _Container(msgspec.Struct, gc=False):
    name: str = ""
    resources: _Resources | None = None

    def as_request(self) -> ContainerRequest:
        sent = self.resources or _Resources()
        return ContainerRequest(name=self.name, requests=sent.requests or {}, limits=sent.limits or {})


class _Metadata(msgspec.Struct):
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


class _WithMetadata(msgspec.Struct):
    metadata: _Metadata | None = None


class _WithSpec(msgspec.Struct):
    spec: _Spec | None = None


_with_metadata: msgspec.json.Decoder[_WithMetadata | None] = msgspec.json.Decoder(_WithMetadata | None)
_with_spec: msgspec.json.Decoder[_WithSpec | None] = msgspec.json.Decoder(_WithSpec | None)


def read_annotations(document: Raw) -> dict[str, str]:
    """The annotations of a pod as JSON. Raises InvalidInputError if they are not texts."""
    pod = decode_field(SUBJECT, "Pod", document, _with_metadata) or _WithMetadata()
    return (pod.metadata or _Metadata()).annotations or {}


def read_containers(document: Raw) -> tuple[tuple[ContainerRequest, ...], tuple[ContainerRequest, ...]]:
    """The containers of a pod as JSON, and its init containers. Raises InvalidInputError if they are not as in `v1`."""
    pod = decode_field(SUBJECT, "Pod", document, _with_spec) or _WithSpec()
    spec = pod.spec or _Spec()
    return (
        tuple(each.as_request() for each in spec.containers or ()),
        tuple(each.as_request() for each in spec.init_containers or ()),
    )
