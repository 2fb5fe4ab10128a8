"""The flags of the original Telemetry Aware Scheduling, so that its command line starts this as well.

They were Go's: one dash or two, `-port 9001` or `--port=9001`. What one of them says is said by a setting of ours.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import click

from tas.errors import shortened
from workers.cli.settings import Mistake, flag, settings_of
from workers.logs import LogLevel

COMMANDS = ("run all", "run extender")
"""The commands that take them."""

SAME = ("cert", "key", "cacert")
"""Settings whose flags the original has by the same name: here they may have one dash, too."""

DEBUG_VERBOSITY = 4
"""From this `-v` on the original told of every node and value."""


def _listen(text: str) -> str:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise ValueError("must be a port from 1 to 65535")
    return f":{int(text)}"  # every address of the machine, as the original


def _log_level(text: str) -> str:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("must be a whole number, at least 0")
    return LogLevel.DEBUG if int(text) >= DEBUG_VERBOSITY else LogLevel.INFO


class OriginalFlag(NamedTuple):
    """A flag that is another one here: `say` makes of its value that of `setting`, or raises ValueError."""

    name: str
    form: str
    setting: str
    say: Callable[[str], str]
    help: str


FLAGS = (
    OriginalFlag("port", "PORT", "listen", _listen, "--listen :PORT, which is every address of this machine."),
    OriginalFlag("syncPeriod", "DURATION", "period", str, "--period DURATION."),
    OriginalFlag("kubeConfig", "FILE", "kubeconfig", str, "--kubeconfig FILE."),
    OriginalFlag("v", "NUMBER", "log_level", _log_level, "--log-level info, from 4 on debug."),
)


class OriginalOption(click.Option):
    """One flag of the original."""

    def __init__(self, original: OriginalFlag) -> None:
        self.original = original
        names = [f"--{original.name}", f"-{original.name}", f"original_{original.name}"]
        super().__init__(names, metavar=original.form, help=original.help, type=str)


class Translated(NamedTuple):
    """What the original's flags say: values of settings, what cannot be, and the flags that mean nothing here."""

    given: Mapping[str, str]
    mistakes: list[Mistake]
    unused: list[str]


def translate(command: str, texts: Mapping[str, str | None], also_given: Collection[str]) -> Translated:
    """What `command` is told by the original's flags.

    Args:
        command: As in `Setting.commands`.
        texts: The value of each flag by its name; None: it was not given.
        also_given: The settings that were given by flags of ours.
    """
    known = {name for name, _ in settings_of(command)}
    given: dict[str, str] = {}
    mistakes: list[Mistake] = []
    unused: list[str] = []
    for original in FLAGS:
        text = texts.get(original.name)
        if text is None:
            continue
        text = text.removeprefix("=")  # `-v=2`, which only Go reads so
        told = f"--{original.name}"
        if original.setting in also_given:
            reason = f"not together with {flag(original.setting)}, which says the same"
            mistakes.append(Mistake(told, shortened(text), reason))
        elif original.setting not in known:
            unused.append(told)
        else:
            try:
                given[original.setting] = original.say(text)
            except ValueError as error:
                mistakes.append(Mistake(told, shortened(text), str(error)))
    return Translated(given, mistakes, unused)
