"""What the commands of `tas certs` have in common."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from cli.configure.files import FilesError
from tas.certificates.findings import SOON
from tas.errors import InvalidInputError
from workers.http.tls_files import TlsError


def errors_shown(action: Callable[..., int]) -> Callable[..., int]:
    """Each expected error as one line."""

    @wraps(action)
    def run(**given: Any) -> int:
        try:
            return action(**given)
        except (FilesError, InvalidInputError, TlsError) as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            if error.filename is None:
                raise  # of standard output
            raise click.ClickException(f"{error.filename}: {error.strerror}") from error

    return run


def directory() -> click.Argument:
    """The folder with the certificates."""
    return click.Argument(["directory"], metavar="DIR", type=click.Path(path_type=Path, file_okay=False))


def before() -> click.Option:
    """When a certificate is due."""
    return click.Option(
        ["--before"], type=click.IntRange(min=0), metavar="DAYS", default=SOON.days, show_default=True,
        help="A certificate that expires within so many days is due for renewal.",
    )  # fmt: skip
