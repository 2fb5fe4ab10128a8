"""`tas configure` is killed before each call that changes a file: the kubelet always finds a scheduler that starts.

A kill is an exception that nobody catches, after which no call changes anything: so what cleans up does nothing, too.
"""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from cli.configure.backups import back_up, steps_of_backup
from cli.configure.configure import configure
from cli.configure.files import write_all
from cli.configure.flags import translated
from cli.configure.planning import Planned, planned
from tas.configuring.static_pod import Scheduler
from tests.unit.cli.configure.node import AUTHORITY, Node, code, message
from tests.unit.tas.configuring.samples import KUBEADM
from workers.process.manifests import read_yaml_tree

_CALLS = ("open", "fsync", "fchmod", "fchown", "rename", "unlink", "mkdir", "rmdir")
_NOT_OF_THE_PLAN = ("backup_dir", "keep", "dry_run", "exit_code", "stdout", "wait", "livez", "as_json")


class KilledError(BaseException):
    """The process ends here."""


class Death:
    """Ends the process before one of its calls, or in the middle of a write.

    Attributes:
        calls: The calls until then.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self._at: int | None = None
        for name in _CALLS:
            monkeypatch.setattr(os, name, self._counted(name, getattr(os, name)))
        monkeypatch.setattr(os, "fdopen", lambda descriptor, _mode: _File(descriptor, self))

    def comes(self, at: int | None) -> None:
        """From now on: before the call with this number; None: never."""
        self._at, self.calls = at, []

    def called(self, name: str) -> None:
        if self._at is not None and len(self.calls) >= self._at:
            raise KilledError
        self.calls.append(name)

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **more: Any) -> Any:
            self.called(name)
            return call(*arguments, **more)

        return counted


class _File:
    """A file that is written in two halves."""

    def __init__(self, descriptor: int, death: Death) -> None:
        self._descriptor, self._death = descriptor, death

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        os.close(self._descriptor)

    def write(self, content: bytes) -> None:
        middle = len(content) // 2
        for half in (content[:middle], content[middle:]):
            self._death.called("write")
            os.write(self._descriptor, half)

    def flush(self) -> None:
        """All is written already."""


def plan_of(node: Node, *more: str) -> Planned:
    words = translated([word for pair in node.flags.items() for word in pair] + list(more))
    given = configure.make_context("configure", words).params
    return planned(looking=False, **{name: value for name, value in given.items() if name not in _NOT_OF_THE_PLAN})


def rewritten(node: Node, state: Mapping[str, tuple[bytes, int]]) -> None:
    """Makes the files of the node those of a former `node.state()`."""
    for path in sorted(node.folder.rglob("*"), reverse=True):
        if str(path) not in state:
            path.rmdir() if path.is_dir() else path.unlink()
    for name, (content, mode) in sorted(state.items()):
        path = Path(name)
        if stat.S_ISDIR(mode):
            path.mkdir(exist_ok=True)
        elif not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)
        path.chmod(stat.S_IMODE(mode))


def why_it_does_not_start(node: Node) -> Iterator[str]:
    """What the kubelet or the scheduler would not find, if it started now."""
    seen = [path.name for path in node.manifest.parent.iterdir() if not path.name.startswith(".")]
    if seen != [node.manifest.name]:
        yield f"the kubelet sees {seen}"
    pod = read_yaml_tree(node.manifest.read_text()).value
    assert isinstance(pod, dict)
    for volume in pod["spec"]["volumes"]:
        path = Path(volume["hostPath"]["path"])
        if {"File": not path.is_file(), "Directory": not path.is_dir()}.get(volume["hostPath"].get("type"), False):
            yield f"{path} is missing"
    scheduler = Scheduler(pod)
    if (config := scheduler.flag("config")) is None:
        return
    outside = scheduler.host_path(config)
    if outside is None:
        yield f"{config} is not mounted"
        return
    document = read_yaml_tree(Path(outside).read_text()).value
    assert isinstance(document, dict)
    for extender in document.get("extenders", ()):
        for field in ("certFile", "keyFile", "caFile"):
            inside = extender.get("tlsConfig", {}).get(field)
            found = None if inside is None else scheduler.host_path(inside)
            if inside is not None and (found is None or not Path(found).is_file()):
                yield f"{inside} is not there"


HEAD = "kind: KubeSchedulerConfiguration\napiVersion: kubescheduler.config.k8s.io/v1\n"


def nothing(node: Node) -> None:
    pass


def own_configuration(node: Node) -> None:
    """Of somebody who uses another extender, at the place that `tas configure` takes, too."""
    node.config.write_text(f"{HEAD}extenders: [{{urlPrefix: 'http://other:1', filterVerb: f}}]\n")
    node.manifest.write_text(
        KUBEADM.replace("--leader-elect=true", f"--config={node.config}")
        .replace("    volumeMounts:\n", f"    volumeMounts:\n    - {{name: own, mountPath: {node.config}}}\n")
        .replace("  volumes:\n", f"  volumes:\n  - {{name: own, hostPath: {{path: {node.config}, type: File}}}}\n")
    )


def another_weight(node: Node) -> None:
    assert code(node.configure("--weight", "2")) == 0


def another_client(node: Node) -> None:
    """Certificate and key are replaced, one after the other: a scheduler starts also in between (facts.md c74)."""
    assert code(node.configure()) == 0
    node.pki(AUTHORITY.client("system:kube-scheduler"))


def a_configuration_of_before_an_upgrade(node: Node) -> None:
    """The manifest is that of kubeadm again."""
    another_weight(node)
    node.manifest.write_text(KUBEADM)


BEFORE = [
    pytest.param(nothing, marks=pytest.mark.ci),
    own_configuration,
    pytest.param(another_weight, marks=pytest.mark.ci),
    pytest.param(another_client, marks=pytest.mark.ci),
    pytest.param(a_configuration_of_before_an_upgrade, marks=pytest.mark.ci),
]


def shown_files(node: Node) -> dict[str, tuple[bytes, int]]:
    """What kubelet and scheduler may read."""
    return {name: found for name, found in node.files().items() if Path(name).is_file() and not Path(name).match(".*")}


def killed_before_each_call(
    node: Node, monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]
) -> Iterator[list[str]]:
    """Yields the calls that the action made before it was killed, one more each time, until it comes to its end."""
    death = Death(monkeypatch)
    before = node.state()
    ended = False
    at = 0
    while not ended:
        death.comes(at)
        with suppress(KilledError):
            action()
            ended = True
        calls = [*death.calls]
        death.comes(None)
        assert list(why_it_does_not_start(node)) == [], calls
        yield calls
        rewritten(node, before)
        at += 1


@pytest.mark.parametrize("before", BEFORE)
def test_killed_before_each_call_there_is_a_scheduler_that_starts_and_a_way_on_and_back(
    node: Node, monkeypatch: pytest.MonkeyPatch, before: Callable[[Node], None]
) -> None:
    before(node)
    as_before = shown_files(node)
    made = plan_of(node)
    assert list(why_it_does_not_start(node)) == []

    def run() -> None:
        back_up(node.folder / "backups", made.pending, datetime.now(UTC), version="1", flags={})
        write_all(made.steps)

    states = [as_before]
    calls: list[str] = []
    for calls in killed_before_each_call(node, monkeypatch, run):
        if (now := shown_files(node)) == states[-1]:
            continue
        states.append(now)
        here = node.state()
        write_all(plan_of(node).steps)
        assert [step.path.read_bytes() for step in made.steps] == [step.content for step in made.steps], calls
        rewritten(node, here)
        assert code(reverted := node.revert()) == 0, message(reverted)
        assert list(why_it_does_not_start(node)) == [], calls
        assert shown_files(node) == as_before, calls
    renamed = len(made.pending) + (before is own_configuration)  # its manifest is replaced twice
    assert len(states) == 1 + renamed
    backed_up = sum(step.before is not None for step in made.pending)
    assert calls.count("rename") == renamed + backed_up + 1  # the index


@pytest.mark.parametrize("before", [pytest.param(nothing, marks=pytest.mark.ci), own_configuration])
def test_a_revert_that_is_killed_before_each_call_leaves_a_scheduler_that_starts_and_can_be_run_again(
    node: Node, monkeypatch: pytest.MonkeyPatch, before: Callable[[Node], None]
) -> None:
    before(node)
    as_before = shown_files(node)
    node.configure()
    steps = steps_of_backup(*node.backups())
    states = [shown_files(node)]
    for calls in killed_before_each_call(node, monkeypatch, lambda: write_all(steps)):
        if (now := shown_files(node)) != states[-1]:
            states.append(now)
            assert code(reverted := node.revert()) == 0, message(reverted)
            assert shown_files(node) == as_before, calls
    assert len(states) == 1 + len(steps)
