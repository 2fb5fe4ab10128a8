"""What kube-scheduler checks in the arguments of a plugin that it has decoded (facts.md c72)."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tas.configuring.decoding import Object, StartProblem, number, objects
from tas.values.names import is_label_key

SCORES_VOLUMES = 37
"""The first minor version that takes a shape for scores of VolumeBinding without a feature gate."""

ONE_STRATEGY = 36
"""The first minor version that refuses what belongs to another type of scoring strategy."""

EMPTY_SHAPE = 22
"""The last minor version that takes a shape without a point."""


class Version(NamedTuple):
    """The form of a configuration, for example `v1`, and the minor version of the scheduler that reads it."""

    form: str
    minor: int


def problems_of_arguments(plugin: str, args: Object, place: str, version: Version) -> Iterator[StartProblem]:
    """With which arguments of a plugin the scheduler does not start; `place` is where they are."""
    if plugin in _ARGUMENTS:
        yield from _ARGUMENTS[plugin](args, place, version)


def _preemption(args: Object, place: str, _: Version) -> Iterator[StartProblem]:
    percentage = number(args, "minCandidateNodesPercentage", 10)
    absolute = number(args, "minCandidateNodesAbsolute", 100)
    if not 0 <= percentage <= 100:
        yield StartProblem(f"{place}.minCandidateNodesPercentage", percentage, "must be 0 to 100")
    if absolute < 0:
        yield StartProblem(f"{place}.minCandidateNodesAbsolute", absolute, "must not be negative")
    if percentage == absolute == 0:
        yield StartProblem(place, dict(args), "must not have 0 for both minimums")


def _inter_pod_affinity(args: Object, place: str, _: Version) -> Iterator[StartProblem]:
    weight = number(args, "hardPodAffinityWeight", 1)
    if not 0 <= weight <= 100:
        yield StartProblem(f"{place}.hardPodAffinityWeight", weight, "must be 0 to 100")


def _spread(args: Object, place: str, version: Version) -> Iterator[StartProblem]:
    defaulting = args.get("defaultingType") or ("List" if version.form == "v1beta1" else "System")
    constraints = list(objects(args, "defaultConstraints"))
    if defaulting not in ("System", "List"):
        yield StartProblem(f"{place}.defaultingType", defaulting, "must be System or List")
    elif defaulting == "System" and constraints:
        yield StartProblem(f"{place}.defaultingType", defaulting, "must be List where there are defaultConstraints")
    seen: set[tuple[object, object]] = set()
    for at, each in constraints:
        where, key, action = f"{place}.defaultConstraints[{at}]", each.get("topologyKey"), each.get("whenUnsatisfiable")
        if number(each, "maxSkew", 0) <= 0:
            yield StartProblem(f"{where}.maxSkew", each.get("maxSkew"), "must be at least 1")
        if not (isinstance(key, str) and is_label_key(key)):
            yield StartProblem(f"{where}.topologyKey", key, "must be the key of a label")
        if action not in ("DoNotSchedule", "ScheduleAnyway"):
            yield StartProblem(f"{where}.whenUnsatisfiable", action, "must be DoNotSchedule or ScheduleAnyway")
        if each.get("labelSelector") is not None:
            reason = "must not be given: the scheduler takes that of each pod"
            yield StartProblem(f"{where}.labelSelector", each["labelSelector"], reason)
        if (key, action) in seen:
            yield StartProblem(where, key, "is there twice")
        seen.add((key, action))


def _volume_binding(args: Object, place: str, version: Version) -> Iterator[StartProblem]:
    if number(args, "bindTimeoutSeconds", 600) < 0:
        yield StartProblem(f"{place}.bindTimeoutSeconds", args["bindTimeoutSeconds"], "must not be negative")
    shape = args.get("shape")
    if shape is not None and version.minor < SCORES_VOLUMES:
        yield StartProblem(f"{place}.shape", shape, "needs a feature gate that is off by default: delete it")
    elif shape is not None:
        yield from _shape(args, place, version)


def _fit(args: Object, place: str, version: Version) -> Iterator[StartProblem]:
    for key in ("ignoredResources", "ignoredResourceGroups"):
        names = args.get(key)
        for at, name in enumerate(names if isinstance(names, list) else []):
            if not is_label_key(str(name)) or (key == "ignoredResourceGroups" and "/" in str(name)):
                reason = "is no name of a " + ("resource" if key == "ignoredResources" else "group of resources")
                yield StartProblem(f"{place}.{key}[{at}]", name, reason)
    strategy = args.get("scoringStrategy")
    if not isinstance(strategy, Mapping):
        return
    where, kind = f"{place}.scoringStrategy", strategy.get("type") or ""
    if kind not in SCORING:
        yield StartProblem(f"{where}.type", kind, f"must be {' or '.join(SCORING)}")
    yield from _resources(strategy, where, version)
    ratio = strategy.get("requestedToCapacityRatio")
    if kind == "RequestedToCapacityRatio" and isinstance(ratio, Mapping):
        yield from _shape(ratio, f"{where}.requestedToCapacityRatio", version)
    elif kind == "RequestedToCapacityRatio":
        yield StartProblem(f"{where}.requestedToCapacityRatio", ratio, "must be given with this type")
    elif ratio is not None and version.minor >= ONE_STRATEGY:
        yield StartProblem(f"{where}.requestedToCapacityRatio", ratio, f"must not be given with the type {kind}")


def _balanced(args: Object, place: str, _: Version) -> Iterator[StartProblem]:
    seen: set[object] = set()
    for at, each in objects(args, "resources"):
        where = f"{place}.resources[{at}]"
        if each.get("name") in seen:
            yield StartProblem(f"{where}.name", each.get("name"), "is there twice")
        seen.add(each.get("name"))
        if (number(each, "weight", 1) or 1) != 1:
            yield StartProblem(f"{where}.weight", each["weight"], "must be 1")


def _resources(parent: Object, place: str, _: Version) -> Iterator[StartProblem]:
    for at, each in objects(parent, "resources"):
        weight = number(each, "weight", 1) or 1
        if not 0 < weight <= 100:
            yield StartProblem(f"{place}.resources[{at}].weight", weight, "must be 1 to 100")


def _shape(parent: Object, place: str, version: Version) -> Iterator[StartProblem]:
    points = [(number(each, "utilization", 0), number(each, "score", 0)) for _, each in objects(parent, "shape")]
    if not points and version.minor > EMPTY_SHAPE:
        yield StartProblem(f"{place}.shape", parent.get("shape"), "must have at least one point")
    for at, (utilization, score) in enumerate(points):
        where = f"{place}.shape[{at}]"
        if at and points[at - 1][0] >= utilization:
            yield StartProblem(f"{where}.utilization", utilization, "must be more than that of the point before")
        if not 0 <= utilization <= 100:
            yield StartProblem(f"{where}.utilization", utilization, "must be 0 to 100")
        if not 0 <= score <= 10:
            yield StartProblem(f"{where}.score", score, "must be 0 to 10")


def _affinity(args: Object, place: str, _: Version) -> Iterator[StartProblem]:
    added = args.get("addedAffinity")
    if not isinstance(added, Mapping):
        return
    where = f"{place}.addedAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    required = added.get("requiredDuringSchedulingIgnoredDuringExecution")
    for at, each in objects(required, "nodeSelectorTerms") if isinstance(required, Mapping) else ():
        yield from _term(each, f"{where}.nodeSelectorTerms[{at}]")
    where = f"{place}.addedAffinity.preferredDuringSchedulingIgnoredDuringExecution"
    for at, each in objects(added, "preferredDuringSchedulingIgnoredDuringExecution"):
        term = each.get("preference")
        if isinstance(term, Mapping) and number(each, "weight", 0) != 0:
            yield from _term(term, f"{where}[{at}].preference")


def _term(term: Object, place: str) -> Iterator[StartProblem]:
    for key in ("matchExpressions", "matchFields"):
        for at, each in objects(term, key):
            where, operator, values = f"{place}.{key}[{at}]", each.get("operator"), each.get("values") or []
            assert isinstance(values, list)
            if operator not in OPERATORS or (key == "matchFields" and operator not in ("In", "NotIn")):
                yield StartProblem(f"{where}.operator", operator, f"must be {' or '.join(OPERATORS)}")
            elif not OPERATORS[str(operator)](values) or (key == "matchFields" and len(values) != 1):
                yield StartProblem(f"{where}.values", values, f"are not those that {operator} takes")
            if key == "matchExpressions" and not is_label_key(str(each.get("key"))):
                yield StartProblem(f"{where}.key", each.get("key"), "must be the key of a label")
            elif key == "matchFields" and each.get("key") != "metadata.name":
                yield StartProblem(f"{where}.key", each.get("key"), "must be metadata.name")


def _is_one_integer(values: list[object]) -> bool:
    return len(values) == 1 and str(values[0]).lstrip("+-").isdecimal()


SCORING = ("LeastAllocated", "MostAllocated", "RequestedToCapacityRatio")
OPERATORS: Mapping[str, Callable[[list[object]], bool]] = {
    "In": bool,
    "NotIn": bool,
    "Exists": lambda values: not values,
    "DoesNotExist": lambda values: not values,
    "Gt": _is_one_integer,
    "Lt": _is_one_integer,
}
"""The operators of a requirement, and whether one takes these values."""

_ARGUMENTS: Mapping[str, Callable[[Object, str, Version], Iterator[StartProblem]]] = {
    "DefaultPreemption": _preemption,
    "InterPodAffinity": _inter_pod_affinity,
    "NodeAffinity": _affinity,
    "NodeResourcesBalancedAllocation": _balanced,
    "NodeResourcesFit": _fit,
    "NodeResourcesLeastAllocated": _resources,
    "NodeResourcesMostAllocated": _resources,
    "PodTopologySpread": _spread,
    "RequestedToCapacityRatio": _shape,
    "VolumeBinding": _volume_binding,
}
