"""From wishes to a patch: what of a node's labels is ours, and what is to change.

Names and values are TAS's own: `<policy>=violating`, and `telemetry.aware.scheduling.<policy>/<key>=<value>`. The
prefix is ours whole; of a bare key only the value `violating` is ever removed.
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from tas.names import is_label_name, is_subdomain
from tas.policy import LABEL_PREFIX, PolicyKey
from tas.verdict import VIOLATING, PolicyVerdict, Wish, WishKind, labeling_prefix


class LabelConflict(msgspec.Struct, frozen=True, kw_only=True):
    """Two policies wish two values of one label; `standing` is whose value stands: that of the first namespace."""

    label: str
    standing: PolicyKey
    overruled: PolicyKey


class LabelPatch(msgspec.Struct, frozen=True, kw_only=True):
    """What to change on a node.

    Attributes:
        changes: Label key to its new value, or to None for a removal. Only what differs from the node.
        removed_by: For each removal, the policies that wish it: each of them has to confirm it.
        overwritten: Foreign values that a set replaces: label key to the value that stood (a warning event).
        conflicts: Labels that several policies wish differently.
    """

    changes: Mapping[str, str | None]
    removed_by: Mapping[str, tuple[PolicyKey, ...]]
    overwritten: Mapping[str, str]
    conflicts: tuple[LabelConflict, ...]


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """A label that looks like ours and that no verdict speaks of: only the API server can say whether it may go.

    `policy_name` is the name it belongs to, in any namespace; `rest` is the key under the prefix, None for a bare
    label. Both are "" for a malformed label under the prefix, which belongs to no policy.
    """

    label: str
    policy_name: str
    rest: str | None


def label_patch(policies: Mapping[PolicyKey, PolicyVerdict], labels: Mapping[str, str]) -> LabelPatch:
    """What the wishes of all policies change on a node that has `labels`.

    Set beats hold beats absent, over all policies that speak of a label; of two values that of the namespace that sorts
    first stands. An absent wish removes any value under the prefix, and of a bare key only `violating`.
    """
    changes: dict[str, str | None] = {}
    removed_by: dict[str, tuple[PolicyKey, ...]] = {}
    overwritten: dict[str, str] = {}
    conflicts: list[LabelConflict] = []
    holding = _holding_prefixes(policies)
    for label, wishes in sorted(_wishes(policies).items()):
        standing = labels.get(label)
        wish, wishing, overruled = strongest(label, wishes)
        conflicts += overruled
        if wish.kind is WishKind.SET or (wish.kind is WishKind.SET_UNLESS_ANY and standing is None):
            if standing != wish.value:
                changes[label] = wish.value
                if standing is not None and is_foreign(label, standing):
                    overwritten[label] = standing
        elif (
            wish.kind is WishKind.ABSENT
            and standing is not None
            and not is_foreign(label, standing)
            and not _is_held(label, holding)  # by another policy of the name, which may wish the label too
        ):
            changes[label] = None
            removed_by[label] = wishing
    return LabelPatch(changes=changes, removed_by=removed_by, overwritten=overwritten, conflicts=tuple(conflicts))


def orphans(
    policies: Mapping[PolicyKey, PolicyVerdict],
    labels: Mapping[str, str],
    *,
    managers: Mapping[str, Collection[str]],
    own_managers: Collection[str],
) -> tuple[Orphan, ...]:
    """Labels of ours that nobody wishes, not even to hold.

    Under the prefix every label that no verdict speaks of, unless its policy holds the whole prefix. Of bare labels
    those with the value `violating` whose key no verdict speaks of, and which `managers` (label key to the field
    managers that set it) shows set by one of `own_managers`: otherwise it is a user's.
    """
    spoken_of = _wishes(policies)
    holding = _holding_prefixes(policies)
    own = frozenset(own_managers)
    found: list[Orphan] = []
    for label, value in sorted(labels.items()):
        if label in spoken_of:
            continue
        if label.startswith(LABEL_PREFIX):
            if not _is_held(label, holding):
                found.append(_under_prefix(label))
        elif value == VIOLATING and is_label_name(label) and not own.isdisjoint(managers.get(label, ())):
            found.append(Orphan(label=label, policy_name=label, rest=None))
    return tuple(found)


def is_foreign(label: str, value: str) -> bool:
    """Whether a bare label's value is a user's own, which a set overwrites with a warning and nothing ever removes."""
    return value != VIOLATING and not label.startswith(LABEL_PREFIX)


def strongest(
    label: str, wishes: Iterable[tuple[PolicyKey, Wish]]
) -> tuple[Wish, tuple[PolicyKey, ...], tuple[LabelConflict, ...]]:
    """The wish that stands among several for one label, whose it is, and what it overruled. At least one is given.

    Both ways to set are equally strong: that something is unknown must not change whose value stands.
    """
    ordered = sorted(wishes, key=lambda each: (_STRENGTH[each[1].kind], each[0]))
    (first, standing), *_ = ordered
    alike = [(key, wish) for key, wish in ordered if _STRENGTH[wish.kind] == _STRENGTH[standing.kind]]
    agreeing = tuple(key for key, wish in alike if wish.value == standing.value)
    conflicts = tuple(
        LabelConflict(label=label, standing=first, overruled=key) for key, wish in alike if wish.value != standing.value
    )
    return standing, agreeing, conflicts


_STRENGTH = {WishKind.SET: 0, WishKind.SET_UNLESS_ANY: 0, WishKind.HOLD: 1, WishKind.ABSENT: 2}


def _wishes(policies: Mapping[PolicyKey, PolicyVerdict]) -> dict[str, list[tuple[PolicyKey, Wish]]]:
    """Every label that some verdict speaks of, with the wishes for it."""
    wishes: dict[str, list[tuple[PolicyKey, Wish]]] = {}
    for key, policy in policies.items():
        for strategy in policy.strategies.values():
            for label, verdict in strategy.labels.items():
                wishes.setdefault(label, []).append((key, verdict.wish))
    return wishes


def _holding_prefixes(policies: Mapping[PolicyKey, PolicyVerdict]) -> frozenset[str]:
    return frozenset(labeling_prefix(key) for key, policy in policies.items() if policy.holds_prefix)


def _is_held(label: str, holding: Collection[str]) -> bool:
    """Whether a policy holds the whole prefix that `label` stands under."""
    return label[: label.find("/") + 1] in holding


def _under_prefix(label: str) -> Orphan:
    policy_name, slash, rest = label.removeprefix(LABEL_PREFIX).partition("/")
    if not slash or not is_subdomain(policy_name):
        return Orphan(label=label, policy_name="", rest="")
    return Orphan(label=label, policy_name=policy_name, rest=rest)
