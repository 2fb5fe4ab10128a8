"""What kube-scheduler checks in a configuration that it has decoded, before it starts (facts.md c6 to c9, c72)."""

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address

from tas.configuring.arguments import Version, problems_of_arguments
from tas.configuring.decoding import Object, StartProblem, covers, decoded, number, objects, points_of, types_of
from tas.configuring.versions import GROUP
from tas.values.duration import parse_duration
from tas.values.names import is_label_key

LOCKS = {
    "leases": "19-",
    "endpointsleases": "19-26",
    "configmapsleases": "19-26",
    "endpoints": "19-23",
    "configmaps": "19-23",
}
"""The minor versions that elect a leader by each lock."""

REMOVED = {
    "v1beta2": {
        "NodeLabel": "22-22",
        "NodePreferAvoidPods": "22-22",
        "NodeResourcesLeastAllocated": "22-22",
        "NodeResourcesMostAllocated": "22-22",
        "RequestedToCapacityRatio": "22-22",
        "ServiceAffinity": "22-22",
    },
    "v1": {"SelectorSpread": "25-28"},
}
"""Plugins that a form of the configuration does not allow although a scheduler of these minor versions has them."""

_NOT_DEFAULT = frozenset(
    {
        "CinderLimits",
        "NodeLabel",
        "NodeResourcesMostAllocated",
        "RequestedToCapacityRatio",
        "SelectorSpread",
        "ServiceAffinity",
    }
)
"""Plugins that a scheduler up to 1.22 has and does not enable by itself; `v1beta1` enables each other one."""

_FIT_SCORES = ("NodeResourcesLeastAllocated", "NodeResourcesMostAllocated", "RequestedToCapacityRatio")
"""Plugins of 1.22 that score by resources: beside one of them NodeResourcesFit may not."""

HTTPS_ONLY = 23
"""The first minor version that serves HTTPS only: its addresses for HTTP may have the port 0 only."""

_PER_POINT = ("v1beta1", "v1beta2")
"""Forms whose defaults are by extension point; in later ones they are those of `multiPoint`."""

_ALL_POINTS = "multiPoint"
_ONE_OF_ALL = {"queueSort": "PrioritySort", "bind": "DefaultBinder"}
"""The plugin that a stock scheduler has where a profile cannot be without."""


def problems(document: Object, minor: int, allowed: frozenset[str] = frozenset()) -> list[StartProblem]:
    """With what a kube-scheduler of this minor version does not start; empty: with this configuration it starts.

    Args:
        document: A configuration of a form that the scheduler reads, as in JSON.
        minor: The minor version of the scheduler.
        allowed: Names of plugins that the scheduler has beside those of a stock one.
    """
    version = Version(str(document["apiVersion"]).removeprefix(f"{GROUP}/"), minor)
    found = list(decoded(document, version.form, minor))
    # Only what has the published types is looked at further.
    if all(each.unknown for each in found):
        found += _general(document, minor)
        found += _profiles(document, version, allowed)
        found += _extenders(document)
    return found


def _general(document: Object, minor: int) -> Iterator[StartProblem]:
    if number(document, "parallelism", 1) < 1:
        yield StartProblem("parallelism", document["parallelism"], "must be at least 1")
    yield from _share(document, "percentageOfNodesToScore")
    first, last = number(document, "podInitialBackoffSeconds", 1), number(document, "podMaxBackoffSeconds", 10)
    if first <= 0:
        yield StartProblem("podInitialBackoffSeconds", first, "must be more than 0")
    if last < first:
        yield StartProblem("podMaxBackoffSeconds", last, f"must be at least podInitialBackoffSeconds ({first:g})")
    client = document.get("clientConnection") or {}
    if isinstance(client, Mapping) and number(client, "burst", 0) < 0:
        yield StartProblem("clientConnection.burst", client["burst"], "must not be negative")
    election = document.get("leaderElection") or {}
    if isinstance(election, Mapping) and election.get("leaderElect") is not False:
        yield from _election(election, minor)
    for key in ("healthzBindAddress", "metricsBindAddress"):
        if value := document.get(key):
            wrong = _wrong_port(str(value)) if minor < HTTPS_ONLY else _wrong_address(str(value))
            if wrong is not None:
                yield StartProblem(key, value, wrong)


def _share(parent: Object, place: str) -> Iterator[StartProblem]:
    value = number(parent, "percentageOfNodesToScore", 0)
    if not 0 <= value <= 100:
        yield StartProblem(place, value, "must be 0 to 100")


