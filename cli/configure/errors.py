"""How the commands of `tas configure` end: each expected error as one line, with its exit status."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from cli.as_json import print_json
from cli.configure.files import FilesError, NotRestoredError
from tas.errors import InvalidInputError
from tas.values.duration import DurationError
from workers.http.tls_files import TlsError
from workers.process.manifests import ManifestError

EXIT_DIFFERENCES = 3


class ConfigureError(click.ClickException):
    """Ends the command with one line; every file is as before."""


class SomeNotRestoredError(ConfigureError):
    """Ends the command with one line that names files."""

    exit_code = 4


def errors_shown(action: Callable[..., int]) -> Callable[..., int]:
    """Each expected error as one line with its exit status; with `--json` also as JSON."""

    @wraps(action)
    def run(*args: Any, **given: Any) -> int:
        try:
            return _translated(action, *args, **given)
        except click.ClickException as error:
            if given.get("as_json"):
                print_json({"error": error.format_message(), "exit_code": error.exit_code})
            raise

    return run


def _translated(action: Callable[..., int], *args: Any, **given: Any) -> int:
    try:
        return action(*args, **given)
    except InvalidInputError as error:
        if error.subject == "options":
            raise click.UsageError(f"{error.field} = {error.value}: {error.reason}") from error
        raise ConfigureError(str(error)) from error
    except DurationError as error:
        raise click.UsageError(str(error)) from error
    except NotRestoredError as error:
        raise SomeNotRestoredError(str(error)) from error
    except (FilesError, ManifestError, TlsError) as error:
        raise ConfigureError(str(error)) from error
    except PermissionError as error:  # of a file that is looked for: those of reads and writes are FilesError
        raise ConfigureError(f"{error.filename}: {error.strerror}") from error
