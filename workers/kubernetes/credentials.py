"""Where the API server is and who we are to it: a kubeconfig file, or the account of the pod we run in."""

import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from workers.kubernetes.errors import ConfigurationError, UnavailableError

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration

REFRESH_SECONDS = 60.0
"""How long a token of a kubeconfig file is used before it is asked for again: it may come from a file or a program.

The token of a pod's account is read again as often, by the library itself.
"""


class Credentials:
    """What is needed to ask.

    Attributes:
        server: The API server's URL, without a slash at the end.
        tls: How its certificate is checked and ours is shown; None over plain HTTP, as on loopback.
        server_name: The name that its certificate must have, if not that of the URL.
        proxy: The URL of a proxy that the kubeconfig file names.
    """

    def __init__(self, configuration: "Configuration", loader: Any) -> None:
        self._configuration = configuration
        self._loader = loader
        self._refreshed_at = time.monotonic()
        self.server: str = (configuration.host or "").rstrip("/")
        self.tls = _tls(configuration) if self.server.startswith("https:") else None
        self.server_name: str | None = configuration.tls_server_name
        self.proxy: str | None = configuration.proxy

    @classmethod
    async def load(cls, kubeconfig: Path | None) -> "Credentials":
        """Those of a kubeconfig file's current context, or of the pod we run in (None).

        Raises:
            ConfigurationError: if they cannot be read.
        """
        # Only here: it takes 60 MB, and an extender, which shares the command line with us, asks no API server.
        from kubernetes_asyncio.client import Configuration  # noqa: PLC0415
        from kubernetes_asyncio.config import (  # noqa: PLC0415
            ConfigException,
            load_incluster_config,
            load_kube_config,
        )

        configuration = Configuration()
        loader = None
        try:
            if kubeconfig is None:
                load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            else:
                loader = await load_kube_config(
                    config_file=str(kubeconfig), client_configuration=configuration, persist_config=False
                )
            return cls(configuration, loader)
        except ConfigException as error:
            raise ConfigurationError(f"{_source(kubeconfig)}: {error}") from error
        except Exception as error:  # the library raises whatever a broken file makes it stumble on
            told = f"{type(error).__name__}: {' '.join(str(error).split())}"  # YAML's are of several lines
            raise ConfigurationError(f"{_source(kubeconfig)} cannot be read: {told}") from error

    async def headers(self) -> dict[str, str]:
        """Who we are, for one request. Raises UnavailableError where that cannot be told now."""
        try:
            if self._loader is not None and time.monotonic() - self._refreshed_at > REFRESH_SECONDS:
                await self._loader.load_and_set(self._configuration)
                self._refreshed_at = time.monotonic()
            token = await self._configuration.get_api_key_with_prefix("BearerToken")
        except Exception as error:  # a file that is being replaced, or any program that was asked for a token
            raise UnavailableError(f"no credentials for {self.server}: {error!r}") from error
        return {"Authorization": token} if token else {}

    @property
    def is_loopback(self) -> bool:
        """Whether the API server is on this machine, where no proxy can be meant."""
        host = urlsplit(self.server).hostname or ""
        return host in ("localhost", "::1") or host.startswith("127.")


def _source(kubeconfig: Path | None) -> str:
    return "this pod's account" if kubeconfig is None else str(kubeconfig)


def _tls(configuration: "Configuration") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
