"""The path of an HTTP request as it arrived. A proxy authenticates and forwards these bytes.

A decoded path (`scope["path"]`) or a rebuilt one (`request.url`) can differ from the bytes that are forwarded.
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from lpc.errors import LpcError

_PATH: Final = re.compile(rb"/(?!/)(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/]|%(?!00)[0-9A-Fa-f]{2})*")
"""Characters of RFC 3986, section 3.3. A second slash at the start would begin a host's name."""
_QUERY: Final = re.compile(rb"[!\"$-~]*")
"""Visible ASCII without "#"."""
_SEPARATORS: Final = re.compile(rb"[/\\]")


class BadTarget(LpcError):
    """The request's target cannot be forwarded. The message does not quote it."""


def raw_path(scope: Mapping[str, Any]) -> bytes:
    """Return the path of an ASGI request as it arrived, still percent-encoded.

    Raises:
        BadTarget: the path does not begin with one "/", has a dot segment (plain or encoded), or a character outside RFC 3986.
    """
    path: bytes = scope.get("raw_path") or b""
    if not _PATH.fullmatch(path):
        raise BadTarget(
            'the request\'s path must begin with one "/" and hold only characters that a URL allows: encode the others'
        )
    if not {b".", b".."}.isdisjoint(_SEPARATORS.split(unquote_to_bytes(path))):
        raise BadTarget('the request\'s path must not hold "." or ".." as a segment: send the path that they lead to')
    return path


def raw_target(scope: Mapping[str, Any]) -> bytes:
    """Return path and query as they arrived, for ``httpx.URL.copy_with(raw_path=...)``. Raises BadTarget."""
    path, query = raw_path(scope), scope.get("query_string", b"")
    if not _QUERY.fullmatch(query):
        raise BadTarget("the request's query holds characters that a URL does not allow: encode them")
    return path + b"?" + query if query else path