def _election(election: Object, minor: int) -> Iterator[StartProblem]:
    seconds = {}
    for key, default in (("leaseDuration", 15.0), ("renewDeadline", 10.0), ("retryPeriod", 2.0)):
        seconds[key] = parse_duration(str(election.get(key) or "0s")) or default
        if seconds[key] < 0:
            yield StartProblem(f"leaderElection.{key}", election[key], "must be more than 0")
    if seconds["leaseDuration"] <= seconds["renewDeadline"]:
        reason = "must be longer than renewDeadline"
        yield StartProblem("leaderElection.leaseDuration", election.get("leaseDuration"), reason)
    elif seconds["renewDeadline"] <= 1.2 * seconds["retryPeriod"]:
        reason = "must be longer than 1.2 times retryPeriod"
        yield StartProblem("leaderElection.renewDeadline", election.get("renewDeadline"), reason)
    lock = election.get("resourceLock") or "leases"
    locks = [name for name, span in LOCKS.items() if covers(span, minor)]
    if lock not in locks:
        yield StartProblem("leaderElection.resourceLock", lock, f"must be {' or '.join(locks)}")


def _wrong_address(value: str) -> str | None:
    host, _, port = value.rpartition(":")
    if not _is_address(host):
        return "must be an address with a port: 0.0.0.0:0"
    return None if port == "0" else "must have the port 0: kube-scheduler serves only HTTPS"


def _wrong_port(value: str) -> str | None:
    """Up to 1.22 an address may be without a port."""
    host, _, port = value.rpartition(":")
    if _is_address(value):
        return None
    if not _is_address(host) or not port.isdecimal():
        return "must be an address, or an address with a port"
    return None if len(port) <= 5 and 1 <= int(port) <= 65535 else "must have a port of 1 to 65535"


def _is_address(text: str) -> bool:
    try:
        ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _profiles(document: Object, version: Version, allowed: frozenset[str]) -> Iterator[StartProblem]:
    names: dict[str, int] = {}
    profiles = list(objects(document, "profiles"))
    for at, profile in profiles:
        place = f"profiles[{at}]"
        name = profile.get("schedulerName")
        if name is None and len(profiles) == 1:
            name = "default-scheduler"
        if not name:
            yield StartProblem(f"{place}.schedulerName", name, "must be given where there are several profiles")
        elif names.setdefault(str(name), at) != at:
            yield StartProblem(f"{place}.schedulerName", name, f"profiles[{names[str(name)]}] has this name")
        yield from _share(profile, f"{place}.percentageOfNodesToScore")
        for point in _plugins_of(profile):
            yield from _enabled(_set(profile, point), point, f"{place}.plugins.{point}", version, allowed)
        yield from _ones_of_all(profile, place, version, allowed)
        yield from _plugin_config(profile, place, version)
    yield from _queue_sorts([profile for _, profile in profiles], version)


def _queue_sorts(profiles: Sequence[Object], version: Version) -> Iterator[StartProblem]:
    of: list[object] = [
        _effective(each, "queueSort", version, frozenset())
        if version.form in _PER_POINT
        else dict(_set(each, "queueSort"))
        for each in profiles
    ]
    for at, each in enumerate(of):
        if each != of[0]:
            place, reason = f"profiles[{at}].plugins.queueSort", "must be the same in all profiles"
            yield StartProblem(place, dict(_set(profiles[at], "queueSort")), reason)


def _plugins_of(profile: Object) -> Object:
    plugins = profile.get("plugins") or {}
    assert isinstance(plugins, Mapping)
    return plugins


def _set(profile: Object, point: str) -> Object:
    found = _plugins_of(profile).get(point)
    return found if isinstance(found, Mapping) else {}  # of a field that is not published: `decoded` names it


def _names(plugin_set: Object, key: str) -> list[str]:
    return [str(each.get("name") or "") for _, each in objects(plugin_set, key)]


def _enabled(
    plugin_set: Object, point: str, place: str, version: Version, allowed: frozenset[str]
) -> Iterator[StartProblem]:
    """Problems of the plugins under `enabled` of an extension point."""
    seen: set[str] = set()
    for at, name in enumerate(_names(plugin_set, "enabled")):
        where, points = f"{place}.enabled[{at}].name", points_of(name, version.minor)
        if name in seen:
            yield StartProblem(where, name, "is enabled twice")
            continue
        seen.add(name)
        if name in allowed or (point == _ALL_POINTS and version.form in _PER_POINT):
            continue
        if points is None:
            reason = f"is no plugin of kube-scheduler 1.{version.minor}: if yours has it, give --allow-plugin {name}"
            yield StartProblem(where, name, reason, unknown=True)
        elif point != _ALL_POINTS and point not in points:
            yield StartProblem(where, name, f"has no {point}", unknown=True)
        elif point != _ALL_POINTS and _is_removed(name, version):
            yield StartProblem(where, name, f"is not allowed in {version.form}")
        elif version.form == "v1beta1":
            yield from _enabled_again(name, point, plugin_set, where)


