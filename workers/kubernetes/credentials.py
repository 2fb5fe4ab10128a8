"""The address and credentials of the API server: from a kubeconfig file, or the service account of this pod."""

import asyncio
import os
import ssl
import time
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from workers.kubernetes.errors import ConfigurationError, UnavailableError
from workers.process.manifests import MAX_BYTES, ManifestError, read_yaml

if TYPE_CHECKING:
    from workers.kubernetes.library import Configuration

REFRESH_SECONDS = 60.0
"""How long a token of a kubeconfig file is used before it is loaded again, from a file or a program.

The library itself reloads the token of a service account as often.
"""

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes mounts the files of a pod's account, in every container."""

_CERTIFICATES = frozenset({"certificate-authority-data", "client-certificate-data", "client-key-data"})
_TOKEN = "token"  # noqa: S105 - the name of a file
_AUTHORITY = "ca.crt"
_ADDRESS = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")


def has_account(account: Path, variables: Mapping[str, str]) -> bool:
    """Whether this process runs in a pod with the files of an account in `account`, and the API server's address."""
    return all(map(variables.get, _ADDRESS)) and all((account / name).is_file() for name in (_TOKEN, _AUTHORITY))


class Credentials:
    """Address, TLS and token for requests.

    Attributes:
        server: The API server's URL, without a slash at the end.
        tls: The TLS context; None for plain HTTP, as on loopback.
        server_name: The name that the server's certificate must have, if not that of the URL.
        proxy: The URL of the proxy in the kubeconfig file.
        expires: When the first certificate that is shown to the server expires, in seconds since 1970; infinite without
            one.
    """

    def __init__(self, configuration: "Configuration", loader: Any) -> None:
        self._configuration = configuration
        self._loader = loader
        self._refreshed_at = time.monotonic()
        self.server: str = (configuration.host or "").rstrip("/")
        self.tls = _tls(configuration) if self.server.startswith("https:") else None
        self.expires = inf if self.tls is None else _expires(configuration)
        self.server_name: str | None = configuration.tls_server_name
        self.proxy: str | None = configuration.proxy

    @classmethod
    async def load(cls, kubeconfig: Path | None, *, account: Path = SERVICE_ACCOUNT) -> "Credentials":
        """The credentials of a kubeconfig file's current context, or of this pod (None): those in `account`.

        Raises ConfigurationError if the credentials cannot be read.
        """
        # Imported here: who only holds a client, such as a type checker's import, needs no reader.
        from workers.kubernetes.library import (  # noqa: PLC0415
            ConfigException,
            Configuration,
            incluster_config,
            kube_config,
        )

        configuration = Configuration()
        loader = None
        try:
            if kubeconfig is None:
                token, authority = (str(account / name) for name in (_TOKEN, _AUTHORITY))
                incluster_config.InClusterConfigLoader(token, authority, environ=dict(os.environ)).load_and_set(
                    configuration
                )
            else:
                # Not by the library's own reader: that reader takes minutes for some numbers and for deep nesting, and
                # its errors quote the user's token.
                path, document = await asyncio.to_thread(_read, kubeconfig)
                node = kube_config.ConfigNode("kubeconfig", document, path)
                loader = kube_config.KubeConfigLoader(config_dict=node, config_base_path=None)
                await loader.load_and_set(configuration)
                _forget_certificates(document)
                if "BearerToken" not in configuration.api_key:
                    # Only certificates, which are in the TLS context for good. If a program has given them, each
                    # refresh would write its key into a file that stays, and leave the file open.
                    loader = None
            return cls(configuration, loader)
        except (ConfigException, ManifestError) as error:
            raise ConfigurationError(f"{_source(kubeconfig)}: {error}") from error
        except Exception as error:  # the library raises any error for an invalid file
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"  # YAML errors have several lines
            raise ConfigurationError(f"{_source(kubeconfig)} cannot be read: {text}") from error
        finally:
            # The library writes the certificates and the private key of a kubeconfig file into temporary files, and
            # deletes them when the process exits: after a kill they would stay. The TLS context has them in memory.
            kube_config._cleanup_temp_files()

    async def headers(self) -> dict[str, str]:
        """The authorization header of a request. Raises UnavailableError if no token can be obtained now."""
        try:
            if self._loader is not None and time.monotonic() - self._refreshed_at > REFRESH_SECONDS:
                await self._loader.load_and_set(self._configuration)
                self._refreshed_at = time.monotonic()
            token = await self._configuration.get_api_key_with_prefix("BearerToken")
        except Exception as error:  # a file that is being replaced, or any error of a token program
            raise UnavailableError(f"no credentials for {self.server}: {error!r}") from error
        return {"Authorization": token} if token else {}

    @property
    def is_loopback(self) -> bool:
        """Whether the API server is on this machine, so that no proxy is used."""
        host = urlsplit(self.server).hostname or ""
        return host in ("localhost", "::1") or host.startswith("127.")


def _source(kubeconfig: Path | None) -> str:
    return "the service account of this pod" if kubeconfig is None else str(kubeconfig)


def _read(kubeconfig: Path) -> tuple[str, object]:
    """The path of a kubeconfig file and its content. Blocks. Raises OSError, ManifestError."""
    path = kubeconfig.expanduser()
    with path.open("rb") as file:
        documents = read_yaml(file.read(MAX_BYTES + 1))
    if len(documents) != 1:
        raise ManifestError(f"{len(documents)} YAML documents: must be one")
    return str(path), documents[0]


def _forget_certificates(document: object) -> None:
    """Removes the certificates from a kubeconfig document, so that a refresh of the token writes no files."""
    for kind, kinds in (("cluster", "clusters"), ("user", "users")):
        entries = document.get(kinds) if isinstance(document, dict) else None
        for entry in entries if isinstance(entries, list) else ():
            fields = entry.get(kind) if isinstance(entry, dict) else None
            if isinstance(fields, dict):
                for name in _CERTIFICATES & fields.keys():
                    del fields[name]


def _expires(configuration: "Configuration") -> float:
    if not configuration.cert_file:
        return inf
    from tas.certificates.findings import first_expiry_in  # noqa: PLC0415 - with cryptography: pods show a token

    return first_expiry_in(Path(configuration.cert_file).read_bytes()) or inf


def _tls(configuration: "Configuration") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    context.options |= ssl.OP_NO_RENEGOTIATION  # with TLS 1.2 a server may ask for handshakes without end
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
