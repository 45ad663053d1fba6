"""Pages that commands read over HTTP: bounded, with the URL's user and password, which no message repeats."""

import base64
import http.client
import ipaddress
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from typing import Final, NamedTuple

from lpc.errors import LpcError, UsageError
from lpc.wire.addresses import url_with_brackets, without_secrets

TIMEOUT_S: Final = 20.0
"""Time limit of a connection and of each part of an answer."""
WHOLE_S: Final = 60.0
MOST_BYTES: Final = 64 << 20
CHUNK_BYTES: Final = 1 << 20
HINTS: Final = {
    401: "give user and password in the URL: http://user:password@host",
    403: "this user, or this machine, may not read it",
    407: "the proxy in http_proxy or https_proxy wants a password",
}


ELSEWHERE: Final = "it redirects in a circle, or to an address that is not HTTP"


class PageError(LpcError):
    """A page cannot be read."""


class Page(NamedTuple):
    """The body of an answer, and its type in lower case (``text/plain``)."""

    body: bytes
    kind: str


class Address(NamedTuple):
    """A parsed URL. ``url``: without user and password; ``credentials``: the header's value, empty if the URL has none."""

    url: str
    origin: tuple[str, str, int]
    credentials: str

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Return the parts of a URL. Raises UsageError, which does not repeat secrets."""
        try:
            parts = urllib.parse.urlsplit(url_with_brackets(text.strip()))
            host, port = parts.hostname, parts.port
        except ValueError:
            raise UsageError(
                f"{without_secrets(text)}: is not a URL. Write @, / and : of a password as %40, %2F, %3A"
            ) from None
        if parts.scheme not in ("http", "https") or not host:
            raise UsageError(f"{without_secrets(text)}: the address must begin with http:// or https:// and a host")
        if any(ord(c) <= 32 or ord(c) > 126 for c in text.strip()):
            raise UsageError(
                f"{without_secrets(text)}: the address contains a blank or a character that is not ASCII: percent-encode it"
            )
        user, at, netloc = parts.netloc.rpartition("@")
        credentials = ""
        if at and user.strip(":"):
            name, _, password = user.partition(":")
            pair = f"{urllib.parse.unquote(name)}:{urllib.parse.unquote(password)}"
            credentials = "Basic " + base64.b64encode(pair.encode()).decode()
        url = urllib.parse.urlunsplit((parts.scheme, netloc, parts.path, parts.query, ""))
        return cls(url, (parts.scheme, host, port or (443 if parts.scheme == "https" else 80)), credentials)

    def with_path(self, path: str, query: str = "") -> "Address":
        """Return the address with another path and query."""
        parts = urllib.parse.urlsplit(self.url)
        return self._replace(url=urllib.parse.urlunsplit((parts.scheme, parts.netloc, path, query, "")))

    @property
    def path(self) -> str:
        """The path, without a slash at its end."""
        return urllib.parse.urlsplit(self.url).path.rstrip("/")

    @property
    def is_loopback(self) -> bool:
        """Whether the host is this machine, which no proxy can reach."""
        try:
            return ipaddress.ip_address(self.origin[1]).is_loopback
        except ValueError:
            return self.origin[1] == "localhost"


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects; sends credentials to the same scheme, host and port only."""

    def __init__(self, first: Address) -> None:
        self._first = first

    def redirect_request(  # type: ignore[no-untyped-def]
        self, req, fp, code, msg, headers, newurl
    ) -> urllib.request.Request | None:
        """Return the next request."""
        try:
            following = Address.parse(newurl)
        except UsageError as error:
            raise PageError(f"{without_secrets(req.full_url)}: redirects to an address that cannot be read ({error})") from None
        request = super().redirect_request(req, fp, code, msg, headers, following.url)
        if request is not None and following.origin == self._first.origin and self._first.credentials:
            request.add_unredirected_header("Authorization", self._first.credentials)
        return request


def read(address: Address, *, statuses: frozenset[int] = frozenset()) -> Page:
    """Return the page at an address. Raises PageError.

    Args:
        address: of the page.
        statuses: HTTP statuses of failures whose page is returned as well.
    """
    name = without_secrets(address.url)
    handlers: list[urllib.request.BaseHandler] = [_Redirects(address)]
    if address.is_loopback:
        handlers.append(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(address.url, headers={"Accept": "application/json, text/plain;q=0.9"})
    if address.credentials:
        request.add_unredirected_header("Authorization", address.credentials)
    try:
        try:
            answer = urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            if error.code not in statuses:
                error.close()
                # Not the server's reason, which can quote an address with a password.
                reason = f"{error.code} {http.client.responses.get(error.code, 'is not a known status')}"
                hint = HINTS.get(error.code, ELSEWHERE if 300 <= error.code < 400 else "")
                raise PageError(f"{name}: {reason}" + (f": {hint}" if hint else "")) from None
            answer = error
        with answer:
            body, kind = _body(answer, name), answer.headers.get_content_type()
            if answer.headers.get("Content-Encoding", "identity").strip().lower() in ("gzip", "x-gzip", "deflate"):
                body = _unpacked(body, name)
    except http.client.HTTPException as error:
        raise PageError(f"{name}: the answer is not HTTP ({type(error).__name__})") from None
    except (OSError, ValueError) as error:
        raise PageError(f"{name}: {_reason(getattr(error, 'reason', error))}") from None
    if kind == "text/html" or body[:256].lstrip().lower().startswith((b"<!doctype html", b"<html")):
        raise PageError(f"{name}: answers with an HTML page, perhaps a proxy's login: name the server itself")
    return Page(body, kind)


def _reason(error: object) -> str:
    """Return why a page cannot be had, and what to do where that is known."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nothing listens there, so start it, or name its address and port"
    if isinstance(error, TimeoutError):
        return f"no answer within {TIMEOUT_S:g} s: see whether it runs and can be reached from here"
    if isinstance(error, socket.gaierror):
        return f"the name is not known here ({error.strerror}): see whether it is spelled right"
    return str(error) or type(error).__name__


def _body(answer: http.client.HTTPResponse, name: str) -> bytes:
    ends = time.monotonic() + WHOLE_S
    parts: list[bytes] = []
    size = 0
    while part := answer.read1(CHUNK_BYTES):
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            raise PageError(f"{name}: the answer has more than {MOST_BYTES >> 20} MiB")
        if time.monotonic() > ends:
            raise PageError(f"{name}: the answer takes more than {WHOLE_S:g} s")
    if answer.length:
        raise PageError(f"{name}: the answer ends early")
    return b"".join(parts)


def _unpacked(body: bytes, name: str) -> bytes:
    try:
        unpacking = zlib.decompressobj(32 + zlib.MAX_WBITS)  # detects gzip and zlib
        found = unpacking.decompress(body, MOST_BYTES)
    except zlib.error:
        raise PageError(f"{name}: the answer cannot be decompressed") from None
    if unpacking.unconsumed_tail:
        raise PageError(f"{name}: the answer has more than {MOST_BYTES >> 20} MiB")
    if not unpacking.eof:
        raise PageError(f"{name}: the answer ends early")
    return found
