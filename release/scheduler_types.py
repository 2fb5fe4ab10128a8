"""Writes `tas/configuring/published.py`: what each version of kube-scheduler reads, from the published Go types.

`python release/scheduler_types.py` downloads the Go modules of each minor version once, about 5 GB, with
`go mod download`.
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

OLDEST, NEWEST = 19, 37
PATCH = {27: 4}
"""The patch version that is read where it is not 0: some modules were not published as 1.27.0."""

FORMS = ("v1beta1", "v1beta2", "v1beta3", "v1")
TARGET = Path(__file__).parents[1] / "tas" / "configuring" / "published.py"

FROM_CORE = (
    "NodeAffinity",
    "NodeSelector",
    "NodeSelectorTerm",
    "NodeSelectorRequirement",
    "PreferredSchedulingTerm",
    "TopologySpreadConstraint",
)
FROM_META = ("LabelSelector", "LabelSelectorRequirement")
FROM_COMPONENT = ("LeaderElectionConfiguration", "ClientConnectionConfiguration", "DebuggingConfiguration")

BASE = {"[]byte": "bytes", "metav1.Duration": "duration", "runtime.RawExtension": "any", "v1.Duration": "duration"}
SIMPLE = ("string", "bool", "int32", "int64", "float32", "float64")

_STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_ALIAS = re.compile(r"^type (\w+) (string|int32|int64|bool)$", re.MULTILINE)
_FIELD = re.compile(r'^\s*(?:(\w+)\s+)?([\w.*\[\]]+)\s+`[^`]*json:"([^"]*)"[^`]*`', re.MULTILINE)
_METHOD = re.compile(r"^func \(\w+ \*?(\w+)\) (\w+)\(", re.MULTILINE)
_NAMED = re.compile(r"^func \(\w* ?\*?(\w+)\) Name\(\) string \{\s*return ([\w.]+)", re.MULTILINE)
_CONSTANT = re.compile(r"^\s*(?:const )?(\w*Name)\s+=\s+(?:names\.(\w+)|\"(\w+)\")", re.MULTILINE)

METHODS = {
    "PreEnqueue": "preEnqueue",
    "Less": "queueSort",
    "PreFilter": "preFilter",
    "Filter": "filter",
    "PostFilter": "postFilter",
    "PreScore": "preScore",
    "Score": "score",
    "Reserve": "reserve",
    "Permit": "permit",
    "PreBind": "preBind",
    "Bind": "bind",
    "PostBind": "postBind",
    "GeneratePlacements": "placementGenerate",
    "ScorePlacement": "placementScore",
}
"""The extension point of each method that a plugin has for it."""

HEADER = '''"""What each version of kube-scheduler reads: written by `python release/scheduler_types.py`, not by hand.

