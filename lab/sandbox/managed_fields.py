"""The field managers of fields: `metadata.managedFields`, for writers that patch (operation `Update`).

A field belongs to the manager that last changed its value. A list counts as one field. The entries `.` for the creator
of a map are omitted, since the product only reads who set a label.
"""

from typing import Any

from lab.sandbox.resources import Object

Path = tuple[str, ...]


def managed_fields(old: Object, new: Object, *, manager: str, api_version: str, time: str, status: bool) -> list[Any]:
    """The entries after `manager` made `new` out of `old`.

    On creation `old` is only an empty metadata. `status`: whether the write used the subresource `status`.
    """
    before, after = _leaves(old), _leaves(new)
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    entries: list[Any] = []
    own: set[Path] = set(changed)
    for entry in old["metadata"].get("managedFields", []):
        paths = set(_paths(entry["fieldsV1"])) & after.keys()
        if entry["manager"] == manager and (entry.get("subresource") == "status") == status:
            own |= paths
        elif remaining := paths - changed:
            entries.append(entry | {"fieldsV1": _tree(remaining)})
    if own:
        entry = {"manager": manager, "operation": "Update", "apiVersion": api_version, "time": time}
        entries.append(
            entry | {"fieldsType": "FieldsV1", "fieldsV1": _tree(own)} | ({"subresource": "status"} if status else {})
        )
    return entries


def _leaves(value: Object) -> dict[Path, Any]:
    leaves: dict[Path, Any] = {}
    for key, part in value.items():
        if key == "metadata":
            _collect({name: part[name] for name in ("labels", "annotations") if name in part}, ("f:metadata",), leaves)
        else:
            _collect(part, (f"f:{key}",), leaves)
    return leaves


def _collect(value: Any, path: Path, leaves: dict[Path, Any]) -> None:
    if isinstance(value, dict) and value:
        for key, part in value.items():
            _collect(part, (*path, f"f:{key}"), leaves)
    elif value != {} or len(path) > 1:
        leaves[path] = value


def _paths(tree: Object, path: Path = ()) -> list[Path]:
    if not tree:
        return [path]
    return [leaf for key, branch in tree.items() for leaf in _paths(branch, (*path, key))]


def _tree(paths: set[Path]) -> Object:
    tree: Object = {}
    for path in sorted(paths):
        branch = tree
        for key in path:
            branch = branch.setdefault(key, {})
    return tree
