"""`tas configure verify`: is this node still as configured?"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from cli.as_json import JSON_OPTION, print_json
from cli.configure.cluster_dns import ClusterDns, of_kubelet
from cli.configure.errors import EXIT_DIFFERENCES, errors_shown
from cli.configure.flags import Command
from cli.configure.liveness import livez_option, look
from cli.configure.planning import Planned, plan_options, planned
from cli.configure.reachability import Unreached, why_not_reached
from cli.configure.report import print_notices
from cli.output import echo
from tas.configuring.restart import not_read

NAME = "kube-scheduler"


def files_not_read(config: Path, others: Iterable[Path]) -> list[str]:
    """Which of these files a running scheduler with this configuration has not read, and since when it runs.

    Nothing without such a process: within a container the processes of the machine are not visible.
    """
    started = min(_started_with(str(config)), default=None)
    if started is None:
        return []
    changed = {str(path): path.stat().st_mtime for path in (config, *others) if path.exists()}
    since = datetime.fromtimestamp(started, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return [
        f"{path}: is newer than the running scheduler, which reads it only when it starts, the last time at {since}: "
        "move the manifest out of its folder, and back after a minute"
        for path in not_read(started, changed)
    ]


def _started_with(config: str) -> Iterator[float]:
    """When each kube-scheduler with this configuration began, in seconds since 1970."""
    import psutil  # here: only this question needs it

    for process in psutil.process_iter(["cmdline", "create_time"]):
        words: list[str] = process.info["cmdline"] or [""]
        pairs = [*(word.partition("=")[::2] for word in words), *pairwise(words)]
        flags = {(name.lstrip("-"), value) for name, value in pairs if name.startswith("-")}
        if words[0].rpartition("/")[2] == NAME and ("config", config) in flags and process.info["create_time"]:
            yield process.info["create_time"]


@click.command("verify", cls=Command, params=[
    *plan_options(),
    livez_option(),
    click.Option(["--cluster-dns"], metavar="ADDRESS",
                 help="The DNS of the cluster. [default: clusterDNS of the kubelet]"),
    click.Option(["--files-only"], is_flag=True, help="Ask neither the scheduler nor the extenders."),
    JSON_OPTION,
])  # fmt: skip
@errors_shown
def verify(*, livez: str, cluster_dns: str | None, files_only: bool, as_json: bool, **given: Any) -> int:
    """Compare the files of this node with what the same flags of `tas configure` would write.

    Also asks the scheduler whether it is alive and has read these files, and each extender of these flags, as the
    scheduler would: by the DNS of the cluster and with the same certificates.

    Exit codes: 0 as configured; 1 cannot be compared; 3 differences, for example after `kubeadm upgrade`.
    """
    made = planned(looking=True, **given)
    differences = [f"{step.path}: {'missing' if step.before is None else 'differs'}" for step in made.pending]
    differences += [f"{given['manifest']}: has not: {change}" for change in made.plan.changes]
    differences += [f"{path}: is a second scheduler, which the kubelet runs, too: delete it" for path in made.copies]
    notices = list(made.notices)
    if not files_only:
        if (problem := look(livez).problem) is not None:
            differences.append(f"the scheduler does not answer at {livez}: {problem}")
        *certificates, config, _manifest = (step.path for step in made.steps)
        # It reads its own certificate and key again for each new connection (facts.md c74).
        differences += files_not_read(config, [path for path in certificates if path.name == "ca.crt"])
        dns = of_kubelet() if cluster_dns is None else ClusterDns(cluster_dns)
        for url, unreached in _unreached(made, dns).items():
            if dns is None and unreached.unresolved:
                # A Service has no name outside of the cluster, so that this machine cannot tell.
                notices.append(f"{url} is not asked: {unreached.reason}. Give --cluster-dns")
            else:
                differences.append(f"the scheduler does not reach {url}: {unreached.reason}")
    if as_json:
        print_json({"as_configured": not differences, "differences": differences, "notices": notices})
    else:
        print_notices(notices)
        for difference in differences:
            echo(difference)
        if not differences:
            echo("as configured")
    return EXIT_DIFFERENCES if differences else 0


def _unreached(made: Planned, dns: ClusterDns | None) -> dict[str, Unreached]:
    certificates = {step.path.name: step.content or b"" for step in made.steps[:-2]}
    asked = {url: why_not_reached(url, dns, certificates) for url in made.plan.urls}
    return {url: unreached for url, unreached in asked.items() if unreached is not None}
