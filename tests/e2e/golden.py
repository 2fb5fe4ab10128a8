"""The scheduler's requests as files, without what differs between runs.

A live request must have exactly the fields of its file. `TAS_E2E_RECORD=1` writes the files instead.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent.parent / "contract" / "golden" / "extender"
RECORD = os.environ.get("TAS_E2E_RECORD", "") not in {"", "0"}

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_ACCOUNT_VOLUME = re.compile(r"^kube-api-access-\w{5}$")  # the admission plugin gives it a random name
_FIXED_TIME = "2026-01-01T00:00:00Z"
_FIXED_UID = "00000000-0000-0000-0000-{:012d}"


class ShapeError(AssertionError):
    """A live request does not have the fields of the golden one."""


def check(name: str, request: dict[str, Any]) -> None:
    """Compares the fields of a request with those of the golden file, or writes the file first if recording.

    Raises:
        ShapeError: With the paths that only one of the two has.
    """
    path = GOLDEN / f"{name}.json"
    if RECORD:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(normalised(request), indent=1) + "\n")
    golden = shape(json.loads(path.read_text()))
    live = shape(request)
    if golden != live:
        raise ShapeError(
            f"{path.name}: only in the request: {sorted(live - golden)}; only in the file: {sorted(golden - live)}; "
            "if schedulers now send this, record again with TAS_E2E_RECORD=1"
        )


def shape(value: object, at: str = "") -> set[str]:
    """The paths of all values with the JSON type found there: `Pod.metadata.name:str`, `Nodes.items[].status:dict`.

    The items of an array share one path.
    """
    paths = {f"{at}:{type(value).__name__}"}
    if isinstance(value, dict):
        for key, inner in value.items():
            paths |= shape(inner, f"{at}.{key}" if at else key)
    elif isinstance(value, list):
        for inner in value:
            paths |= shape(inner, f"{at}[]")
    return paths


def normalised(request: dict[str, Any]) -> dict[str, Any]:
    """The request with fixed values for all that differs between runs, and nodes in the order of their names.

    Keys keep their order. Equal uids stay equal.
    """
    uids: dict[str, str] = {}

    def fixed(value: object, key: str = "") -> object:
        match value:
            case dict():
                return {name: fixed(inner, name) for name, inner in value.items()}
            case list():
                return [fixed(inner, key) for inner in value]
            case str() if key.lower() == "uid":
                return uids.setdefault(value, _FIXED_UID.format(len(uids) + 1))
            case str():
                return _fixed_text(value, key)
            case _:
                return value

    ordered = dict(request)
    if ordered.get("NodeNames") is not None:
        ordered["NodeNames"] = sorted(ordered["NodeNames"])
    if ordered.get("Nodes") is not None:
        items = sorted(ordered["Nodes"]["items"], key=lambda node: str(node["metadata"]["name"]))
        ordered["Nodes"] = ordered["Nodes"] | {"items": items}
    result = fixed(ordered)
    assert isinstance(result, dict)
    return result


def _fixed_text(value: str, key: str) -> str:
    if key == "resourceVersion":
        return "1"
    if _TIME.fullmatch(value):
        return _FIXED_TIME
    return _ACCOUNT_VOLUME.sub("kube-api-access-00000", value)
