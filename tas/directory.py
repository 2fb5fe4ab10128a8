"""Policies from a directory: which files' words stand, when files come, go, break and contradict each other.

An edit that cannot be read is no deletion: what stood there before stays until the file says something readable again,
or is gone. Of two policies of one name the first path stands.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

import msgspec

from tas.policy import Policy, PolicyKey, Problem


class FiledPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """One policy as a file words it.

    `origin` is the file's path within the directory. `generation` changes exactly when the spec does. `problems` are
    those that were accepted.
    """

    origin: str
    policy: Policy
    generation: int
    problems: tuple[Problem, ...] = ()


_POLICY = "policy "

LAST_GOOD = "last good version"
OTHER = "another definition of this name"
NOTHING = "nothing"


class FileProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Something in a file that does not stand: where, what stood there, and why.

    `in_force` says what counts instead: `LAST_GOOD`, `OTHER` or `NOTHING`.
    """

    origin: str
    subject: str
    field: str
    value: str
    reason: str
    in_force: str = NOTHING

    def __str__(self) -> str:
        return f"file {self.origin}: {self.subject}: {self.field} = {self.value}: {self.reason}"


class PolicyFile(msgspec.Struct, frozen=True, kw_only=True):
    """What one file says: its policies, in order, and what in it cannot be read."""

    origin: str
    policies: tuple[FiledPolicy, ...] = ()
    problems: tuple[FileProblem, ...] = ()


class DirectoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What shall stand, what shall go, and what is to be reported.

    A policy that stands already and is in neither `stand` nor `remove` stays as it is.
    """

    stand: Mapping[PolicyKey, FiledPolicy]
    remove: frozenset[PolicyKey]
    unreadable: Mapping[str, tuple[FileProblem, ...]]
    duplicates: tuple[FileProblem, ...]


def plan(files: Iterable[PolicyFile], standing: Mapping[PolicyKey, str], *, complete: bool) -> DirectoryPlan:
    """What becomes of `standing` (policy to the file it came from) when the directory holds `files`.

    Only with a `complete` listing of the directory an absence is a deletion, and only of what came from a file: an
    origin of "" is somebody else's policy.
    """
    standing_of = defaultdict(list)
    for key, origin in standing.items():
        standing_of[origin].append(key)
    holder: dict[PolicyKey, str] = {}
    stand: dict[PolicyKey, FiledPolicy] = {}
    unreadable: dict[str, tuple[FileProblem, ...]] = {}
    duplicates: list[FileProblem] = []
    for file in sorted(files, key=lambda file: file.origin):
        for filed in file.policies:
            key = filed.policy.key
            if key in holder:
                duplicates.append(_duplicate(filed, holder[key]))
                continue
            holder[key] = file.origin
            stand[key] = filed
        if file.problems:
            unreadable[file.origin] = file.problems
            # Which of its policies the unreadable part was, nobody can tell: none of them goes.
            for key in standing_of[file.origin]:
                holder.setdefault(key, file.origin)
    remove = frozenset(key for key, origin in standing.items() if complete and origin and key not in holder)
    kept = {key: origin for key, origin in holder.items() if key not in stand}
    unreadable = {
        origin: tuple(msgspec.structs.replace(each, in_force=_in_force(each, kept, stand)) for each in problems)
        for origin, problems in unreadable.items()
    }
    return DirectoryPlan(stand=stand, remove=remove, unreadable=unreadable, duplicates=tuple(duplicates))


def _in_force(problem: FileProblem, kept: Mapping[PolicyKey, str], stand: Collection[PolicyKey]) -> str:
    """What counts instead of what cannot be read; `kept` is what stands of earlier versions of which file."""
    if problem.subject.startswith(_POLICY):
        name = problem.subject.removeprefix(_POLICY)
        if any(str(key) == name for key in stand):
            return OTHER
        return LAST_GOOD if any(str(key) == name for key in kept) else NOTHING
    return LAST_GOOD if problem.origin in kept.values() else NOTHING


def _duplicate(filed: FiledPolicy, holder: str) -> FileProblem:
    return FileProblem(
        origin=filed.origin,
        subject=f"{_POLICY}{filed.policy.key}",
        field="metadata.name",
        value=repr(filed.policy.key.name),
        reason=f"the policy of this name in file {holder} stands",
        in_force=OTHER,
    )
