"""The file of `--sinks`, read at the start."""

from pathlib import Path

from tas.notifying.config import SinkConfig, SinksConfigError, parse_sinks
from workers.process.errors import StartError
from workers.process.manifests import MAX_BYTES, ManifestError, read_yaml


def read_sinks(path: Path) -> dict[str, SinkConfig]:
    """The sinks in a file, by name. Blocks. Raises StartError with all mistakes of the file."""
    origin = f"sinks {path}"
    try:
        with path.open("rb") as file:
            documents = read_yaml(file.read(MAX_BYTES + 1))
        return parse_sinks(origin, documents[0] if len(documents) == 1 else documents or None)
    except OSError as error:
        raise StartError(f"{origin}: {error.strerror or error}") from error
    except ManifestError as error:
        raise StartError(f"{origin}: {error}") from error
    except SinksConfigError as error:
        raise StartError(str(error)) from error
