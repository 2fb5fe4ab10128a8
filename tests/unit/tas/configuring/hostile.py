"""Odd manifests of a scheduler: those that can be edited, and those that are refused with the reason."""

import json
import re
from typing import NamedTuple

import yaml

from tests.unit.tas.configuring.samples import KUBEADM

_COMMAND = re.compile(r"command:\n(?:    [-#].*\n)+")
_LAST = "- --leader-elect=true\n"


def _with_command(text: str) -> str:
    assert len(_COMMAND.findall(KUBEADM)) == 1
    return _COMMAND.sub(lambda _: f"{text}\n", KUBEADM)


def _with_last(*lines: str) -> str:
    """The manifest with other last items of the command."""
    return KUBEADM.replace(_LAST, "\n    ".join(lines) + "\n")


def _replaced(old: str, new: str) -> str:
    assert KUBEADM.count(old) == 1
    return KUBEADM.replace(old, new)


_JSON = yaml.safe_load(KUBEADM)

EDITED: dict[str, str] = {
    "line ends of Windows": KUBEADM.replace("\n", "\r\n"),
    "line ends of Windows, some of them": KUBEADM.replace("\n    ", "\r\n    "),
    "a byte order mark": f"\ufeff{KUBEADM}",
    "a byte order mark and line ends of Windows": "\ufeff" + KUBEADM.replace("\n", "\r\n"),
    "a line end of Unicode in a comment": _replaced("# only here", "# only here\u0085    - --v=7"),
    "a character of four bytes": _replaced("# only here", "# \U0001f600 only here"),
    "no line end at the end": KUBEADM.rstrip("\n"),
    "a mark of a document before it": f"---\n{KUBEADM}",
    "a mark of its end": f"{KUBEADM}...\n",
    "an empty document after it": f"{KUBEADM}---\n# nothing\n",
    "a version of YAML": f"%YAML 1.1\n---\n{KUBEADM}",
    "tabs between value and comment": _replaced("   # only here", "\t\t# only here"),
    "a tab at the end of a line": _with_last("- --leader-elect=true\t"),
    "an anchor that nobody uses": _replaced("imagePullPolicy: ", "imagePullPolicy: &policy "),
    "an alias elsewhere": _replaced("path: /etc/kubernetes/scheduler.conf", "path: &own /etc/kubernetes/scheduler.conf")
    .replace("status: {}", "status: {message: *own}"),
    "an alias of the command": _replaced("  - command:\n", "  - command: &words\n").replace(
        "    imagePullPolicy", "    args: *words\n    imagePullPolicy"
    ),
    "an alias of a word": _with_last("- &elect --leader-elect=true").replace(
        "    imagePullPolicy", "    args: [*elect]\n    imagePullPolicy"
    ),
    "a folded text": _with_last("- >-", "  --leader-elect=true"),
    "a text in quotes over two lines": _with_last('- "--leader-elect=\\', '  true"'),
    "a tag": _with_last("- !!str --leader-elect=true"),
    "a key with a question mark": _replaced("  hostNetwork: true", "  ? hostNetwork\n  : true"),
    "JSON": json.dumps(_JSON),
    "JSON on several lines": json.dumps(_JSON, indent=2),
    "flags twice": _with_last("- --leader-elect=true", "- --leader-elect=false", "- --leader-elect"),
    "args beside the command": _replaced("    imagePullPolicy", "    args: [--v=2]\n    imagePullPolicy"),
    "a program that starts the scheduler": _with_command("command: [/go-runner, --log-file=/l, /bin/kube-scheduler]"),
    "flags of an init program": _with_command("command: [tini, --, kube-scheduler, --v=2]"),
    "a variable as the value of a flag": _with_last("- --leader-elect-resource-name", "- $(NAME)"),
    "a variable in a flag": _with_last("- --leader-elect-resource-name=$(NAME)"),
}  # fmt: skip
"""Each can be edited, and the rest of its bytes stays."""


class Refused(NamedTuple):
    """A manifest that cannot be edited; `words` are of the error."""

    text: str
    words: str


_SCRIPT = "is a script of a shell: give each flag as an item"
_LAYOUT = "cannot be edited in place, since it uses anchors or an unusual layout"

REFUSED: dict[str, Refused] = {
    "two documents": Refused(f"{KUBEADM}---\n{KUBEADM}", "must have exactly one document"),
    "line ends of an old Mac": Refused(KUBEADM.replace("\n", "\r"), "no YAML: line "),
    "tabs as indentation": Refused(KUBEADM.replace("    - --leader", "\t- --leader"), "line 19, column 1: found a tab"),
    "a list with an anchor that is used": Refused(
        _replaced("    volumeMounts:\n", "    volumeMounts: &m\n").replace("status: {}", "mounts: *m"), _LAYOUT
    ),
    "a merge key": Refused(_replaced("  hostNetwork: true", "  <<: {hostNetwork: true}"), "line 31, column 3: merge "),
    "a field twice": Refused(
        _replaced("  hostNetwork: true", "  hostNetwork: true\n  hostNetwork: false"), "line 32, column 3: the key is"
    ),
    "an alias without an anchor": Refused(_replaced("IfNotPresent", "*nobody"), "the alias has no anchor before it"),
    "a zero byte": Refused(f"{KUBEADM}\0", "control characters are not allowed"),
    "a command in one text": Refused(_with_command("command: kube-scheduler --v=2"), "must be a list"),
    "a command in one item": Refused(_with_command('command: ["kube-scheduler --v=2"]'), _SCRIPT),
    "a shell": Refused(_with_command("command: [/bin/sh, -c, exec kube-scheduler]"), _SCRIPT),
    "a shell, its script in args": Refused(
        _with_command('command: [/bin/sh]\n    args: ["-c", "exec kube-scheduler"]'), _SCRIPT
    ),
    "another shell, without a flag": Refused(_with_command("command: [dash, -c, kube-scheduler]"), _SCRIPT),
    "a shell of busybox, a script of lines": Refused(
        _with_command("command:\n    - busybox\n    - sh\n    - -c\n    - |\n      exec kube-scheduler"), _SCRIPT
    ),
    "a script without a shell": Refused(_with_command('command: [env, -S, "kube-scheduler -v 2"]'), _SCRIPT),
    "an end of the flags": Refused(_with_last("- --v=2", "- --"), "command = '--': ends the flags"),
    "a variable as a flag": Refused(
        _with_last("- --v=2", "- $(CONFIG)"), "'$(CONFIG)': may be any flag, also --config"
    ),
}
