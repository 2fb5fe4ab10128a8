"""The forms in which objects are shown, as the header `Accept` asks for them."""

from enum import Enum

from sandbox.errors import StatusError

LISTED = "PartialObjectMetadataList"


class Form(Enum):
    """How objects are shown."""

    WHOLE = "whole"
    PARTIAL = "partial"
    """Their metadata alone."""
    TABLE = "table"
    """Columns for people, as kubectl likes them best."""
    NOTHING = "nothing"
    """Not at all."""


def accepted(accept: str, *, verb: str) -> Form:
    """The form an answer is wanted in: of a watch that asks for partial lists, nothing fits into it (tried on 1.36).

    Raises:
        StatusError: 406, if none of what is named can be made.
    """
    for asked in accept.split(","):
        media, *rest = [part.strip() for part in asked.split(";")]
        parameters = dict(part.split("=", 1) for part in rest if "=" in part)
        wanted = parameters.get("as", "")
        if media not in ("", "*/*", "application/*", "application/json"):
            continue
        if not wanted:
            return Form.WHOLE
        if wanted == "Table" and verb in ("get", "list", "watch") and parameters.get("v") == "v1":
            return Form.TABLE
        if wanted == (LISTED if verb == "list" else "PartialObjectMetadata"):
            return Form.PARTIAL
        if wanted == LISTED and verb == "watch":
            return Form.NOTHING
    raise StatusError(406, "406: Not Acceptable\n\nAvailable representations: application/json", details={})