def _is_removed(plugin: str, version: Version) -> bool:
    return covers(REMOVED.get(version.form, {}).get(plugin, "1-1"), version.minor)


def _enabled_again(name: str, point: str, plugin_set: Object, place: str) -> Iterator[StartProblem]:
    """v1beta1 adds to the plugins that the scheduler enables by itself, and does not replace them."""
    off = {*_names(plugin_set, "disabled")}
    is_default = name not in _NOT_DEFAULT and (point != "score" or name not in ("VolumeBinding", "NodeResourcesFit"))
    if is_default and not off & {"*", name}:
        yield StartProblem(place, name, "is enabled already: v1beta1 needs it under disabled, too")
    elif (point, name) == ("score", "NodeResourcesFit"):
        on = {*_names(plugin_set, "enabled")} | ({*_FIT_SCORES[:1]} if not off & {"*", _FIT_SCORES[0]} else set())
        for other in on.intersection(_FIT_SCORES):
            yield StartProblem(place, name, f"must not score beside {other}")


def _ones_of_all(profile: Object, place: str, version: Version, allowed: frozenset[str]) -> Iterator[StartProblem]:
    for point in _ONE_OF_ALL:
        used = _effective(profile, point, version, allowed)
        where, value = f"{place}.plugins.{point}", dict(_set(profile, point))
        # Which extension points another plugin has is not known.
        if not used and not allowed & {*_names(_set(profile, _ALL_POINTS), "enabled")}:
            yield StartProblem(where, value, "must leave one plugin enabled")
        elif len(used) > 1 and point == "queueSort":
            yield StartProblem(where, value, f"must have one plugin, not {', '.join(sorted(used))}")


def _effective(profile: Object, point: str, version: Version, allowed: frozenset[str]) -> list[str]:
    """The plugins of an extension point of `_ONE_OF_ALL`, with those that are enabled by default."""
    here, everywhere = _set(profile, point), _set(profile, _ALL_POINTS)
    off, default = {*_names(here, "disabled")}, _ONE_OF_ALL[point]
    used = _names(here, "enabled")
    if "*" in off:
        return used
    if version.form in _PER_POINT:
        others = [default]
    else:
        others = _names(everywhere, "enabled")
        if not {"*", default} & {*_names(everywhere, "disabled")}:
            others = [default, *others]
        others = [each for each in others if point in (points_of(each, version.minor) or ())]
    return list(dict.fromkeys([*(each for each in others if each not in off), *used]))


def _plugin_config(profile: Object, place: str, version: Version) -> Iterator[StartProblem]:
    seen: set[str] = set()
    for at, each in objects(profile, "pluginConfig"):
        name, where = str(each.get("name") or ""), f"{place}.pluginConfig[{at}]"
        if name in seen:
            yield StartProblem(f"{where}.name", name, "has a configuration already")
        seen.add(name)
        if _is_removed(name, version):
            yield StartProblem(f"{where}.name", name, f"is not allowed in {version.form}")
        arguments = each.get("args")
        # Without a published type nothing has checked that of each value.
        if isinstance(arguments, Mapping) and f"{name}Args" in types_of(version.form, version.minor):
            yield from problems_of_arguments(name, arguments, f"{where}.args", version)


def _extenders(document: Object) -> Iterator[StartProblem]:
    binder: str | None = None
    owners: dict[str, str] = {}
    for at, entry in objects(document, "extenders"):
        place = f"extenders[{at}]"
        if entry.get("prioritizeVerb") and number(entry, "weight", 0) <= 0:
            yield StartProblem(f"{place}.weight", entry.get("weight", 0), "must be at least 1 with a prioritizeVerb")
        if entry.get("bindVerb"):
            if binder is not None:
                reason = f"{binder} has a bindVerb already: only one extender can bind"
                yield StartProblem(f"{place}.bindVerb", entry["bindVerb"], reason)
            binder = place
        for index, resource in objects(entry, "managedResources"):
            name, where = str(resource.get("name") or ""), f"{place}.managedResources[{index}].name"
            if not is_extended_resource(name):
                yield StartProblem(where, name, "is no extended resource")
            elif name in owners:
                yield StartProblem(where, name, f"{owners[name]} has this resource already")
            owners[name] = place


def is_extended_resource(name: str) -> bool:
    """Whether an extender may manage a resource of this name."""
    domain, slash, _ = name.partition("/")
    return bool(slash) and is_label_key(name) and "kubernetes.io" not in domain and not name.startswith("requests.")
