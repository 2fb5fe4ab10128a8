"""The files of the scheduler on this machine: its manifest, its configuration, and the certificates in it."""

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tas.configuring.configuration import KIND
from tas.configuring.static_pod import Scheduler
from tas.configuring.versions import GROUP, OLDEST, api_version, minor_of_image
from tas.diagnosis.finding import Missing
from tas.diagnosis.scheduler import entry_of
from tas.errors import InvalidInputError

POLICY_FLAGS = ("policy-configmap", "policy-config-file")
ELSEWHERE = "run tas doctor on a control plane node, or with --scheduler-config FILE"


class Tls(NamedTuple):
    """The certificates of the scheduler, as far as they can be read here.

    Attributes:
        authority: The CA as PEM; None: there is none, or it cannot be read.
        cert: The file of the certificate; None: there is none, or it cannot be read.
        key: The file of its key.
        server_name: The name that the extender's certificate must have, if not that of the URL.
    """

    authority: str | None
    cert: Path | None
    key: Path | None
    server_name: str | None


class SchedulerFiles(NamedTuple):
    """What the files say; `minor` is the minor version of the scheduler, `url` the `urlPrefix` of the extender."""

    configuration: object | Missing
    origin: str
    minor: int | None
    environment: Mapping[str, str] | Missing
    url: str | None
    tls: Tls | None


def read_scheduler(manifest: Path, configuration: Path | None) -> SchedulerFiles:
    """Reads the files. Blocks. `configuration` is the file of the configuration; None: the one in the manifest."""
    pod = _pod(manifest)
    minor, environment = _of_pod(pod)
    path: Path | Missing | None = configuration if configuration is not None else _path(pod, manifest)
    document: object = path if isinstance(path, Missing) else _without(minor) if path is None else _document(path)
    origin = f"{manifest} (without --config)" if path is None else str(path)
    if isinstance(document, Missing):
        return SchedulerFiles(document, origin, minor, environment, None, None)
    entry = entry_of(document) or {}
    url = entry.get("urlPrefix")
    tls = entry.get("tlsConfig")
    return SchedulerFiles(
        document,
        origin,
        minor,
        environment,
        url if isinstance(url, str) else None,
        _tls(tls, pod) if isinstance(tls, dict) else None,
    )


def _without(minor: int | None) -> object:
    """The configuration of a scheduler without a file."""
    version = api_version(minor) if minor is not None and minor >= OLDEST else f"{GROUP}/v1"
    return {"apiVersion": version, "kind": KIND}


def _of_pod(pod: Scheduler | Missing) -> tuple[int | None, Mapping[str, str] | Missing]:
    """The minor version of the scheduler, and its environment."""
    if isinstance(pod, Missing):
        return None, pod
    try:
        environment: Mapping[str, str] | Missing = pod.environment
    except InvalidInputError as error:
        environment = Missing(str(error))
    try:
        return minor_of_image(pod.image), environment
    except InvalidInputError:
        return None, environment


def _pod(manifest: Path) -> Scheduler | Missing:
    document = _document(manifest)
    if isinstance(document, Missing):
        return document
    try:
        return Scheduler(document)
    except InvalidInputError as error:
        return Missing(str(error), ELSEWHERE)


def _path(pod: Scheduler | Missing, manifest: Path) -> Path | Missing | None:
    """The file of the configuration on this machine; None: the scheduler runs without one."""
    if isinstance(pod, Missing):
        return Missing(f"the scheduler's manifest: {pod.reason}", ELSEWHERE)
    try:
        if any(pod.flag(flag) is not None for flag in POLICY_FLAGS):
            mend = "docs/reference/configure.md says how it reads a configuration instead"
            return Missing(f"{manifest}: the scheduler reads a Policy, which is not checked", mend)
        inside = pod.flag("config")
        outside = None if inside is None else pod.host_path(inside)
    except InvalidInputError as error:
        return Missing(str(error), ELSEWHERE)
    if inside is None:
        return None
    if outside is None:
        return Missing(f"{manifest}: {inside} is not mounted", "mount the file, as tas configure does")
    return Path(outside)


def _document(path: Path) -> object | Missing:
    try:
        file = path.open("rb")
    except OSError as error:
        return Missing(f"{path}: {error.strerror}", ELSEWHERE)
    from workers.process.manifests import MAX_BYTES, ManifestError, read_yaml  # here: most machines have no such file

    try:
        with file:
            documents = read_yaml(file.read(MAX_BYTES + 1))
    except OSError as error:
        return Missing(f"{path}: {error.strerror}", ELSEWHERE)
    except ManifestError as error:
        return Missing(f"{path}: {error}", f"correct {path}")
    if len(documents) != 1:
        return Missing(f"{path}: has {len(documents)} documents, must have one", f"correct {path}")
    return documents[0]


def _tls(config: Mapping[str, object], pod: Scheduler | Missing) -> Tls:
    name = config.get("serverName")
    return Tls(
        authority=_authority(config, pod),
        cert=_readable(config.get("certFile"), pod),
        key=_readable(config.get("keyFile"), pod),
        server_name=name if isinstance(name, str) and name else None,
    )


def _authority(config: Mapping[str, object], pod: Scheduler | Missing) -> str | None:
    data = config.get("caData")  # it overrides the file
    if isinstance(data, str) and data:
        try:
            return base64.b64decode(data).decode("ascii")
        except (binascii.Error, UnicodeDecodeError):
            return None
    path = _readable(config.get("caFile"), pod)
    return None if path is None else path.read_text("ascii", errors="replace")


def _readable(inside: object, pod: Scheduler | Missing) -> Path | None:
    """The file on this machine for a path in the container, if it can be read."""
    if not isinstance(inside, str) or not inside:
        return None
    outside = None if isinstance(pod, Missing) else pod.host_path(inside)
    path = Path(outside or inside)
    try:
        with path.open("rb"):
            return path
    except OSError:
        return None
