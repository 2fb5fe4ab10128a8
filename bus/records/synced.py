"""The record that marks a bucket as complete."""

from typing import Annotated

import msgspec

from bus.records.codec import Time, encode, reader
from tas.policy.directory import FileProblem, FileProblems


class Synced(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Value of `_synced`: a complete list of `count` objects was written in this epoch of the bucket.

    `epoch` is when the bucket's stream was created (RFC 3339, as the server reports it): a `_synced` of another epoch
    is ignored. `cluster` is False if the list is not of a Kubernetes API: then every valid name is a node.
    `file_problems` are those of the files behind the list, which may have no policy in the bucket.
    """

    epoch: str
    count: Annotated[int, msgspec.Meta(ge=0)]
    time: Time
    writer: str
    cluster: bool
    file_problems: FileProblems = FileProblems()


class _FileProblem(msgspec.Struct, kw_only=True, rename="camel"):
    origin: str
    subject: str = msgspec.field(name="object")
    field: str
    value: str
    reason: str
    in_force: str


class _Synced(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    epoch: str
    count: Annotated[int, msgspec.Meta(ge=0)]
    time: Time
    writer: str
    cluster: bool
    file_problems: list[_FileProblem] = []
    other_file_problems: Annotated[int, msgspec.Meta(ge=0)] = 0


_read = reader("_synced", _Synced)


def encode_synced(synced: Synced) -> bytes:
    """The value of `_synced`."""
    fields = msgspec.structs.asdict(synced)
    problems: FileProblems = fields.pop("file_problems")
    listed = [_FileProblem(**msgspec.structs.asdict(problem)) for problem in problems.listed]
    return encode(_Synced(**fields, file_problems=listed, other_file_problems=problems.others))


def decode_synced(data: bytes) -> Synced:
    """The inverse of `encode_synced`. Raises InvalidInputError."""
    fields = msgspec.structs.asdict(_read(data))
    listed = tuple(FileProblem(**msgspec.structs.asdict(problem)) for problem in fields.pop("file_problems"))
    problems = FileProblems(listed=listed, others=fields.pop("other_file_problems"))
    return Synced(**fields, file_problems=problems)
