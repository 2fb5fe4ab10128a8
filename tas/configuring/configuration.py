"""A KubeSchedulerConfiguration in which each extender occurs once.

The rules of kube-scheduler for entries are facts.md c6 to c10.
"""

from collections.abc import Iterator, Mapping, Sequence

from tas.configuring.decoding import list_at, mapping_at, objects
from tas.configuring.extenders import (
    DEFAULT_WEIGHT,
    TELEMETRY_RESOURCE,
    Object,
    is_api_proxy,
    service_of,
)
from tas.configuring.published import NEWEST
from tas.configuring.validating import problems
from tas.configuring.versions import EMPTY_NODES, GROUP, api_version, reads
from tas.errors import InvalidInputError

KIND = "KubeSchedulerConfiguration"
_OLD_SERVICES = {("tas-service", "default"): "telemetry-aware-scheduling/tas-service"}
"""The Service of the original's file for TAS and GAS, and where the Service is in its guides and ours."""
SUBJECT = "scheduler configuration"

MAX_EXTENDERS = 200
"""The scheduler asks one after the other for each pod; here each is compared with all before."""


def with_extenders(
    document: object,
    minor: int,
    entries: Sequence[Object],
    kubeconfig: str | None,
    allowed: frozenset[str] = frozenset(),
) -> tuple[Object, list[str]]:
    """A scheduler configuration in which each extender occurs once, and notices for people.

    `entries` are added to the `document` so far, if there is one, or updated in place: all others and all fields stay.
    `kubeconfig` is used if the configuration names none, and `allowed` are plugins beside those of a stock scheduler.
    Raises InvalidInputError if the document is no configuration, or the scheduler would refuse the result.
    """
    preferred = api_version(minor)
    old = {"apiVersion": preferred, "kind": KIND} if document is None else _checked_kind(document)
    new = dict(old)
    notices: list[str] = []
    if not reads(minor, old["apiVersion"]):
        if str(old["apiVersion"]).startswith(f"{GROUP}/v1alpha"):
            raise InvalidInputError(SUBJECT, "apiVersion", old["apiVersion"], "cannot be converted: has other fields")
        notices.append(
            f"apiVersion {old['apiVersion']} is not read by kube-scheduler 1.{minor}: {preferred} is written"
        )
        new["apiVersion"] = preferred
    if kubeconfig is not None:
        connection = mapping_at(SUBJECT, new.get("clientConnection"), "clientConnection", optional=True)
        if not connection.get("kubeconfig"):
            new["clientConnection"] = {"kubeconfig": kubeconfig} | {
                key: value for key, value in connection.items() if key != "kubeconfig"
            }
    joined = entries_of(new)
    for entry in entries:
        joined = _joined(joined, entry)
    if joined:
        new["extenders"] = joined
    notices += _checked(new, minor, allowed)
    return new, notices


def with_version(template: object, minor: int) -> tuple[object, list[str]]:
    """A template with the `apiVersion` that the scheduler needs, if the template has none; and notices for people."""
    if not isinstance(template, dict) or template.get("apiVersion") or template.get("kind", KIND) != KIND:
        return template, []
    preferred = api_version(minor)
    # In this order for people who read the file.
    return {"apiVersion": preferred, "kind": KIND} | template | {"apiVersion": preferred}, [
        f"-f: has no apiVersion: {preferred}, which kube-scheduler 1.{minor} reads"
    ]


def of_template(document: object) -> tuple[list[Object], list[str]]:
    """What a template adds to a configuration that exists: its extenders; and notices for people.

    Raises InvalidInputError.
    """
    template = _checked_kind(document)
    ignored = sorted(template.keys() - {"apiVersion", "kind", "clientConnection", "extenders"})
    notices = [f"-f: only its extenders are taken, not {', '.join(ignored)}: for these give --replace"]
    return entries_of(template), notices if ignored else []


def plugins_of(document: Object) -> frozenset[str]:
    """The names of all plugins that a configuration enables, at whatever extension point."""
    return frozenset(
        str(each.get("name"))
        for _, profile in objects(document, "profiles")
        for plugin_set in _values(profile.get("plugins"))
        if isinstance(plugin_set, dict)
        for _, each in objects(plugin_set, "enabled")
    )


def _values(value: object) -> list[object]:
    return list(value.values()) if isinstance(value, dict) else []


def entries_of(document: Object) -> list[Object]:
    """The entries of `extenders`. Raises InvalidInputError."""
    entries = list_at(SUBJECT, document.get("extenders"), "extenders")
    if len(entries) > MAX_EXTENDERS:
        raise InvalidInputError(SUBJECT, "extenders", f"{len(entries)} entries", f"must be at most {MAX_EXTENDERS}")
    return [mapping_at(SUBJECT, entry, f"extenders[{at}]") for at, entry in enumerate(entries)]


