"""The discovery documents: versions, groups and resources."""

from collections.abc import Collection
from typing import Any

from lab.sandbox.resources import SCALE, Object, Resource

VERBS = ("create", "delete", "get", "list", "patch", "watch")

VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.0+sandbox", "platform": "linux/amd64"}


def discover(path: str, resources: Collection[Resource], *, further_groups: Collection[Object] = ()) -> Object | None:
    """The discovery document at a path for `resources`; None if the path has none.

    `further_groups` are served elsewhere. Clients that prefer aggregated discovery accept these separate documents.
    """
    if path == "/version":
        return dict(VERSION)
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    groups = {resource.group: resource for resource in resources if resource.group}
    if path == "/apis":
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [*map(_group, groups.values()), *further_groups]}
    for group, resource in groups.items():
        if path == f"/apis/{group}":
            return {"kind": "APIGroup", "apiVersion": "v1"} | _group(resource)
    members = [resource for resource in resources if path == root(resource)]
    if not members:
        return None
    listed = [entry for resource in members for entry in _entries(resource)]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": members[0].group_version,
        "resources": listed,
    }


def root(resource: Resource) -> str:
    """The path of the resource's group and version."""
    return f"/apis/{resource.group_version}" if resource.group else f"/api/{resource.version}"


def _group(resource: Resource) -> Object:
    version = {"groupVersion": resource.group_version, "version": resource.version}
    return {"name": resource.group, "versions": [version], "preferredVersion": version}


def _entries(resource: Resource) -> list[Object]:
    entry: dict[str, Any] = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.is_namespaced,
        "kind": resource.kind,
        "verbs": list(VERBS),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    below = entry | {"singularName": ""}
    entries = [entry]
    if resource.has_status:
        entries.append(below | {"name": f"{resource.plural}/status", "verbs": ["get", "patch"]})
    for name, (group, version, kind) in resource.further_subresources.items():
        verbs = ["get", "patch"] if name == SCALE else ["create"]
        further = {"name": f"{resource.plural}/{name}", "kind": kind, "verbs": verbs}
        entries.append(below | further | ({"group": group, "version": version} if group else {}))
    return entries
