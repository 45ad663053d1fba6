"""HTTP client of LMCache's coordinator, which runs our controller (`lpc lmcache coordinator`)."""

import base64
import json
import urllib.parse
import urllib.request
from typing import Any, Final

TIMEOUT_S: Final = 5.0


class Coordinator:
    """Posts JSON to the coordinator.

    Args:
        url: ``http://[lpc:TOKEN@]host:port`` of the coordinator.
    """

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self._base = urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "", "", ""))
        self._headers = {"Content-Type": "application/json"}
        if parts.password:
            secret = f"{parts.username or ''}:{urllib.parse.unquote(parts.password)}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(secret).decode()}"
        # The coordinator is in the cluster: ignore the environment's proxy.
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def post(self, path: str, body: dict[str, Any]) -> None:
        """Post to a path. Raises OSError without an answer, HTTPError (to be closed by the caller) for an error status."""
        request = urllib.request.Request(self._base + path, json.dumps(body).encode(), self._headers, method="POST")
        with self._open(request, timeout=TIMEOUT_S):
            pass
