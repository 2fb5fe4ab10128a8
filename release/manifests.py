"""Writes `deploy/manifests/`, what the chart renders, for people without Helm: `python release/manifests.py HELM`."""

import subprocess
import sys
from pathlib import Path

DEPLOY = Path(__file__).parents[1] / "deploy"
CHART = DEPLOY / "chart"
FOLDER = DEPLOY / "manifests"
NAMESPACE = "telemetry-aware-scheduling"

KUBERNETES = "1.36.3"
"""The version for which Helm renders: it knows none without a cluster."""

FILES = {
    "tas.yaml": (),
    "tas-separate.yaml": ("examples/separate.yaml",),
    "tas-small.yaml": ("examples/small.yaml",),
}
"""Each file with the values that it has beside the defaults."""

HEADER = """\
# Made from deploy/chart by `python release/manifests.py HELM`: do not edit. Values: {values}.
# kubectl create namespace telemetry-aware-scheduling, then kubectl apply --server-side -f this file.
"""


def rendered(
    helm: Path, *values: str, namespace: str = NAMESPACE, crds: bool = True, kubernetes: str = KUBERNETES
) -> str:
    """What `helm template` prints. `values` are files below the chart. Raises ValueError with the error of Helm."""
    command = [str(helm), "template", "tas", str(CHART), "--namespace", namespace, "--kube-version", kubernetes]
    command += ["--include-crds"] if crds else []
    for each in values:
        command += ["--values", str(CHART / each)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - its own arguments
    if done.returncode != 0:
        # Helm reports each link to a file, and then the error.
        raise ValueError("\n".join(line for line in done.stderr.splitlines() if "symbolic link" not in line))
    return done.stdout


def manifest(helm: Path, name: str) -> str:
    """The content of a file of `FILES`."""
    values = FILES[name]
    text = rendered(helm, *values)
    lines = [line for line in text.splitlines() if not line.startswith("# Source: ")]
    return HEADER.format(values=", ".join(values) or "the defaults") + "\n".join(lines) + "\n"


def main() -> int:
    """The exit code."""
    if len(sys.argv) != 2:
        print("python release/manifests.py HELM", file=sys.stderr)  # noqa: T201
        return 2
    FOLDER.mkdir(exist_ok=True)
    for name in FILES:
        (FOLDER / name).write_text(manifest(Path(sys.argv[1]), name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
