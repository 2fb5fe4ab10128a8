"""The flags of the original Telemetry Aware Scheduling and GPU Aware Scheduling, translated to settings.

As in Go, a flag has one dash or two: `-port 9001` or `--port=9001`.
"""

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import click

from cli.loading import settings_of
from tas.errors import shortened
from workers.process.log_form import LogLevel
from workers.settings import IN_CLUSTER, Mistake, flag

OF_TELEMETRY = ("run all", "run extender")
OF_CARDS = ("run gpu",)
COMMANDS = (*OF_TELEMETRY, *OF_CARDS)
"""The commands that accept flags of the original."""

SAME = ("cert", "key", "cacert")
"""Settings with the same name in the original: their flags may also have one dash."""

PORT = 9001
"""The port at which the original listened."""

DEBUG_VERBOSITY = 4
"""From this `-v` on, the original logged every node and value."""


def _listen(text: str) -> str:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise ValueError("must be a port from 1 to 65535")
    return f":{int(text)}"  # every address of the machine, as in the original


def _log_level(text: str) -> str:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("must be a whole number, at least 0")
    return LogLevel.DEBUG if int(text) >= DEBUG_VERBOSITY else LogLevel.INFO


def _switch(text: str) -> str:
    """As Go reads a flag that is a boolean."""
    if text in ("1", "t", "T", "true", "TRUE", "True"):
        return "on"
    if text in ("0", "f", "F", "false", "FALSE", "False"):
        return "off"
    raise ValueError("must be true or false")


class OriginalFlag(NamedTuple):
    """A flag of the original; `convert` makes its value a value of `setting`, or raises ValueError.

    Without a setting, the flag has no effect here. A `switch` may be given without a value.
    """

    name: str
    form: str
    setting: str
    convert: Callable[[str], str]
    help: str
    commands: tuple[str, ...] = COMMANDS
    switch: bool = False


FLAGS = (
    OriginalFlag("port", "PORT", "listen", _listen, "--listen :PORT, on every address of this machine."),
    OriginalFlag("syncPeriod", "DURATION", "period", str, "--period DURATION.", OF_TELEMETRY),
    OriginalFlag("kubeConfig", "FILE", "kubeconfig", str, "--kubeconfig FILE."),
    OriginalFlag("v", "NUMBER", "log_level", _log_level, "--log-level info; from 4 on, debug."),
    OriginalFlag("enableAllowlist", "BOOL", "allowlist", _switch, "--allowlist on|off.", OF_CARDS, switch=True),
    OriginalFlag("enableDenylist", "BOOL", "denylist", _switch, "--denylist on|off.", OF_CARDS, switch=True),
    OriginalFlag("balancedResource", "NAME", "balanced_resource", str, "--balanced-resource NAME.", OF_CARDS),
    OriginalFlag(
        "unsafe",
        "BOOL",
        "",
        _switch,
        "Accepted, without an effect: without --cert the extender serves plain HTTP.",
        OF_CARDS,
        switch=True,
    ),
    OriginalFlag("qps", "NUMBER", "", str, "Accepted, without an effect.", OF_CARDS),
    OriginalFlag("burst", "NUMBER", "", str, "Accepted, without an effect.", OF_CARDS),
)


def flags_of(command: str) -> tuple[OriginalFlag, ...]:
    """The flags of the original that a command accepts."""
    return tuple(flag for flag in FLAGS if command in flag.commands)


def defaults_in_a_pod(command: str, given: Collection[str], flags: Collection[str]) -> Mapping[str, str]:
    """The settings that the command line of the original's deployment leaves out: the cluster and the address.

    Like the original, `tas run all --cert FILE` in a pod uses the pod's account, and listens on every address. `given`
    has the names of all given settings, `flags` of those given by flags. Without `--cert` on the command line, and with
    `--policies` or `--kubeconfig`, nothing is taken from the pod.
    """
    if command != "run all" or "cert" not in flags or {"policies", "kubeconfig"} & set(given) or not is_in_a_pod():
        return {}
    cluster = {"kubeconfig": IN_CLUSTER}
    return cluster if "listen" in given else cluster | {"listen": _listen(str(PORT))}


def is_in_a_pod() -> bool:
    """Whether this process runs in a pod that has an account."""
    # Imported here: only this command line needs it.
    from workers.kubernetes import credentials

    return credentials.has_account(credentials.SERVICE_ACCOUNT, os.environ)


class OriginalOption(click.Option):
    """A flag of the original as an option."""

    def __init__(self, original: OriginalFlag) -> None:
        self.original = original
        names = [f"--{original.name}", f"-{original.name}", f"original_{original.name}"]
        optional: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if original.switch else {}
        super().__init__(names, metavar=original.form, help=original.help, type=str, **optional)


class Translated(NamedTuple):
    """The original's flags as values of settings, the mistakes, and the flags that the command does not use."""

    given: Mapping[str, str]
    mistakes: list[Mistake]
    unused: list[str]


def translate(command: str, texts: Mapping[str, str | None], also_given: Collection[str]) -> Translated:
    """The values of the original's flags as settings of `command`.

    `texts` has the value of each flag by its name; `also_given` are the settings that their own flags give.
    """
    known = {name for name, _ in settings_of(command)}
    given: dict[str, str] = {}
    mistakes: list[Mistake] = []
    unused: list[str] = []
    for original in FLAGS:
        text = texts.get(original.name)
        if text is None:
            continue
        text = text.removeprefix("=")  # `-v=2`: click keeps the equals sign
        name = f"--{original.name}"
        if original.setting in also_given:
            reason = f"cannot be combined with {flag(original.setting)}, which is the same setting"
            mistakes.append(Mistake(name, shortened(text), reason))
        elif original.setting not in known:
            unused.append(name)
        else:
            try:
                given[original.setting] = original.convert(text)
            except ValueError as error:
                mistakes.append(Mistake(name, shortened(text), str(error)))
    return Translated(given, mistakes, unused)
