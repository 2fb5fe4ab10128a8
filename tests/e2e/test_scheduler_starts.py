"""What the real schedulers do with each configuration of the corpus: it is stored beside the corpus, in `starts.json`.

`problems` accepts exactly what is stored there: tests/unit/tas/configuring/test_validating.py.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.tas.configuring.corpus import FORMS, STARTS, documents, starts

PROGRAMS = {22: "kube-scheduler-1.22", 27: "kube-scheduler-1.27", 36: "kube-scheduler"}
EVERY = 12
"""Of so many configurations one is tried in `.ci/run`; `make nightly` tries all."""

IN_USE = "address already in use"
"""1.22 listens before it has checked all: at the default port another test may listen."""

NOBODY = "127.0.0.1:1"


def has_started(program: Path, document: Mapping[str, object], folder: Path, minor: int) -> bool:
    """Whether a scheduler has read a configuration to the end. It writes its own form of it, and ends."""
    kubeconfig, config, written = folder / "kubeconfig", folder / "config.json", folder / "written.yaml"
    contexts = [{"name": "c", "context": {"cluster": "c", "user": "c"}}]
    clusters = [{"name": "c", "cluster": {"server": f"https://{NOBODY}"}}]
    users = [{"name": "c", "user": {"token": "none"}}]
    access = {"contexts": contexts, "clusters": clusters, "users": users, "current-context": "c"}
    kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config"} | access))
    client = document.get("clientConnection") or {}
    assert isinstance(client, dict)
    config.write_text(json.dumps({**document, "clientConnection": {**client, "kubeconfig": str(kubeconfig)}}))
    flags = [f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}"]
    flags += ["--authentication-skip-lookup", "--secure-port=0", *(["--port=0"] if minor == 22 else [])]
    command: list[str | Path] = [program, f"--config={config}", f"--write-config-to={written}", *flags]
    for _ in range(20):
        written.unlink(missing_ok=True)
        done = subprocess.run(command, capture_output=True, timeout=240, check=False)
        if IN_USE not in done.stderr.decode(errors="replace"):
            return written.exists()
    pytest.fail(f"20 times: {IN_USE}")


@pytest.mark.parametrize("minor", FORMS)
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.nightly), EVERY])
def test_what_is_stored_is_what_the_schedulers_do(
    programs: Mapping[str, Path], tmp_path: Path, minor: int, every: int
) -> None:
    program = programs[PROGRAMS[minor]]
    chosen = list(documents(minor))[::every]
    found = {name: has_started(program, document, tmp_path, minor) for name, document in chosen}
    if os.environ.get("TAS_WRITE_STARTS") and every == 1:
        stored = json.loads(STARTS.read_text()) if STARTS.exists() else {}
        STARTS.write_text(json.dumps(stored | {f"1.{minor}": found}, indent=1, sort_keys=True) + "\n")
    real = starts(minor)
    assert found == {name: real[name] for name in found}
    assert set(found.values()) == {True, False}
