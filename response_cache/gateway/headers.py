"""Header fields and query for the engine, and requests' Cache-Control (RFC 9111, section 5.2.1)."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.wire.headers import Headers, end_to_end

OURS: Final = b"x-lpc-"
"""Prefix of fields between client and gateway."""
QUESTION: Final = b"x-lpc-question"
"""Asks for the question that a cached answer was given to, and is its field in the answer."""
LONGEST_QUESTION: Final = 1024
"""Longest text of a question in a header field, encoded, in bytes. Proxies accept a few KiB for all fields."""
ENGINE_KEYS: Final = frozenset((b"authorization", b"api-key", b"x-api-key"))
"""Credentials of engines, and of proxies with an engine's API. All callers may share one, so they do not identify a caller."""
_CREDENTIAL: Final = re.compile(
    rb"(?:.*[-_])?(?:(?:authori[sz]ation|authentication|cookie2?|[a-z]*token|[a-z]*secret|password|passwd|credentials?|jwt|"
    rb"assertion|apikey|oidc-data)(?:[-_].*)?|auth|(?<!routing-)(?<!idempotency-)(?<!cache-)key)"
)
"""Names of header fields that hold a credential of a client, or of the proxy that has authenticated it."""


def for_engine(headers: Iterable[tuple[bytes, bytes]], client: str | None, key: str | None, keep_keys: bool) -> Headers:
    """Return the fields of a request to the engine. A client's credentials that are not for the engine never reach it.

    Args:
        client: the client's IP address, appended to X-Forwarded-For.
        key: the engine's key, which replaces the client's `ENGINE_KEYS`.
        keep_keys: whether the client's `ENGINE_KEYS` are for the engine.
    """
    fields = end_to_end(headers)
    forwarded = [value for name, value in fields if name == b"x-forwarded-for"]
    dropped = {b"host", b"content-length", b"expect", b"x-forwarded-for"}
    kept = ENGINE_KEYS if keep_keys else frozenset[bytes]()
    fields = [
        (name, value)
        for name, value in fields
        if name not in dropped and not name.startswith(OURS) and (name in kept or not _CREDENTIAL.fullmatch(name))
    ]
    if client:
        fields.append((b"x-forwarded-for", b", ".join([*forwarded, client.encode("latin-1", "replace")])))
    if key is not None:
        fields.append((b"authorization", b"Bearer " + key.encode()))
    return fields


_SEPARATORS: Final = re.compile(rb"([&;])")
"""Some servers still separate parameters by semicolons."""
_SIGNATURE: Final = re.compile(rb"(?:.*-)?(?:sig|signature)")


def without_credentials(query: bytes) -> bytes:
    """Return a query without credentials. The rest stays as received."""
    parts = _SEPARATORS.split(query)
    left = [parts[at : at + 2] for at in range(0, len(parts), 2) if not _is_credential(parts[at])]
    if sum(map(len, left)) == len(parts):
        return query
    return b"".join(part for pair in left for part in pair).rstrip(b"&;")


def _is_credential(parameter: bytes) -> bool:
    name = unquote_to_bytes(parameter.partition(b"=")[0].replace(b"+", b" ")).strip().lower()
    name = name.partition(b"[")[0].replace(b"_", b"-").replace(b".", b"-")
    return bool(_CREDENTIAL.fullmatch(name) or _SIGNATURE.fullmatch(name))


def first(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """Return the first value of a field; None if it is absent."""
    return next((value.decode("latin-1") for key, value in headers if key.lower() == name), None)


@dataclass(frozen=True, slots=True)
class Directives:
    """A request's Cache-Control.

    Attributes:
        lookup: a cached answer is acceptable.
        store: the answer may be cached.
        only_if_cached: do not send the request to an engine.
    """

    lookup: bool = True
    store: bool = True
    only_if_cached: bool = False


def directives_of(headers: Iterable[tuple[bytes, bytes]]) -> Directives:
    """Parse Cache-Control, or without it Pragma: no-cache. Unknown directives are ignored (RFC 9111).

    Any max-age counts as no-cache, so that no answer is older than the client accepts.
    """
    headers = list(headers)
    values = [value.decode("latin-1") for name, value in headers if name.lower() == b"cache-control"]
    if not values and any(name.lower() == b"pragma" and b"no-cache" in value.lower() for name, value in headers):
        return Directives(lookup=False)
    names = {directive.partition("=")[0].strip().lower() for directive in ",".join(values).split(",")}
    store = "no-store" not in names
    return Directives(store and not names & {"no-cache", "max-age"}, store, "only-if-cached" in names)


def question_value(hit: pb.Hit) -> bytes:
    """Return the value of `QUESTION`: `text=` and the percent-encoded text, cut with an ellipsis, or `digest=`."""
    if not hit.matched_question:
        return b"digest=" + hit.question_digest.encode()
    encoded, end = "", quote("\u2026")
    for character in hit.matched_question:
        one = quote(character, safe="")
        if len(encoded) + len(one) + len(end) > LONGEST_QUESTION:
            encoded += end
            break
        encoded += one
    return b"text=" + encoded.encode()
