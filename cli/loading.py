"""Which settings a command takes, and the settings of a command from what a user wrote."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from tas.errors import shortened, without_password
from workers.registry import default_of, with_commands
from workers.registry import takes as worker_takes
from workers.samples.source_spec import OF_KUBERNETES, SourceKind
from workers.settings import EMBEDDED, IN_CLUSTER, Mistake, Setting, Settings, SettingsError, flag, variable


@cache
def _settings(*commands: str) -> Mapping[str, Setting]:
    """Every setting by its name, in the order of the documentation, with what the workers of these commands say."""
    return {each.name: _with_workers(each.name, each.metadata["setting"], commands) for each in fields(Settings)}


def _with_workers(name: str, setting: Setting, commands: Iterable[str]) -> Setting:
    takers = {*setting.commands, *(command for command in commands if worker_takes(command, name))}
    own = {
        command: text
        for command in sorted(commands)
        if (text := default_of(command, name)) not in (None, setting.default)
    }
    return replace(setting, commands=tuple(sorted(takers)), default_of={**setting.default_of, **own})


def every_setting() -> Iterator[tuple[str, Setting]]:
    """Each setting by its name, with all its commands."""
    return iter(_settings("run all", *(f"run {spec.name}" for spec in with_commands())).items())


def settings_of(command: str) -> Iterator[tuple[str, Setting]]:
    """The settings that a command uses, by their names."""
    return ((name, setting) for name, setting in _settings(command).items() if command in setting.commands)


def inputs_of(given: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """The files and folders that a process reads, each with its setting; `given` as in `load_settings`."""
    for name, text in given.items():
        is_file = text != IN_CLUSTER if name == "kubeconfig" else _settings()[name].parse is Path and name != "store"
        if is_file:
            yield name, Path(text)


def takes(command: str, name: str) -> bool:
    """Whether a command uses the setting `name`."""
    return command in _settings(command)[name].commands


def load_settings(command: str, given: Mapping[str, str]) -> Settings:
    """The settings of `command`, where `given` maps names of settings to what a user wrote.

    Raises SettingsError with every invalid setting and every invalid combination.
    """
    mistakes: list[Mistake] = []
    values: dict[str, Any] = {}
    for name, setting in _settings(command).items():
        text = given.get(name, setting.default_for(command))
        try:
            values[name] = None if text is None else setting.parse(text)
        except ValueError as error:
            mistakes.append(Mistake(_label(name), shortened(without_password(text or "")), str(error)))
            values[name] = None
    mistakes += _combined_mistakes(command, values)
    if mistakes:
        raise SettingsError(mistakes)
    return Settings(**values)


def _label(name: str) -> str:
    """The setting in messages: `--log-level (TAS_LOG_LEVEL)`."""
    return f"{flag(name)} ({variable(name)})"


def _combined_mistakes(command: str, values: Mapping[str, Any]) -> Iterator[Mistake]:
    """Settings that do not go together. A value is None if it is absent, or invalid by itself."""
    if takes(command, "kubeconfig"):
        yield from _cluster_mistakes(command, values)
    if takes(command, "source"):
        yield from _source_mistakes(values)
    yield from _inventory_mistakes(command, values)
    yield from _sinks_mistakes(command, values["sinks"])
    yield from _path_mistakes("agents", values["agents"])
    if takes(command, "policies") and values["kubeconfig"] is None:
        yield from _directory_mistakes(command, values["policies"])
    if takes(command, "store") and values["bus"] in (EMBEDDED, None) and (values["replicas"] or 1) > 1:
        yield Mistake(
            _label("replicas"), str(values["replicas"]), "must be 1 with the embedded server, which is a single server"
        )
    listen, health = values["listen"], values["health_listen"]
    if takes(command, "health_listen") and listen is not None and listen == health and listen.port != 0:
        yield Mistake(_label("health_listen"), str(health), f"must not be the extender's address ({flag('listen')})")
    yield from _credential_mistakes(command, values)
    if command == "run resources" and values["node_resource"] == 0:
        yield Mistake(_label("node_resource"), "0", "must be at least 1")
    if command == "run all" and values["kubeconfig"] is None:
        yield from _mistakes_without_a_cluster(values)
    if takes(command, "store"):
        yield from _store_mistakes(values["store"])


def _store_mistakes(store: Path | None) -> Iterator[Mistake]:
    if store is not None and store.exists() and not store.is_dir():
        yield Mistake(_label("store"), shortened(str(store)), "is not a directory")


def _mistakes_without_a_cluster(values: Mapping[str, Any]) -> Iterator[Mistake]:
    for name in ("overwrite_labels", "node_resource"):
        if value := values[name]:
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            yield Mistake(_label(name), shortened(text), f"needs {flag('kubeconfig')}")


def _path_mistakes(name: str, path: Path | None, *, is_directory: bool = False) -> Iterator[Mistake]:
    if path is None:
        return
    if not path.exists():
        reason = "does not exist"
    elif is_directory and not path.is_dir():
        reason = "is not a directory"
    elif is_directory and not os.access(path, os.R_OK | os.X_OK):
        reason = "is not readable"
    elif not is_directory and not (path.is_file() and os.access(path, os.R_OK)):
        reason = "is not a readable file"
    else:
        return
    yield Mistake(_label(name), shortened(str(path)), reason)


def _tls_mistakes(values: Mapping[str, Any]) -> Iterator[Mistake]:
    names = ("cert", "key", "cacert")
    given = [name for name in names if values[name] is not None]
    flags = ", ".join(map(flag, given))
    for name in names:
        path = values[name]
        if path is None:
            if given:
                yield Mistake(_label(name), "", f"must be given, since {flags} is given: all three or none")
        else:
            yield from _path_mistakes(name, path)
    if values["client_names"] and not given:
        text = shortened(",".join(values["client_names"]))
        yield Mistake(_label("client_names"), text, "needs HTTPS: " + ", ".join(map(flag, names)))


_OF_BUS = ("bus_credentials", "bus_token", "bus_cacert", "bus_cert", "bus_key")


def _credential_mistakes(command: str, values: Mapping[str, Any]) -> Iterator[Mistake]:
    """The files of HTTPS and of the bus. The setting of another command has its default."""
    if takes(command, "cert"):
        yield from _tls_mistakes(values)
    for name in _OF_BUS:
        yield from _path_mistakes(name, values[name])
    for name, other in (("bus_cert", "bus_key"), ("bus_key", "bus_cert")):
        if values[name] is None and values[other] is not None:
            yield Mistake(_label(name), "", f"must be given, since {flag(other)} is given: both or none")


_FOR_AGENTS = ("allocations", "outcomes", "annotations")
"""What `inventory` stores besides GPU cards."""


def _inventory_mistakes(command: str, values: Mapping[str, Any]) -> Iterator[Mistake]:
    if command == "run inventory" and not any(values[name] is not False for name in ("cards", *_FOR_AGENTS)):
        needed = " or ".join(f"{flag(name)} on" for name in _FOR_AGENTS)
        yield Mistake(_label("cards"), "off", f"needs {needed}: else there is nothing to store")
    if command == "run inventory" and values["write_annotations"]:
        if values["allocations"] is False:
            yield Mistake(_label("write_annotations"), "on", f"needs {flag('allocations')} on: the amounts of a node")
        if values["annotations"]:
            yield Mistake(
                _label("write_annotations"),
                "on",
                f"cannot be combined with {flag('annotations')} on: others write them",
            )


def _cluster_mistakes(command: str, values: Mapping[str, Any]) -> Iterator[Mistake]:
    kubeconfig = values["kubeconfig"]
    if kubeconfig is None:
        return
    if takes(command, "policies") and values["policies"] is not None:
        name, value = _label("kubeconfig"), shortened(str(kubeconfig))
        yield Mistake(
            name, value, f"cannot be combined with {flag('policies')}: policies come from a cluster or from a directory"
        )
    if isinstance(kubeconfig, Path):
        yield from _path_mistakes("kubeconfig", kubeconfig)


def _source_mistakes(values: Mapping[str, Any]) -> Iterator[Mistake]:
    for spec in values["source"] or ():
        if spec.kind in OF_KUBERNETES and values["kubeconfig"] is None:
            yield Mistake(
                _label("source"), str(spec), f"needs {flag('kubeconfig')}: this source is polled through the API server"
            )
    yield from _remote_write_mistakes(values)
    file = values["source_config"]
    if file is not None and not (file.is_file() and os.access(file, os.R_OK)):
        yield Mistake(_label("source_config"), shortened(str(file)), "is not a readable file")


def _remote_write_mistakes(values: Mapping[str, Any]) -> Iterator[Mistake]:
    names = ("remote_write_cert", "remote_write_key", "remote_write_token")
    receives = any(spec.kind is SourceKind.REMOTE_WRITE for spec in values["source"] or ())
    for name in names:
        if (path := values[name]) is None:
            continue
        if not receives:
            yield Mistake(_label(name), shortened(str(path)), f"needs {flag('source')} {SourceKind.REMOTE_WRITE}=…")
        yield from _path_mistakes(name, path)
    cert, key, _ = names
    for name, other in ((cert, key), (key, cert)):
        if values[name] is None and values[other] is not None:
            yield Mistake(_label(name), "", f"must be given, since {flag(other)} is given: both or none")


def _sinks_mistakes(command: str, file: Path | None) -> Iterator[Mistake]:
    if file is not None:
        yield from _path_mistakes("sinks", file)
    elif command == "run notify":
        yield Mistake(_label("sinks"), "", "must be given: the file with the sinks")


def _directory_mistakes(command: str, directory: Path | None) -> Iterator[Mistake]:
    if directory is None:
        cluster = f", or {flag('kubeconfig')} for a cluster" if takes(command, "kubeconfig") else ""
        yield Mistake(_label("policies"), "", f"must be given: the directory of TASPolicy files{cluster}")
    else:
        yield from _path_mistakes("policies", directory, is_directory=True)


def settings_page() -> str:
    """`docs/reference/settings.md`."""
    lines = [
        "# Settings",
        "",
        "<!-- Made from `workers/settings.py` by `tas docs`: change it there. -->",
        "",
        "Each setting is a flag and an environment variable. The flag overrides the variable; an empty variable counts",
        "as absent. All settings are checked before anything starts: every mistake is printed, and the exit code is 2.",
        "A flag that may be given several times also takes values separated by commas, and so does its variable.",
        "Durations: `90s`, `2m`, `1h30m`. Sizes: `1048576`, `64MiB`.",
    ]
    group = ""
    for name, setting in every_setting():
        if setting.group != group:
            group = setting.group
            lines += [
                "",
                f"## {group}",
                "",
                "| Setting | Value | Default | Used by | Meaning |",
                "|---|---|---|---|---|",
            ]
        # The text goes first: the default itself may depend on the machine that writes this page.
        default = setting.default_text or f"`{setting.default}`"
        for command, own in setting.default_of.items():
            default += f"; `{command}`: `{own}`"
        used_by = ", ".join(f"`{command}`" for command in setting.commands)
        form = setting.form.replace("|", "\\|")
        lines.append(f"| `{flag(name)}`<br>`{variable(name)}` | `{form}` | {default} | {used_by} | {setting.help} |")
    return "\n".join(lines) + "\n"
