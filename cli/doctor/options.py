"""The options of `tas doctor` that are no settings."""

from dataclasses import dataclass
from pathlib import Path

from tas.diagnosis.rights import NAMESPACE

MANIFEST = Path("/etc/kubernetes/manifests/kube-scheduler.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options that are no settings."""

    scheduler_config: Path | None = None
    manifest: Path = MANIFEST
    monitors: tuple[str, ...] = ()
    account_namespace: str = NAMESPACE
    skipped: tuple[str, ...] = ()
    with_ok: bool = False
    as_json: bool = False
