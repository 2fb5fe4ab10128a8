"""The manifest of a kube-scheduler that the kubelet runs as a static pod."""

import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tas.configuring.decoding import list_at, mapping_at
from tas.configuring.extenders import Object
from tas.configuring.policy_configmap import POLICY_NAME, POLICY_NAMESPACE
from tas.errors import InvalidInputError

SUBJECT = "manifest"
PROGRAM = "kube-scheduler"
CERTIFICATES = "/host/certs"
"""Where the certificates are in the container, as in the original."""

DIGEST = "telemetry.aware.scheduling/configuration"
"""The annotation with a digest of the scheduler's files: the kubelet restarts the pod when the digest changes."""

CONFIG_VOLUME = "tas-scheduler-config"
CERTIFICATES_VOLUME = "tas-certs"
DNS_POLICY = "ClusterFirstWithHostNet"  # facts.md c46

HIDES = (
    "is a mount in the folder of the certificates, and hides ours (from the original's Cluster API guide?): remove it"
)
"""Why a mount inside of the folder of certificates is refused."""

CLOSED = "is a read-only mount in which tas configure mounts its files: remove it, or mount it in another folder"
"""Why a read-only mount around one of ours is refused."""

_ORIGINALS = {"schedulerconfig", "certdir"}
_LAST_MINOR = {"algorithm-provider": 21}  # facts.md c44
_CONFIG = ("config",)
_POLICY = ("policy-configmap", "policy-configmap-namespace", "policy-config-file", "use-legacy-policy-config")
_SHELLS = {"sh", "ash", "bash", "dash", "ksh", "zsh", "busybox"}
_VARIABLE = re.compile(r"\$\([^()]*\)")
"""A word that the kubelet replaces by a variable of the container."""
_SWITCHES = ("use-legacy-policy-config",)
"""Flags without a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How the pod is to be.

    Attributes:
        config: The file of the configuration; None: the scheduler reads a Policy from a ConfigMap.
        certificates: The folder with the certificates; None: there are none.
        cluster_dns: Whether the scheduler needs the DNS of the cluster.
        digest: Of the contents of all files.
    """

    minor: int
    config: str | None
    certificates: str | None
    cluster_dns: bool
    digest: str


class _Word(NamedTuple):
    """A word of the scheduler's command line; `field` is `command` or `args`."""

    field: str
    text: str


