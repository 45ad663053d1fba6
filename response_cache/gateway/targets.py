"""The methods and paths that are proxied. Paths are compared and forwarded as received, never decoded.

ASGI does not tell an empty query from none: ``/v1/models?`` is forwarded as ``/v1/models``.
"""

import re
from collections.abc import Iterable
from typing import Final

from lpc.wire.headers import Headers
from response_cache.gateway.errors import GatewayError

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
PROMPTS: Final = frozenset({CHAT, COMPLETIONS, RESPONSES, "/v1/messages"})
"""Paths whose prompts engines cache."""
OWN: Final = "/lpc/"
"""Prefix of the gateway's own paths."""
FREQUENT: Final = "/lpc/v1/frequent"
"""Returns the questions that the client asked most often yesterday, in its scope."""

PROXIED: Final = (
    f"POST {CHAT}",
    f"POST {COMPLETIONS}",
    f"POST {RESPONSES}",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /v1/embeddings",
    "POST /v1/score",
    "POST /v1/rerank",
    "POST /v2/rerank",
    "POST /score",
    "POST /rerank",
    "POST /classify",
    "POST /pooling",
    "POST /tokenize",
    "POST /detokenize",
    "GET /v1/models",
    "GET /v1/models/*",
    "GET /v1/models/*/*",
    "GET /health",
    "GET /version",
)
"""Proxied by default. ``*`` matches one segment of a path. Bodies are JSON and receive the tenant's cache salt.

Paths of audio are missing: their forms cannot carry a salt (vLLM 0.33), so one tenant could measure another's recordings.
"""

JSON_PATHS: Final = frozenset(entry.partition(" ")[2] for entry in PROXIED if entry.startswith("POST "))
"""Paths by default whose answers are JSON or a stream, never empty."""

ENTRY: Final = re.compile(r"[A-Z]+ (?:/(?:\*|(?!\.\.?(?:/|$))[A-Za-z0-9._~-]+))+")
"""Syntax of an entry: a method, a space and a path without dot segments."""
_PATH: Final = re.compile(rb"(?:/(?:[A-Za-z0-9._~!$&'()*+,=:@-]|%[0-9A-Fa-f]{2})+)+/?|/")
"""pchar of RFC 3986 without ``;``, because some servers cut off the rest of a segment after it."""
_DOTS: Final = re.compile(rb"/\.\.?(?:/|$)")
_AMBIGUOUS: Final = re.compile(rb"%(?:2[EeFf5]|5[Cc]|[01].|7[Ff])")
"""Percent-encoded dots, slashes, backslashes, percent signs and control characters: servers decode them at different times."""


def path_of(raw_path: bytes, query: bytes) -> str:
    """Return the path of a target as received. Raises GatewayError (400) if servers could interpret it differently."""
    if not _PATH.fullmatch(raw_path) or _DOTS.search(raw_path) or _AMBIGUOUS.search(raw_path) or b"#" in query:
        raise GatewayError(
            400,
            "the request's target must be a path that begins with /, without dot segments, empty segments, or percent-encoded "
            "dots, slashes and percent signs: send the path as the engine's API documents it",
        )
    return raw_path.decode("ascii")


def is_form(path: str, headers: Headers) -> bool:
    """Return whether a request to one of the operator's additional paths has a form, which the gateway does not read."""
    kinds = {value.partition(b";")[0].strip().lower() for name, value in headers if name == b"content-type"}
    return path not in JSON_PATHS and kinds == {b"multipart/form-data"}


class Paths:
    """The methods and paths that are proxied.

    ``more``: entries in addition to `PROXIED`. GET implies HEAD; OPTIONS is allowed on every path.
    """

    def __init__(self, more: Iterable[str] = ()) -> None:
        self._methods: dict[tuple[str, ...], set[str]] = {}
        for entry in (*PROXIED, *more):
            method, _, path = entry.partition(" ")
            known = self._methods.setdefault(tuple(path.split("/")), {"OPTIONS"})
            known |= {"GET", "HEAD"} if method == "GET" else {method}

    def check(self, method: str, path: str) -> None:
        """Raise GatewayError (404, 405) unless the request is proxied."""
        segments = path.split("/")
        allowed: set[str] = set()
        for listed, known in self._methods.items():
            if len(listed) == len(segments) and all(map(_matches, listed, segments)):
                allowed |= known
        if not allowed:
            raise GatewayError(404, "the gateway does not proxy this path: add it to LPC_GATEWAY_PATHS")
        if method not in allowed:
            methods = ", ".join(sorted(allowed))
            raise GatewayError(405, f"the gateway proxies this path for {methods} only", (b"allow", methods.encode()))


def _matches(listed: str, segment: str) -> bool:
    return segment == listed or (listed == "*" and segment != "")
