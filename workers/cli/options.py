"""Commands whose options are made from the settings."""

import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any

import click
import structlog
from click.core import ParameterSource

from workers.cli import original as original_flags
from workers.cli.original import OriginalOption, Translated, translate
from workers.cli.settings import Mistake, Setting, Settings, SettingsError, flag, settings_of, variable
from workers.logs import configure_logging
from workers.runtime import EXIT_CANNOT_START

log = structlog.get_logger("tas")

Body = Callable[..., int | None]


class SettingOption(click.Option):
    """One setting as an option of one command: its text is read by `Settings`, not here."""

    def __init__(self, name: str, setting: Setting, command: str) -> None:
        self.setting = setting
        told = " ".join((setting.help.replace("`", ""), f"[{variable(name)}; {_default(setting, command)}]"))
        original = [f"-{name}"] if command in original_flags.COMMANDS and name in original_flags.SAME else []
        super().__init__(
            [flag(name), *original],
            metavar=setting.form,
            help=told,
            envvar=variable(name),
            type=_Texts(),
            multiple=setting.repeated,
            callback=_joined if setting.repeated else None,
        )


class _Texts(click.types.StringParamType):
    """Text; of a repeated flag the variable holds several, separated as everywhere."""

    envvar_list_splitter = ","


def _joined(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> str:
    """The values of a repeated flag as one text, which is how settings are given."""
    return ",".join(values)


def _default(setting: Setting, command: str) -> str:
    default = setting.told_default(command)
    return f"default: {default}" if default else "no default"


class SettingsCommand(click.Command):
    """A command that gets a `Settings` object, and tells its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the command's own options first, then each group of settings."""
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
            with formatter.section("As the original has it"):
                formatter.write_dl(originals)


def settings_command(
    name: str, *, settings_as: str | None = None, params: Iterable[click.Parameter] = (), **known: Any
) -> Callable[[Body], SettingsCommand]:
    """Makes a function `(settings, **params) -> exit code` the command `name`.

    `settings_as` is the command's name in `Setting.commands`, if it is another one. All mistakes in the settings are
    told together, and end the process with code 2.
    """
    command = settings_as or name

    def decorate(body: Body) -> SettingsCommand:
        def callback(**values: Any) -> None:
            given = {setting: values.pop(setting) for setting, _ in settings_of(command)}
            original = _originally(command, {one.name: values.pop(f"original_{one.name}") for one in originals})
            # An empty variable counts as absent, which is how deployments usually leave one out.
            given = {key: text for key, text in given.items() if text} | dict(original.given)
            settings = _load(command, given, original.mistakes)
            if original.unused:
                configure_logging(settings.log_format, settings.log_level)
                log.warning("flags_unused", flags=original.unused, command=f"tas {command}")
            sys.exit(body(settings, **values))

        originals = original_flags.FLAGS if command in original_flags.COMMANDS else ()
        options: list[click.Option] = [SettingOption(setting, what, command) for setting, what in settings_of(command)]
        options += map(OriginalOption, originals)
        known.setdefault("help", body.__doc__)
        known.setdefault("context_settings", {"max_content_width": 100})
        return SettingsCommand(name, callback=callback, params=[*params, *options], **known)

    return decorate


def _originally(command: str, texts: Mapping[str, str | None]) -> Translated:
    """What the original's flags say on this command line."""
    context = click.get_current_context()
    also_given = [
        name for name, _ in settings_of(command) if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    return translate(command, texts, also_given)


def _load(command: str, given: Mapping[str, str], mistakes: list[Mistake]) -> Settings:
    """The settings; or the end of the process, with these mistakes and all others."""
    settings = None
    try:
        settings = Settings.load(command, given)
    except SettingsError as error:
        mistakes = [*mistakes, *error.mistakes]
    if settings is not None and not mistakes:
        return settings
    for mistake in mistakes:
        click.echo(f"tas {command}: {mistake}", err=True)
    sys.exit(EXIT_CANNOT_START)