class Scheduler:
    """The scheduler in a pod, as in JSON. Raises InvalidInputError, also its methods, for what is no such pod."""

    def __init__(self, pod: object) -> None:
        root = mapping_at(SUBJECT, pod, "manifest")
        if root.get("kind") != "Pod":
            raise InvalidInputError(SUBJECT, "kind", root.get("kind"), "must be Pod")
        self._pod = root
        self._spec = mapping_at(SUBJECT, root.get("spec"), "spec")
        containers = [
            mapping_at(SUBJECT, each, f"spec.containers[{at}]")
            for at, each in enumerate(list_at(SUBJECT, self._spec.get("containers"), "spec.containers"))
        ]
        found = [at for at, each in enumerate(containers) if _is_scheduler(each)]
        if len(found) != 1:
            names = [each.get("name") for each in containers]
            raise InvalidInputError(SUBJECT, "spec.containers", names, f"exactly one must run {PROGRAM}")
        self._at = found[0]
        self._containers = containers
        self._container = containers[self._at]

    @property
    def image(self) -> str:
        """The image of the scheduler."""
        image = self._container.get("image")
        if not isinstance(image, str):
            raise InvalidInputError(SUBJECT, f"{self._place}.image", image, "must be text")
        return image

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of the scheduler that have a value in the pod itself."""
        found: dict[str, str] = {}
        for variable in list_at(SUBJECT, self._container.get("env"), f"{self._place}.env"):
            if isinstance(variable, dict) and isinstance(variable.get("value"), str):
                found[str(variable.get("name"))] = variable["value"]
        return found

    @property
    def user(self) -> int:
        """The number of the user as whom the scheduler runs; 0: root, unless the image says another."""
        contexts = (parent.get("securityContext") for parent in (self._container, self._spec))
        users = (context.get("runAsUser") for context in contexts if isinstance(context, dict))
        return next((user for user in users if isinstance(user, int)), 0)

    @property
    def _place(self) -> str:
        return f"spec.containers[{self._at}]"

    @cached_property
    def _words(self) -> list[_Word]:
        """The words of `command`, then those of `args`: the scheduler reads them as one list."""
        found: list[_Word] = []
        for field in ("command", "args"):
            place = f"{self._place}.{field}"
            words = list_at(SUBJECT, self._container.get(field), place)
            for at, word in enumerate(words):
                if not isinstance(word, str):
                    raise InvalidInputError(SUBJECT, f"{place}[{at}]", word, "must be text")
                found.append(_Word(field, word))
        if not found:
            raise InvalidInputError(SUBJECT, f"{self._place}.command", None, "must have the command of the scheduler")
        self._check_last_is_a_flag(found)
        return found

    def _check_last_is_a_flag(self, words: Sequence[_Word]) -> None:
        """Raises InvalidInputError if an item at the end would be no flag (facts.md c75), or others may be --config."""
        names = ["" if word.text.startswith("-") else posixpath.basename(word.text) for word in words]
        program = names.index(PROGRAM) if PROGRAM in names else -1
        for at, (word, name) in enumerate(zip(words, names, strict=True)):
            field = f"{self._place}.{word.field}"
            is_shell = name in _SHELLS
            parts = word.text.split()
            has_program = any(posixpath.basename(part) == PROGRAM for part in parts) and len(parts) > 1
            if (is_shell and at < max(program, 1)) or has_program or " --" in word.text:
                raise InvalidInputError(SUBJECT, field, word.text, "is a script of a shell: give each flag as an item")
            if word.text == "--" and at > program:
                reason = "ends the flags, so that none can be added after it: remove it"
                raise InvalidInputError(SUBJECT, field, word.text, reason)
            before = words[at - 1].text if at else ""
            is_value = before.startswith("-") and "=" not in before
            if _VARIABLE.fullmatch(word.text) and not is_value:
                reason = "may be any flag, also --config: write the flag itself"
                raise InvalidInputError(SUBJECT, field, word.text, reason)

    def flag(self, name: str) -> str | None:
        """The value of a flag of the scheduler, of the last if it is given twice."""
        value = None
        words = [word.text for word in self._words]
        for at, word in enumerate(words):
            flag, has_value, after = word.partition("=")
            if _flag_of(flag) == name:
                value = after if has_value else (words[at + 1] if at + 1 < len(words) else None)
        return value

    def host_path(self, path: str) -> str | None:
        """The path on the machine of a path in the container; None if it is on no `hostPath`.

        Of mounts inside of each other the innermost counts, of whatever kind its volume is.
        """
        mounts = {str(mount.get("mountPath", "")).rstrip("/"): mount for mount in self._mounts}
        around = [inside for inside in mounts if path == inside or path.startswith(f"{inside}/")]
        if not around:
            return None
        inside = max(around, key=len)
        outside = self._outside(mounts[inside])
        return None if outside is None else outside.rstrip("/") + path[len(inside) :]

    def configured(self, wanted: Wanted) -> tuple[Object, list[str], list[str]]:
        """The pod as wanted, the changes, and notices for people. Without changes, the pod is as before."""
        changes: list[str] = []
        notices: list[str] = []
        words = self._new_words(wanted, changes, notices)
        mounts, volumes = self._new_mounts(wanted, changes, notices)
        container = self._container | words | _if_any("volumeMounts", mounts, self._container)
        containers = [*self._containers]
        containers[self._at] = container
        spec = self._spec | {"containers": containers} | _if_any("volumes", volumes, self._spec)
        if wanted.cluster_dns and spec.get("dnsPolicy") != DNS_POLICY:
            changes.append(f"dnsPolicy {DNS_POLICY}")
            spec["dnsPolicy"] = DNS_POLICY
        pod = self._pod | {"spec": spec}
        metadata = mapping_at(SUBJECT, pod.get("metadata") or {}, "metadata")
        annotations = mapping_at(SUBJECT, metadata.get("annotations") or {}, "metadata.annotations")
        if annotations.get(DIGEST) != wanted.digest:
            changes.append(f"annotation {DIGEST}")
            pod["metadata"] = metadata | {"annotations": annotations | {DIGEST: wanted.digest}}
        return pod, changes, notices

    def _new_words(self, wanted: Wanted, changes: list[str], notices: list[str]) -> Object:
        """`command` and `args`, as far as they are there."""
        words = self._words
        # facts.md c43
        if wanted.config is None and (given := self.flag("config")) is not None:
            raise InvalidInputError(
                SUBJECT, "--config", given, "a scheduler with this flag ignores a Policy: remove the flag"
            )
        gone = {*_CONFIG, *_POLICY, *(name for name, last in _LAST_MINOR.items() if wanted.minor > last)}
        if wanted.config is not None:
            added = [f"--config={wanted.config}"]
        else:
            added = [f"--policy-configmap={POLICY_NAME}", f"--policy-configmap-namespace={POLICY_NAMESPACE}"]
        kept = _without_flags(words, gone, added, notices)
        if (before := self.flag("config")) not in (None, wanted.config):
            notices.append(f"{before} stays, and the scheduler no longer reads it")
        last = words[-1].field
        new = [*kept, *(_Word(last, text) for text in added)]
        if new != words:
            changes.append(f"{last} {' '.join(added)}")
        fields = {word.field for word in words}
        return {field: [word.text for word in new if word.field == field] for field in sorted(fields, reverse=True)}

    def _new_mounts(self, wanted: Wanted, changes: list[str], notices: list[str]) -> tuple[list[Object], list[Object]]:
        mounts, volumes = self._mounts, self._volumes
        self._check_own_volumes()
        formers = self._formers()
        names = formers | {CONFIG_VOLUME, CERTIFICATES_VOLUME}
        mounts = [mount for mount in mounts if mount["name"] not in names]
        volumes = [volume for volume in volumes if volume["name"] not in formers]
        changes += [f"volume {name} of the original is replaced" for name in sorted(formers)]
        ours: list[tuple[str, str, str, str]] = []
        if wanted.config is not None:
            ours.append((CONFIG_VOLUME, wanted.config, wanted.config, "File"))
        if wanted.certificates is not None:
            ours.append((CERTIFICATES_VOLUME, CERTIFICATES, wanted.certificates, "Directory"))
        kept_volumes: dict[str, Object] = {str(each["name"]): each for each in volumes}
        for name in (CONFIG_VOLUME, CERTIFICATES_VOLUME):
            kept_volumes.pop(name, None)
        for name, inside, outside, kind in ours:
            if (already := self._mounted_already(mounts, inside, outside)) is not None:
                notices.append(f"{inside} is mounted already, by the volume {already['name']}")
                continue
            mounts.append({"name": name, "mountPath": inside, "readOnly": True})
            before = self._host_paths.get(name)
            # kubeadm has the folder without the slash at its end.
            path = before if before is not None and is_same(before, outside) else outside
            kept_volumes[name] = {"name": name, "hostPath": {"path": path, "type": kind}}
        new_volumes = list(kept_volumes.values())
        # Our own entries stay where they are, so that a second run changes nothing.
        new_mounts = _in_place(self._mounts, mounts)
        new_volumes = _in_place(self._volumes, new_volumes)
        if new_mounts != self._mounts:
            changes.append(f"{self._place}.volumeMounts")
        if new_volumes != self._volumes:
            changes.append("volumes")
        return new_mounts, new_volumes

    def _mounted_already(self, mounts: Sequence[Object], inside: str, outside: str) -> Object | None:
        """The mount of another that is as ours. Raises InvalidInputError for one with which ours has no effect."""
        field = f"{self._place}.volumeMounts"
        for each in mounts:
            if is_inside(each.get("mountPath"), inside):
                raise InvalidInputError(SUBJECT, field, each["mountPath"], HIDES)
            if is_closed(each, self._outside(each), inside, outside):
                raise InvalidInputError(SUBJECT, field, each["mountPath"], CLOSED)
        same = next((each for each in mounts if is_same(each.get("mountPath"), inside)), None)
        if same is not None and not is_same(self._outside(same), outside):
            raise InvalidInputError(SUBJECT, field, inside, f"the volume {same['name']} is mounted there")
        return same

    def _formers(self) -> set[str]:
        """The volumes that the original made and that only the scheduler mounts."""
        config = self.flag("config")
        found: set[str] = set()
        for mount in self._mounts:
            path = str(mount.get("mountPath"))
            outside = self._outside(mount)
            is_config = mount["name"] == "schedulerconfig" and path == outside == config
            is_certificates = mount["name"] == "certdir" and _clean(path) == CERTIFICATES and outside is not None
            if is_config or is_certificates:
                found.add(str(mount["name"]))
        return (found & _ORIGINALS) - self._shared()

    def _shared(self) -> set[object]:
        """The volumes that other containers mount."""
        others = [*self._containers[: self._at], *self._containers[self._at + 1 :]]
        others += [
            mapping_at(SUBJECT, each, "spec.initContainers")
            for each in list_at(SUBJECT, self._spec.get("initContainers"), "spec")
        ]
        return {mount["name"] for each in others for mount in _named(each, "volumeMounts", "spec.containers")}

    def _check_own_volumes(self) -> None:
        """Raises InvalidInputError if somebody else has a volume with one of our names."""
        reason = "is the name of a volume that tas configure writes, and this one has another use: rename it"
        shared, names = self._shared(), {volume["name"] for volume in self._volumes}
        ours = {CONFIG_VOLUME: _clean(self._host_paths.get(CONFIG_VOLUME)), CERTIFICATES_VOLUME: CERTIFICATES}
        for name in (name for name in ours if name in names):
            places = [_clean(mount.get("mountPath")) for mount in self._mounts if mount["name"] == name]
            is_ours = name not in shared and all(place == ours[name] for place in places)
            if name not in self._host_paths or not is_ours:
                raise InvalidInputError(SUBJECT, "spec.volumes", name, reason)

    @cached_property
    def _mounts(self) -> list[Object]:
        return _named(self._container, "volumeMounts", f"{self._place}.volumeMounts")

    @cached_property
    def _volumes(self) -> list[Object]:
        return _named(self._spec, "volumes", "spec.volumes")

    def _outside(self, mount: Object) -> str | None:
        """The path on the machine of what is mounted; None: it is on no `hostPath`, or depends on a variable."""
        outside = self._host_paths.get(str(mount.get("name")))
        if outside is None or mount.get("subPathExpr"):
            return None
        return posixpath.join(outside, str(mount["subPath"])) if mount.get("subPath") else outside

    @cached_property
    def _host_paths(self) -> dict[str, str]:
        """The path on the machine of each volume that is on a `hostPath`, by its name; of two the first one."""
        found: dict[str, str] = {}
        for volume in self._volumes:
            host = volume.get("hostPath")
            if isinstance(host, dict) and isinstance(host.get("path"), str):
                found.setdefault(str(volume["name"]), host["path"])
        return found


def _without_flags(
    words: Sequence[_Word], gone: Collection[str], added: Collection[str], notices: list[str]
) -> list[_Word]:
    """The words without these flags and their values; notices about all that are not added again."""
    kept: list[_Word] = []
    skip = False
    for at, word in enumerate(words):
        if skip:
            skip = False
            continue
        name, has_value, _ = word.text.partition("=")
        flag = _flag_of(name)
        if flag not in gone:
            kept.append(word)
            continue
        skip = not has_value and flag not in _SWITCHES and at + 1 < len(words)
        if skip and words[at + 1].text.startswith("-"):
            notices.append(f"{words[at + 1].text} was the value of {word.text}, and is removed with it")
        if word.text not in added and flag not in _CONFIG:
            notices.append(f"{word.text} is removed: it has no effect beside a configuration, or does not exist")
    return kept


def _flag_of(word: str) -> str | None:
    """The name of a flag, in which the scheduler reads `_` as `-` (facts.md c75); None: the word is none."""
    return re.sub(r"^--?", "", word).replace("_", "-") if word.startswith("-") else None


def _is_scheduler(container: Object) -> bool:
    command = container.get("command")
    first = command[0] if isinstance(command, list) and command else None
    return container.get("name") == PROGRAM or (isinstance(first, str) and posixpath.basename(first) == PROGRAM)


def _in_place(before: Sequence[Object], after: Sequence[Object]) -> list[Object]:
    """`after` in the order of `before`; what is new comes last."""
    by_name = {str(each["name"]) + str(each.get("mountPath", "")): each for each in after}
    old = [str(each["name"]) + str(each.get("mountPath", "")) for each in before]
    return [by_name.pop(key) for key in old if key in by_name] + list(by_name.values())


def _if_any(key: str, values: list[Object], parent: Mapping[str, object]) -> Object:
    """The field, unless it is absent and has no values."""
    return {key: values} if values or parent.get(key) else {}


def is_same(path: object, other: str) -> bool:
    """Whether two paths are one, however they are written."""
    return _clean(path) == _clean(other)


def is_inside(path: object, folder: object) -> bool:
    """Whether a path is below a folder, and so hides a file of it when both are mounted."""
    inner, outer = _clean(path), _clean(folder)
    return inner is not None and outer is not None and inner != outer and inner.startswith(f"{outer.rstrip('/')}/")


def is_closed(mount: Object, host: str | None, inside: str, outside: str) -> bool:
    """Whether a mount is read-only and around one of ours, of which it has no file or folder (facts.md c76).

    `host` is the path on the machine of what it mounts. Ours mounts the path `outside`, on the machine, at the path
    `inside`, in the container.
    """
    path = mount.get("mountPath")
    if not mount.get("readOnly") or not is_inside(inside, path):
        return False
    return host is None or not is_same(posixpath.join(host, posixpath.relpath(inside, _clean(path))), outside)


def _clean(path: object) -> str | None:
    """A path without what has no meaning in it; the kubelet takes each as absolute."""
    return posixpath.normpath(f"/{path.lstrip('/')}") if isinstance(path, str) else None


def _named(parent: Object, key: str, place: str) -> list[Object]:
    """The items of a list, each a mapping with a name."""
    found: list[Object] = []
    for at, item in enumerate(list_at(SUBJECT, parent.get(key), place)):
        each = mapping_at(SUBJECT, item, f"{place}[{at}]")
        if not isinstance(each.get("name"), str):
            raise InvalidInputError(SUBJECT, f"{place}[{at}].name", each.get("name"), "must be text")
        found.append(each)
    return found
