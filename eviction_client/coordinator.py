"""LMCache's coordinator, with our controller in it (`lpc lmcache coordinator`), as the plug-in in an engine calls it."""

import base64
import json
import urllib.parse
import urllib.request
from typing import Any, Final

TIMEOUT_S: Final = 5.0


class Coordinator:
    """Posts JSON.

    Args:
        url: of the coordinator, ``http://[lpc:TOKEN@]host:port``; the password is its token.
    """

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self._base = urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "", "", ""))
        self._headers = {"Content-Type": "application/json"}
        if parts.password:
            secret = f"{parts.username or ''}:{urllib.parse.unquote(parts.password)}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(secret).decode()}"
        # It is in the cluster: no proxy of this environment is on the way.
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def post(self, path: str, body: dict[str, Any]) -> None:
        """Post to a path. Raises OSError: it does not answer; HTTPError (closed by its catcher): it refuses."""
        request = urllib.request.Request(self._base + path, json.dumps(body).encode(), self._headers, method="POST")
        with self._open(request, timeout=TIMEOUT_S):
            pass
