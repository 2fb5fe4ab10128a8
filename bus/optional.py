"""Packages that a library imports if they are installed, although TAS uses nothing of what it then offers."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(package: str) -> Iterator[None]:
    """Within the body an import of `package` fails, also if the package is loaded: so order changes nothing."""
    loaded = sys.modules.get(package)
    sys.modules[package] = None  # type: ignore[assignment] # the import system then raises ImportError
    try:
        yield
    finally:
        del sys.modules[package]
        if loaded is not None:
            sys.modules[package] = loaded
