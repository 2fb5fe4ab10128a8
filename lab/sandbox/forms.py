"""The forms of objects in answers, chosen by the header `Accept`."""

from enum import Enum

from lab.sandbox.errors import StatusError

LISTED = "PartialObjectMetadataList"


class Form(Enum):
    """The form of objects in an answer."""

    WHOLE = "whole"
    PARTIAL = "partial"
    """Only the metadata."""
    TABLE = "table"
    """Rows and columns, as kubectl prints them."""
    NOTHING = "nothing"
    """No objects."""


def accepted(accept: str, *, verb: str) -> Form:
    """The form for a header `Accept`. A watch for partial lists gets no objects (observed on 1.36).

    Raises StatusError: 406, if no form of the header is supported.
    """
    for entry in accept.split(","):
        media, *rest = [part.strip() for part in entry.split(";")]
        parameters = dict(part.split("=", 1) for part in rest if "=" in part)
        form = parameters.get("as", "")
        if media not in ("", "*/*", "application/*", "application/json"):
            continue
        if not form:
            return Form.WHOLE
        if form == "Table" and verb in ("get", "list", "watch") and parameters.get("v") == "v1":
            return Form.TABLE
        if form == (LISTED if verb == "list" else "PartialObjectMetadata"):
            return Form.PARTIAL
        if form == LISTED and verb == "watch":
            return Form.NOTHING
    raise StatusError(406, "406: Not Acceptable\n\nAvailable representations: application/json", details={})
