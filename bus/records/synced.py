"""The record that marks a bucket as complete."""

from typing import Annotated

import msgspec

from bus.records.codec import Time, reader


class Synced(msgspec.Struct, frozen=True, kw_only=True):
    """Value of `_synced`: a complete list of `count` objects was written in this epoch of the bucket.

    `epoch` is when the bucket's stream was created (RFC 3339, as the server reports it): a `_synced` of another epoch
    is ignored. `cluster` is False if the list is not of a Kubernetes API: then every valid name is a node.
    """

    epoch: str
    count: Annotated[int, msgspec.Meta(ge=0)]
    time: Time
    writer: str
    cluster: bool


decode_synced = reader("_synced", Synced)
