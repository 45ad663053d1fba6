"""The raw path of an HTTP request. A proxy must check the same bytes that it forwards.

A decoded path (`scope["path"]`) or a rebuilt one (`request.url`) can differ from them.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from lpc.errors import LpcError

_PATH: Final = re.compile(rb"/(?!/)(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/]|%(?!00)[0-9A-Fa-f]{2})*")
"""Characters of RFC 3986, section 3.3. A second slash at the start would begin a host name."""
_QUERY: Final = re.compile(rb"[!\"$-~]*")
"""Visible ASCII without "#"."""
_SEPARATORS: Final = re.compile(rb"[/\\]")


_ABSOLUTE: Final = re.compile(rb"[Hh][Tt][Tt][Pp][Ss]?://[A-Za-z0-9\-._~:\[\]%]+(/.*)?", re.DOTALL)
"""Absolute form (RFC 9112, section 3.2.2), without a user. The scheme and host are not forwarded, nor is the Host field."""


class BadTarget(LpcError):
    """The request's target is not allowed. The message does not quote it."""


def origin_form(path: bytes) -> bytes:
    """Return the path of a target in absolute form, such as ``http://host/path``; any other target unchanged."""
    found = _ABSOLUTE.fullmatch(path)
    return path if found is None else found[1] or b"/"


def check_framing(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise BadTarget if a request has two lengths: a proxy before this one may have used the other (RFC 9112, section 6.1)."""
    names = {name.lower() for name, _ in headers}
    if {b"transfer-encoding", b"content-length"} <= names:
        raise BadTarget("the request has Transfer-Encoding and Content-Length: send one of them")


def raw_path(scope: Mapping[str, Any]) -> bytes:
    """Return the raw, percent-encoded path of an ASGI request.

    Raises:
        BadTarget: the path does not begin with one "/", has a dot segment (plain or encoded), or a character outside RFC 3986.
    """
    path = origin_form(scope.get("raw_path") or b"")
    if not _PATH.fullmatch(path):
        raise BadTarget(
            'the request\'s path must begin with one "/" and contain only characters allowed in a URL: encode the others'
        )
    if not {b".", b".."}.isdisjoint(_SEPARATORS.split(unquote_to_bytes(path))):
        raise BadTarget('the request\'s path must not contain "." or ".." as a segment: send the resolved path')
    return path


def raw_target(scope: Mapping[str, Any]) -> bytes:
    """Return raw path and query, for ``httpx2.URL.copy_with(raw_path=...)``. Raises BadTarget."""
    path, query = raw_path(scope), scope.get("query_string", b"")
    if not _QUERY.fullmatch(query):
        raise BadTarget("the request's query contains characters not allowed in a URL: encode them")
    return path + b"?" + query if query else path
