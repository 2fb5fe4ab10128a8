"""The API server over plain HTTPS: without a client library nothing caches or retries unnoticed."""

import http.client
import json
import ssl
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

Object = dict[str, Any]
MERGE_PATCH = "application/merge-patch+json"

ANSWER_SECONDS = 120.0
"""How long a busy machine may need for an answer, such as that to the deletion of hundreds of pods."""

IDLE_SECONDS = 30.0
"""A connection that was idle for longer is opened again: the API server closes it after 90 s."""


class ApiError(Exception):
    """The API server answered with a status other than 2xx."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        super().__init__(f"{method} {path}: {status} {body[:500]}")
        self.status = status


class Api:
    """One user's connection to the API server, kept open while requests follow each other."""

    def __init__(self, port: int, *, authority: Path, certificate: Path, key: Path) -> None:
        context = ssl.create_default_context(cafile=str(authority))
        context.load_cert_chain(certificate, key)
        self._lock = threading.Lock()  # an extender under test may bind pods from its own thread
        self._connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=ANSWER_SECONDS, context=context)
        self._used = time.monotonic()

    def get(self, path: str, **query: str) -> Object:
        """The object or list at this path."""
        return self.request("GET", f"{path}?{urlencode(query)}" if query else path)

    def create(self, path: str, body: Object) -> Object:
        """The new object as the API server completed it."""
        return self.request("POST", path, body)

    def patch(self, path: str, body: Object) -> Object:
        """The object after a JSON merge patch."""
        return self.request("PATCH", path, body, content_type=MERGE_PATCH)

    def delete(self, path: str) -> None:
        """Deletes an object, or all objects of a collection, without a grace period."""
        self.request("DELETE", path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})

    def request(
        self,
        method: str,
        path: str,
        body: Object | list[Object] | None = None,
        *,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> Object:
        """The decoded answer; text that is not JSON, such as that of /readyz, under the key `text`.

        Raises:
            ApiError: if the status is not 2xx; OSError if the server cannot be reached.
        """
        payload = None if body is None else json.dumps(body)
        with self._lock:
            response, text = self._exchange(method, path, payload, {"Content-Type": content_type} | dict(headers or {}))
        if not 200 <= response.status < 300:
            raise ApiError(method, path, response.status, text)
        if response.getheader("Content-Type", "").startswith("application/json"):
            answer: Object = json.loads(text)
            return answer
        return {"text": text}

    def _exchange(
        self, method: str, path: str, payload: str | None, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPResponse, str]:
        if time.monotonic() - self._used > IDLE_SECONDS:
            self._connection.close()
        try:
            self._connection.request(method, path, body=payload, headers=dict(headers))
            response = self._connection.getresponse()
            text = response.read().decode()
        except (OSError, http.client.HTTPException):
            self._connection.close()  # the next request opens a new one
            raise
        self._used = time.monotonic()
        return response, text

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()