def _joined(entries: list[Object], ours: Object) -> list[Object]:
    # The resource identifies the extender; an entry for all pods is identified by its URL and its agent, if it has one.
    same = [at for at, entry in enumerate(entries) if set(_resources(entry)) & set(_resources(ours))]
    same = same or [at for at, entry in enumerate(entries) if _is_same_extender(entry, ours)]
    if not same:
        return [*entries, ours]
    if len(same) > 1:
        reason = f"extenders[{same[0]}] is an entry for this extender, too"
        raise InvalidInputError(SUBJECT, f"extenders[{same[1]}]", ours.get("urlPrefix"), reason)
    before = entries[same[0]]
    # Fields of others stay, except certificates, which belong to the URL, and verbs that the agent has no longer.
    gone = {"tlsConfig", *(("filterVerb", "prioritizeVerb") if _agent_of(ours) else ())}
    after = {key: value for key, value in before.items() if key not in gone or key in ours} | ours
    return [*entries[: same[0]], after, *entries[same[0] + 1 :]]


def _is_same_extender(entry: Object, ours: Object) -> bool:
    return entry.get("urlPrefix") == ours.get("urlPrefix") and _agent_of(entry) == _agent_of(ours)


def _agent_of(entry: Object) -> str:
    """The agent of an entry: the last part of `predicates/<name>` and `priorities/<name>`; else empty."""
    verbs = (str(entry.get(field) or "").rpartition("/") for field in ("filterVerb", "prioritizeVerb"))
    return next((name for path, _, name in verbs if path in ("predicates", "priorities")), "")


def _checked(document: Object, minor: int, allowed: frozenset[str]) -> list[str]:
    """Notices; raises InvalidInputError for the first field with which kube-scheduler would not start."""
    notices = []
    for problem in problems(document, minor, allowed):
        if not problem.unknown or minor <= NEWEST:
            raise InvalidInputError(SUBJECT, problem.place, problem.value, problem.reason)
        notices.append(f"{problem.place}: not known here of 1.{minor}, newer than 1.{NEWEST}: try the file first")
    for at, entry in enumerate(entries_of(document)):
        _check_texts(entry, f"extenders[{at}]")
        notices += [f"extenders[{at}] {each}" for each in _doubts(entry, minor)]
    return notices


def _check_texts(entry: Object, place: str) -> None:
    """An address that no client can use: Go takes it, and each call fails."""
    for field in ("urlPrefix", "filterVerb", "preemptVerb", "prioritizeVerb", "bindVerb"):
        text = str(entry.get(field) or "")
        if not text.isprintable() or " " in text:
            raise InvalidInputError(SUBJECT, f"{place}.{field}", text, "must be a text without spaces and line ends")


def _doubts(entry: Object, minor: int) -> Iterator[str]:
    """What is doubtful about an entry with which the scheduler starts."""
    tls, url = mapping_at(SUBJECT, entry.get("tlsConfig"), "tlsConfig", optional=True), str(entry.get("urlPrefix", ""))
    if entry.get("enableHTTPS") and not (tls.get("caFile") or tls.get("caData")):
        yield "has no caFile: the scheduler accepts any server there"
    weight = entry.get("weight")
    if TELEMETRY_RESOURCE in _resources(entry) and isinstance(weight, int) and weight < DEFAULT_WEIGHT:
        points = "the scheduler's own plugins have 1200 in all (docs/start/scheduler.md#which-weight)"
        yield f"has weight {weight}: one step of a score is {10 * weight} points, and {points}"
    if entry.get("bindVerb") and entry.get("ignorable"):
        yield "has ignorable: true beside bindVerb: the scheduler itself binds a pod that bind has refused"
    if entry.get("filterVerb") and not entry.get("nodeCacheCapable") and minor >= EMPTY_NODES:
        scores = f"from 1.{EMPTY_NODES} on the scheduler's own scores for resources see every node as empty"
        yield f"has nodeCacheCapable: false: {scores}. All extenders of this product take true"
    if is_api_proxy(url):
        yield f"has the urlPrefix {url}, a proxy of an API server: no client certificate passes it"
    if (service := service_of(url)) in _OLD_SERVICES:
        assert service is not None
        yield f"has the Service {'/'.join(reversed(service))}; that of deploy/ is {_OLD_SERVICES[service]}"


def _checked_kind(document: object) -> Object:
    if not isinstance(document, dict):
        raise InvalidInputError(SUBJECT, "kind", document, f"must be a {KIND}")
    if document.get("kind") != KIND or not str(document.get("apiVersion")).startswith(f"{GROUP}/"):
        found = f"{document.get('apiVersion')}, {document.get('kind')}"
        raise InvalidInputError(SUBJECT, "kind", found, f"must be a {KIND} of {GROUP}")
    return document


def _resources(entry: Mapping[str, object]) -> Iterator[str]:
    managed = entry.get("managedResources") or []
    for resource in managed if isinstance(managed, list) else []:
        if isinstance(resource, dict) and isinstance(resource.get("name"), str):
            yield resource["name"]