`FIELDS` has the types, and for each field its kind, the minor versions that know it, and the forms of the configuration
that have it, if others of these versions do not: `[Kind]` is a list, `{kind}` a mapping of strings. `POINTS` has for
each plugin of a stock scheduler the extension points and the minor versions in which it has them, and under "" those of
the plugin itself. A range without an end goes on in `NEWEST`.
"""
'''


def module(name: str, minor: int) -> Path:
    """The folder of a Go module of Kubernetes, downloaded if it is missing."""
    version = f"v{1 if name == 'kubernetes' else 0}.{minor}.{PATCH.get(minor, 0)}"
    command = ["go", "mod", "download", "-json", f"k8s.io/{name}@{version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    return Path(json.loads(done.stdout)["Dir"])


def structs(files: Iterator[Path]) -> tuple[dict[str, str], dict[str, str]]:
    """The bodies of the structs of Go files, and the types that are others by another name."""
    text = "\n".join(re.sub(r"^\s*//.*$", "", file.read_text(), flags=re.MULTILINE) for file in files)
    return dict(_STRUCT.findall(text)), dict(_ALIAS.findall(text))


def kind_of(go: str, aliases: dict[str, str]) -> str:
    """The kind of a Go type, as in `FIELDS`."""
    go = go.lstrip("*")
    if go in BASE:
        return BASE[go]
    if go.startswith("[]"):
        return f"[{kind_of(go[2:], aliases)}]"
    if go.startswith("map[string]"):
        return "{" + kind_of(go.removeprefix("map[string]"), aliases) + "}"
    name = go.rpartition(".")[2]
    return aliases.get(name, name)


def fields(name: str, bodies: dict[str, str], aliases: dict[str, str]) -> dict[str, str]:
    """The kind of each field of a struct by its name in JSON, with those of structs that are inlined."""
    found: dict[str, str] = {}
    for go_name, go, tag in _FIELD.findall(bodies[name]):
        key = tag.partition(",")[0]
        if go == "metav1.TypeMeta":
            found |= {"apiVersion": "string", "kind": "string"}
        elif not go_name and not key:  # encoding/json knows no option `inline`: an empty name is enough
            found |= fields(go.rpartition(".")[2], bodies, aliases)
        elif not key:
            sys.exit(f"{name}.{go_name} has no name in JSON")
        else:
            found[key] = kind_of(go, aliases)
    return found


def types(minor: int, form: str) -> dict[str, dict[str, str]]:
    """Each type of a form, as a scheduler of this minor version has it; empty: there is no such form."""
    folder = module("kube-scheduler", minor) / "config" / form
    if not folder.is_dir():
        return {}
    others = module("api", minor) / "core/v1/types.go"
    meta = module("apimachinery", minor) / "pkg/apis/meta/v1/types.go"
    component = module("component-base", minor) / "config/v1alpha1/types.go"
    core, core_aliases = structs(iter([others]))
    metas, meta_aliases = structs(iter([meta]))
    components, component_aliases = structs(iter([component]))
    # Up to 1.22 the forms share types of the extenders with Policy, which has other types of the same names, too.
    shared = folder.parent / "v1"
    own, aliases = structs(iter([*(shared.glob("types.go") if minor <= 22 else ()), *folder.glob("types*.go")]))
    if "KubeSchedulerConfiguration" not in own:
        return {}
    bodies = {**{name: core[name] for name in FROM_CORE}, **{name: metas[name] for name in FROM_META}}
    bodies |= {name: components[name] for name in FROM_COMPONENT if name in components} | own
    aliases = core_aliases | meta_aliases | component_aliases | aliases
    wanted, found = ["KubeSchedulerConfiguration", *(name for name in own if name.endswith("Args"))], {}
    while wanted:
        name = wanted.pop()
        if name not in found:
            found[name] = fields(name, bodies, aliases)
            kinds = (re.sub(r"[\[\]{}]", "", kind) for kind in found[name].values())
            wanted += [kind for kind in kinds if kind not in (*SIMPLE, "duration", "any", "bytes")]
    return found


def points(minor: int) -> dict[str, set[str]]:
    """The extension points of each plugin that a stock scheduler of this minor version has, also by a feature gate."""
    folder = module("kubernetes", minor) / "pkg/scheduler/framework/plugins"
    registered = set(re.findall(r"\b(\w+\.\w*Name)\b", (folder / "registry.go").read_text()))
    names_file = folder / "names/names.go"
    names = dict(re.findall(r"(\w+)\s+=\s+\"(\w+)\"", names_file.read_text())) if names_file.exists() else {}
    found: dict[str, set[str]] = {}
    for package in sorted({each.parent for each in folder.glob("*/*.go")}):
        texts = [each.read_text() for each in package.glob("*.go") if not each.name.endswith("_test.go")]
        constants = {
            constant: names.get(by_name, plain)
            for text in texts
            for constant, by_name, plain in _CONSTANT.findall(text)
        }
        ours = {name for constant, name in constants.items() if f"{package.name}.{constant}" in registered}
        methods: defaultdict[str, set[str]] = defaultdict(set)
        for struct, method in (each for text in texts for each in _METHOD.findall(text)):
            methods[struct] |= {METHODS[method]} if method in METHODS else set()
        for text in texts:
            own = {name for constant, _, _ in _CONSTANT.findall(text) if (name := constants[constant]) in ours}
            for struct, constant in _NAMED.findall(text):
                # The plugins for volumes of clouds are one type with the name in a field.
                for name in {constants[constant]} & ours if constant in constants else own:
                    found.setdefault(name, set()).update(methods[struct])
        for name in ours - found.keys():
            sys.exit(f"1.{minor}: {package.name} has no method Name for {name}")
    return found


def ranges(minors: list[int], known: list[int]) -> str:
    """The first and the last minor version, `22-27`; `25-` goes on. Exits if one in between is missing."""
    first, last = min(minors), max(minors)
    if [each for each in known if first <= each <= last] != sorted(minors):
        sys.exit(f"not one range: {minors}")
    return f"{first}-" if last == NEWEST else f"{first}-{last}"


def versions(known: set[tuple[str, int]], read: set[tuple[str, int]]) -> str:
    """The range of minor versions, and the forms if not all of these versions have it. Exits if that does not tell."""
    minors, forms = sorted({minor for _, minor in known}), {form for form, _ in known}
    span = ranges(minors, sorted({minor for _, minor in read}))
    of_all = {each for each in read if each[1] in minors}
    if known == of_all:
        return span
    if known != {each for each in of_all if each[0] in forms}:
        sys.exit(f"not the same in all minor versions: {sorted(known)}")
    return f"{span} {' '.join(sorted(forms))}"


def main() -> None:
    """Writes the module."""
    minors = list(range(OLDEST, NEWEST + 1))
    read = {(form, minor): each for form in FORMS for minor in minors if (each := types(minor, form))}
    kinds: defaultdict[tuple[str, str], defaultdict[str, set[tuple[str, int]]]] = defaultdict(lambda: defaultdict(set))
    for version, each in read.items():
        for name, found in each.items():
            for field, kind in found.items():
                kinds[name, field][kind].add(version)
    published: dict[str, dict[str, str]] = {}
    for (name, field), by_kind in sorted(kinds.items()):
        if len(by_kind) > 1:
            sys.exit(f"{name}.{field} has several kinds: {dict(by_kind)}")
        ((kind, known),) = by_kind.items()
        published.setdefault(name, {})[field] = f"{kind} {versions(known, set(read))}"
    plugins: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for minor in minors:
        for name, points_of in points(minor).items():
            plugins[name][""].append(minor)
            for point in points_of:
                plugins[name][point].append(minor)
    table = {
        name: {point: ranges(known, minors) for point, known in sorted(by_point.items())}
        for name, by_point in sorted(plugins.items())
    }
    TARGET.write_text(f"{HEADER}\nNEWEST = {NEWEST}\n\nFIELDS = {published!r}\n\nPOINTS = {table!r}\n")
    subprocess.run(["ruff", "format", "--quiet", str(TARGET)], check=True)  # noqa: S603, S607


if __name__ == "__main__":
    main()
