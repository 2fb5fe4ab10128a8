"""The readers of credentials of kubernetes_asyncio, loaded without the rest of that package.

Each of its modules loads the whole package, with a class for each kind of object: 0.4 s and 60 MB. TAS sends raw JSON,
and uses only the readers of a kubeconfig file and of a service account. These are a copy of our own: whoever imports
kubernetes_asyncio later, such as an extension, gets the whole package.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType

_PACKAGE = "kubernetes_asyncio"
_CLIENT = f"{_PACKAGE}.client"


@contextmanager
def _without_models() -> Iterator[None]:
    """Within the body the modules of the package load only what they name, unless the package is loaded already."""
    if _PACKAGE in sys.modules:
        yield
        return
    try:
        _stand_in(_PACKAGE)
        client = _stand_in(_CLIENT)
        # What the readers import from there. They need the second one only for functions that TAS does not call.
        client.__dict__["Configuration"] = import_module(f"{_CLIENT}.configuration").Configuration
        client.__dict__["ApiClient"] = object
        yield
    finally:
        for name in [name for name in sys.modules if name == _PACKAGE or name.startswith(f"{_PACKAGE}.")]:
            del sys.modules[name]


def _stand_in(name: str) -> ModuleType:
    """A package whose modules can be imported, and whose own code does not run."""
    spec = find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    sys.modules[name] = module_from_spec(spec)
    return sys.modules[name]


with _without_models():
    from kubernetes_asyncio.client.configuration import Configuration
    from kubernetes_asyncio.config import ConfigException, incluster_config, kube_config

__all__ = ["ConfigException", "Configuration", "incluster_config", "kube_config"]
