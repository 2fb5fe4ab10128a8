"""The verb bind: which pod goes to which node, from ExtenderBindingArgs to ExtenderBindingResult."""

import msgspec

from tas.errors import InvalidInputError
from tas.extender.decision import Binding
from tas.extender.fields import Fields

SUBJECT = "ExtenderBindingArgs"
FIELDS = ("PodNamespace", "PodName", "PodUID", "Node")

_text: msgspec.json.Decoder[str | None] = msgspec.json.Decoder(str | None)


def decode_binding(body: bytes) -> Binding:
    """The request in `body`. Raises InvalidInputError if a field is missing, empty or not a string."""
    fields = Fields(SUBJECT, body, FIELDS)

    def text(name: str) -> str:
        value = fields.decoded(name, _text)
        if not value:
            raise InvalidInputError(SUBJECT, name, value, "must be given")
        return value

    namespace, name, uid, node = map(text, FIELDS)
    return Binding(namespace=namespace, name=name, uid=uid, node=node)


def binding_result(error: str) -> bytes:
    """An ExtenderBindingResult; an empty `error` means that the pod is bound."""
    return msgspec.json.encode({"Error": error})
