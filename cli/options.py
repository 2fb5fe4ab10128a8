"""Commands whose options are made from the settings."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from cli import original as original_flags
from cli.loading import inputs_of, load_settings, settings_of
from cli.original import OriginalOption, Translated, translate
from cli.output import echo
from tas.errors import shortened
from workers.process.errors import EXIT_CANNOT_START
from workers.process.log_form import LogFormat, LogLevel
from workers.settings import Mistake, Setting, Settings, SettingsError, flag, variable

PORT = "HTTP_PORT"
"""Counts for `tas run agents`."""

LOG_LEVEL = "LOG_LEVEL"
LOG_LEVEL_OF = ("run agents", "run all", "run extender", "run gpu")
"""The commands for which `LOG_LEVEL` counts: those that answer a scheduler."""

LEVELS = {
    "TRACE": LogLevel.DEBUG,
    "DEBUG": LogLevel.DEBUG,
    "INFO": LogLevel.INFO,
    "WARNING": LogLevel.WARNING,
    "ERROR": LogLevel.ERROR,
    "ALERT": LogLevel.ERROR,
}
"""The levels of `LOG_LEVEL`, in any case."""


class Environment(NamedTuple):
    """Settings by name, as a user would write them, the mistakes, and what is ignored with the reason."""

    given: Mapping[str, str]
    mistakes: list[Mistake]
    ignored: list[Mistake]


def settings_of_environment(command: str, environment: Mapping[str, str]) -> Environment:
    """The settings that the variables of the framework give.

    As there, a port that is none is a mistake, and a level that is none does not count.
    """
    given: dict[str, str] = {}
    mistakes: list[Mistake] = []
    ignored: list[Mistake] = []
    if command == "run agents" and (port := environment.get(PORT)):
        if port.isascii() and port.isdigit() and 0 < int(port) < 65536:
            given["listen"] = f":{int(port)}"  # every address of the pod, as in the framework
        else:
            mistakes.append(Mistake(PORT, shortened(port), "must be a port from 1 to 65535"))
    if command in LOG_LEVEL_OF and (text := environment.get(LOG_LEVEL)):
        if (level := LEVELS.get(text.upper())) is not None:
            given["log_level"] = level.value
        else:
            ignored.append(Mistake(LOG_LEVEL, shortened(text), f"must be {', '.join(LEVELS)}: the default counts"))
    return Environment(given, mistakes, ignored)


Body = Callable[..., int | None]

FILE_POLL_SECONDS = 0.2


class SettingOption(click.Option):
    """A setting as an option of a command. `Settings` parses the text."""

    def __init__(self, name: str, setting: Setting, command: str) -> None:
        self.setting = setting
        help_text = " ".join((setting.help.replace("`", ""), f"[{variable(name)}; {_default(setting, command)}]"))
        original = [f"-{name}"] if command in original_flags.COMMANDS and name in original_flags.SAME else []
        super().__init__(
            [flag(name), *original],
            metavar=setting.form,
            help=help_text,
            envvar=variable(name),
            type=_Texts(),
            multiple=setting.repeated,
            callback=_join if setting.repeated else None,
        )


class _Texts(click.types.StringParamType):
    """Text; the variable of a repeated flag has several values, separated by commas."""

    envvar_list_splitter = ","


def _join(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> str:
    return ",".join(values)


def _default(setting: Setting, command: str) -> str:
    default = setting.shown_default(command)
    return f"default: {default}" if default else "no default"


class SettingsCommand(click.Command):
    """A command with a `Settings` object, whose help lists the options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options that are not settings first, then each group of settings."""
        shown = [(option, record) for option in self.get_params(ctx) if (record := option.get_help_record(ctx))]
        own = [record for option, record in shown if not isinstance(option, SettingOption | OriginalOption)]
        if own:
            with formatter.section("Options"):
                formatter.write_dl(own)
        settings = [(option.setting.group, record) for option, record in shown if isinstance(option, SettingOption)]
        for group, records in groupby(settings, key=lambda item: item[0]):
            with formatter.section(group):
                formatter.write_dl([record for _, record in records])
        originals = [record for option, record in shown if isinstance(option, OriginalOption)]
        if originals:
            with formatter.section("Flags of the original"):
                formatter.write_dl(originals)


def settings_command(
    name: str, *, settings_as: str | None = None, params: Iterable[click.Parameter] = (), **attributes: Any
) -> Callable[[Body], SettingsCommand]:
    """Makes a function `(settings, **params) -> exit code` the command `name`.

    `settings_as` is the command's name in `Setting.commands`, if that differs from `name`. Invalid settings are all
    printed, and the process exits with 2.
    """
    command = settings_as or name

    def decorate(body: Body) -> SettingsCommand:
        def callback(**values: Any) -> None:
            given = {setting: values.pop(setting) for setting, _ in settings_of(command)}
            original = _translate(command, {flag.name: values.pop(f"original_{flag.name}") for flag in originals})
            # An empty variable counts as absent: deployments often unset a variable so.
            given = {key: text for key, text in given.items() if text} | dict(original.given)
            given |= original_flags.defaults_in_a_pod(command, given, _by_flag(command))
            framework = settings_of_environment(command, os.environ)
            # A setting of our own counts before a variable of the framework.
            mistakes = [*original.mistakes, *(framework.mistakes if "listen" not in given else ())]
            if given.get("wait_for_files") == "on":
                _wait_for_files(given)
            settings = _load(command, {**framework.given, **given}, mistakes)
            ignored = framework.ignored if "log_level" not in given else []
            if original.unused or ignored:
                _log_unused(settings, command, original.unused, ignored)
            sys.exit(body(settings, **values))

        originals = original_flags.flags_of(command)
        options: list[click.Option] = [SettingOption(name, setting, command) for name, setting in settings_of(command)]
        options += map(OriginalOption, originals)
        attributes.setdefault("help", body.__doc__)
        attributes.setdefault("context_settings", {"max_content_width": 100})
        return SettingsCommand(name, callback=callback, params=[*params, *options], **attributes)

    return decorate


def _translate(command: str, texts: Mapping[str, str | None]) -> Translated:
    return translate(command, texts, _by_flag(command))


def _by_flag(command: str) -> list[str]:
    """The settings that the command line gives by their own flags."""
    context = click.get_current_context()
    return [
        name for name, _ in settings_of(command) if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]


def _log_unused(settings: Settings, command: str, flags: list[str], ignored: list[Mistake]) -> None:
    import structlog

    from workers.process.logs import configure_logging

    configure_logging(settings.log_format, settings.log_level)
    log = structlog.get_logger("tas")
    if flags:
        log.warning("flags_unused", flags=flags, command=f"tas {command}")
    for each in ignored:
        log.warning("variable_ignored", variable=each.setting, value=each.value, reason=each.reason)


def _wait_for_files(given: Mapping[str, str]) -> None:
    """Waits until all files and folders of the settings exist; logs each that is missing."""
    import structlog

    from workers.process.logs import configure_logging

    log = structlog.get_logger("tas")
    for name, path in inputs_of(given):
        if path.exists():
            continue
        configure_logging(LogFormat.AUTO, LogLevel.INFO)
        log.info("waits_for_file", setting=f"{flag(name)} ({variable(name)})", file=str(path))
        while not path.exists():
            time.sleep(FILE_POLL_SECONDS)


def _load(command: str, given: Mapping[str, str], mistakes: list[Mistake]) -> Settings:
    """The settings; prints all mistakes and exits if there are any."""
    settings = None
    try:
        settings = load_settings(command, given)
    except SettingsError as error:
        mistakes = [*mistakes, *error.mistakes]
    if settings is not None and not mistakes:
        return settings
    for mistake in mistakes:
        echo(f"tas {command}: {mistake}", err=True)
    sys.exit(EXIT_CANNOT_START)
