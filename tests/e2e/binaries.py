"""The binaries of a control plane, built once from their Go modules and kept outside the repository.

`python -m tests.e2e.binaries` builds missing binaries and prints the path of each. The versions are those of
`tools/*/go.mod`: after a change there, the next run builds the new version and keeps the old one.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TOOLS = Path(__file__).parent / "tools"
LDFLAGS = "-s -w"
DESCHEDULER_CA = "descheduler-ca.crt"
"""The file of authorities of the descheduler that the tests build, in its working directory."""

MISSING = "no control plane to test against: `make e2e` builds one with Go >= 1.26 (once, about 28 CPU minutes)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One upstream project: the folder with its go.mod, and the package of each binary that the tests use."""

    name: str
    packages: dict[str, str]
    tags: str = ""
    ldflags: str = LDFLAGS

    @property
    def folder(self) -> Path:
        return TOOLS / self.name

    def digest(self) -> str:
        """A digest of the sources and of the build flags, in 12 hex digits."""
        parts = [(self.folder / "go.mod").read_bytes(), (self.folder / "go.sum").read_bytes(), self.ldflags.encode()]
        parts += [self.tags.encode()] if self.tags else []
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


MODULES = (
    Module(name="etcd", packages={"etcd": "go.etcd.io/etcd/server/v3"}),
    Module(
        name="kubernetes",
        packages={
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
        },
    ),
    Module(name="kubeadm", packages={"kubeadm": "k8s.io/kubernetes/cmd/kubeadm"}),
    # The last minor version that reads v1beta2, v1beta3 and v1.
    Module(name="kube-scheduler-1.27", packages={"kube-scheduler-1.27": "k8s.io/kubernetes/cmd/kube-scheduler"}),
    # The last minor version that reads v1beta1, and a Policy.
    Module(name="kube-scheduler-1.22", packages={"kube-scheduler-1.22": "k8s.io/kubernetes/cmd/kube-scheduler"}),
    Module(name="helm", packages={"helm": "helm.sh/helm/v3/cmd/helm"}),
    Module(name="kwok", packages={"kwok": "sigs.k8s.io/kwok/cmd/kwok"}),
    # Without the service discovery of two dozen clouds: the tests name the targets.
    Module(
        name="prometheus",
        packages={name: f"github.com/prometheus/prometheus/cmd/{name}" for name in ("prometheus", "promtool")},
        tags="remove_all_sd",
    ),
    Module(name="node_exporter", packages={"node_exporter": "github.com/prometheus/node_exporter"}),
    Module(name="prometheus-adapter", packages={"prometheus-adapter": "sigs.k8s.io/prometheus-adapter/cmd/adapter"}),
    # A descheduler with a client of Prometheus reads the authority of its pod, and there is no pod (facts.md c37).
    Module(
        name="descheduler",
        packages={"descheduler": "sigs.k8s.io/descheduler/cmd/descheduler"},
        ldflags=f"{LDFLAGS} -X sigs.k8s.io/descheduler/pkg/descheduler/client.K8sPodCAFilePath={DESCHEDULER_CA}",
    ),
)


class BuildError(Exception):
    """A binary could not be built; the message ends with the output of Go."""


def cache_folder() -> Path:
    """`$TAS_E2E_CACHE`, else `tas-e2e` in `$XDG_CACHE_HOME` or `~/.cache`."""
    if own := os.environ.get("TAS_E2E_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tas-e2e"


def find() -> dict[str, Path] | None:
    """The path of every binary by name, or None if one is missing. Builds nothing, and needs no Go.

    Without Go, a build of the same sources by any Go version is accepted.
    """
    found: dict[str, Path] = {}
    for module in MODULES:
        complete = [folder for folder in _build_folders(module) if _holds_all(folder, module)]
        if not complete:
            return None
        found |= {name: complete[-1] / name for name in module.packages}
    return found


def ensure(say: Callable[[str], None]) -> dict[str, Path]:
    """Builds missing binaries, calls `say` with each module and its time, and returns the path of every binary.

    Raises:
        BuildError: if there is no Go to build with, or a build failed.
    """
    if (found := find()) is not None:
        return found
    if _go_version() is None:
        raise BuildError(MISSING)
    with _only_builder(say):
        for module in MODULES:
            _build(module, say)
    found = find()
    if found is None:
        raise BuildError(f"a build succeeded, but its binaries are not in {cache_folder()}")
    return found


def _build(module: Module, say: Callable[[str], None]) -> None:
    target = _build_folders(module)[-1]
    if _holds_all(target, module):
        return
    say(f"building {', '.join(module.packages)} ...")
    began = time.monotonic()
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=target) as unfinished:
        # One call for all packages: they share most of what is compiled. Without cgo no C compiler is needed.
        # With `nice`, so that other programs come first.
        command = ["go", "build", "-mod=readonly", "-trimpath", "-ldflags", module.ldflags, "-tags", module.tags]
        command += ["-o", unfinished + os.sep]
        built = subprocess.run(
            [*_nice(), *command, *module.packages.values()],
            cwd=module.folder,
            env=os.environ | {"GOTOOLCHAIN": "local", "GOWORK": "off", "CGO_ENABLED": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if built.returncode != 0:
            raise BuildError(f"building {module.name} failed:\n{built.stdout[-4000:]}")
        for name, package in module.packages.items():
            (Path(unfinished) / _go_name(package)).rename(target / name)
    say(f"built {', '.join(module.packages)} in {time.monotonic() - began:.0f} s: {target}")


def _go_name(package: str) -> str:
    """The name that `go build` gives to a package's binary: its last element that is not a major version."""
    *_, parent, last = package.split("/")
    return parent if last.startswith("v") and last[1:].isdigit() else last


def _build_folders(module: Module) -> list[Path]:
    """The folders of builds of these sources: that of the installed Go version, else of any; the preferred one last."""
    stem = f"{module.name}-{module.digest()}-{sys.platform}-{platform.machine()}"
    if (version := _go_version()) is not None:
        return [cache_folder() / f"{stem}-{version}"]
    return sorted(cache_folder().glob(f"{stem}-go*"))


def _holds_all(folder: Path, module: Module) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in module.packages)


def _go_version() -> str | None:
    if shutil.which("go") is None:
        return None
    asked = subprocess.run(
        ["go", "env", "GOVERSION"],
        env=os.environ | {"GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.split()[0] if asked.returncode == 0 and asked.stdout.strip() else None


def _nice() -> list[str]:
    return ["nice"] if shutil.which("nice") else []


@contextmanager
def _only_builder(say: Callable[[str], None]) -> Iterator[None]:
    """A lock: of two concurrent runs only one builds."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build is under way: waiting for it ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Builds missing binaries. Without Go, prints how to get them, and does not fail."""
    if find() is None and _go_version() is None:
        print(MISSING)
        return 0
    try:
        for name, path in sorted(ensure(lambda line: print(line, flush=True)).items()):
            print(f"{name:24} {path}")
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
