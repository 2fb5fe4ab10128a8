"""Writes `deploy/chart/templates/_workers.tpl`: what the chart knows of each process, from the workers' folders."""

from pathlib import Path

from workers.registry import WORKERS
from workers.settings import Settings
from workers.spec import WorkerSpec

FILE = Path(__file__).parents[1] / "deploy" / "chart" / "templates" / "_workers.tpl"
HEAD = """\
{{- /*
What is true of each process, whatever the values say. `account`: the file in files/rbac; `port`: of the scheduler;
`beside`: runs beside `all`, which does not have it.
`python release/chart_workers.py` writes this file from workers/, since Helm reads no other folder.
*/}}
{{- define "tas.processes" -}}
"""
SERVER = "tls: true, budget: true"


def _process(spec: WorkerSpec) -> str:
    fields = []
    if spec.account:
        fields.append(f"account: {spec.name}")
    if "kubeconfig" in spec.settings:
        fields.append("kubeconfig: true")
    if spec.listens:
        listen = spec.default("listen") or Settings.__dataclass_fields__["listen"].metadata["setting"].default
        fields.append(f"port: {listen.rpartition(':')[2]}, {SERVER}")
    if spec.in_all is None:
        fields.append("beside: true")
    return f"{spec.name}: {{{', '.join(fields)}}}"


def rendered() -> str:
    """The content of the file."""
    own = [_process(spec) for spec in WORKERS.values() if spec.in_cluster and spec.port is not None]
    together = f"all: {{account: all, kubeconfig: true, port: 9001, {SERVER}}}"
    return HEAD + "\n".join([together, *own, "{{- end }}", ""])


if __name__ == "__main__":
    FILE.write_text(rendered())
