"""A KubeSchedulerConfiguration in which each extender occurs once.

The rules of kube-scheduler for entries are facts.md c6 to c10.
"""

from collections.abc import Iterator, Mapping, Sequence

from tas.configuring.extenders import Object
from tas.configuring.versions import GROUP, api_version, reads
from tas.errors import InvalidInputError
from tas.values.names import is_label_key

KIND = "KubeSchedulerConfiguration"
SUBJECT = "scheduler configuration"

MAX_INT64 = 2**63 - 1
"""The largest weight that a scheduler can read."""


def with_extenders(
    document: object, minor: int, entries: Sequence[Object], kubeconfig: str | None
) -> tuple[Object, list[str]]:
    """A scheduler configuration in which each extender occurs once, and notices for people.

    Args:
        document: The configuration so far, as in JSON; None: there is none.
        minor: The minor version of the scheduler.
        entries: Entries of `extenders`, added or updated in place. All other entries and fields stay.
        kubeconfig: The credentials of the scheduler, if the configuration names none.

    Raises:
        InvalidInputError: if the document is no configuration, or the scheduler would refuse the result.
    """
    preferred = api_version(minor)
    old = {"apiVersion": preferred, "kind": KIND} if document is None else _checked_kind(document)
    new = dict(old)
    notices: list[str] = []
    if not reads(minor, old["apiVersion"]):
        if str(old["apiVersion"]).startswith(f"{GROUP}/v1alpha"):
            raise InvalidInputError(SUBJECT, "apiVersion", old["apiVersion"], "cannot be converted: has other fields")
        notices.append(f"apiVersion {old['apiVersion']} is not read by kube-scheduler 1.{minor}: {preferred}")
        new["apiVersion"] = preferred
    if kubeconfig is not None:
        connection = _mapping(new, "clientConnection")
        if not connection.get("kubeconfig"):
            new["clientConnection"] = {"kubeconfig": kubeconfig} | {
                key: value for key, value in connection.items() if key != "kubeconfig"
            }
    joined = entries_of(new)
    for entry in entries:
        joined = _joined(joined, entry)
    if joined:
        new["extenders"] = joined
    notices += _check(new)
    return new, notices


def of_template(document: object) -> tuple[list[Object], list[str]]:
    """What a template adds to a configuration that exists: its extenders; and notices for people.

    Raises InvalidInputError.
    """
    template = _checked_kind(document)
    ignored = sorted(template.keys() - {"apiVersion", "kind", "clientConnection", "extenders"})
    notices = [f"-f: only its extenders are taken, not {', '.join(ignored)}: for these give --replace"]
    return entries_of(template), notices if ignored else []


def entries_of(document: Object) -> list[Object]:
    """The entries of `extenders`. Raises InvalidInputError."""
    return [_as_object(entry, f"extenders[{at}]") for at, entry in enumerate(_list(document, "extenders"))]


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


def _check(document: Object) -> list[str]:
    """Notices; raises InvalidInputError for what kube-scheduler refuses."""
    version = str(document["apiVersion"]).rpartition("/")[2]
    for field in ("healthzBindAddress", "metricsBindAddress"):
        if field in document and version in ("v1", "v1beta3"):
            raise InvalidInputError(SUBJECT, field, document[field], f"does not exist in {version}: delete it")
    notices: list[str] = []
    binder: str | None = None
    owners: dict[str, str] = {}
    for at, value in enumerate(_list(document, "extenders")):
        place = f"extenders[{at}]"
        entry = _as_object(value, place)
        _check_entry(entry, place)
        if entry.get("bindVerb"):
            if binder is not None:
                reason = f"{binder} has a bindVerb already: only one extender can bind"
                raise InvalidInputError(SUBJECT, f"{place}.bindVerb", entry["bindVerb"], reason)
            binder = place
        for name in _resources(entry):
            if owners.setdefault(name, place) != place:
                reason = f"{owners[name]} has this resource already"
                raise InvalidInputError(SUBJECT, f"{place}.managedResources", name, reason)
        tls = _as_object(entry.get("tlsConfig") or {}, f"{place}.tlsConfig")
        if entry.get("enableHTTPS") and not (tls.get("caFile") or tls.get("caData")):
            notices.append(f"{place} has no caFile: the scheduler accepts any server there")
    return notices


def _check_entry(entry: Object, place: str) -> None:
    if "enableHttps" in entry:
        raise InvalidInputError(SUBJECT, f"{place}.enableHttps", entry["enableHttps"], "is spelled enableHTTPS")
    for field in ("urlPrefix", "filterVerb", "preemptVerb", "prioritizeVerb", "bindVerb"):
        text = entry.get(field, "")
        if not isinstance(text, str) or not text.isprintable() or " " in text:
            raise InvalidInputError(SUBJECT, f"{place}.{field}", text, "must be a text without spaces and line ends")
    weight = entry.get("weight", 0)
    if not isinstance(weight, int) or abs(weight) > MAX_INT64:
        raise InvalidInputError(SUBJECT, f"{place}.weight", weight, f"must be an integer up to {MAX_INT64}")
    if entry.get("prioritizeVerb") and weight < 1:
        raise InvalidInputError(SUBJECT, f"{place}.weight", weight, "must be at least 1 with a prioritizeVerb")
    for name in _resources(entry):
        if not _is_extended_resource(name):
            raise InvalidInputError(SUBJECT, f"{place}.managedResources", name, "is no extended resource")


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


def _is_extended_resource(name: str) -> bool:
    domain, slash, _ = name.partition("/")
    return bool(slash) and is_label_key(name) and "kubernetes.io" not in domain and not name.startswith("requests.")


def _mapping(parent: Object, key: str) -> Object:
    value = parent.get(key)
    return {} if value is None else _as_object(value, key)


def _list(parent: Object, key: str) -> list[object]:
    value = parent.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidInputError(SUBJECT, key, value, "must be a list")
    return value


def _as_object(value: object, place: str) -> Object:
    if not isinstance(value, dict):
        raise InvalidInputError(SUBJECT, place, value, "must be a mapping")
    return value
