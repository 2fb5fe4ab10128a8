"""The CRD of TASPolicy: a file of the package, so that every installation can apply it."""

from importlib.resources import files

from workers.kubernetes.resources import POLICIES


def crd_manifest() -> str:
    """The manifest, as YAML for `kubectl apply -f -`."""
    return files("workers.kubernetes").joinpath(f"{POLICIES}.yaml").read_text(encoding="utf-8")
