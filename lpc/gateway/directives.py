"""What a request's Cache-Control asks for (RFC 9111, section 5.2.1)."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Directives:
    """Of a request.

    Attributes:
        lookup: an answer that was kept will do.
        store: this one's answer may be kept.
        only_if_cached: the engine is not to be asked.
        max_age_s: answers older than this will not do; None: any age.
    """

    lookup: bool = True
    store: bool = True
    only_if_cached: bool = False
    max_age_s: float | None = None


def directives_of(headers: Iterable[tuple[bytes, bytes]]) -> Directives:
    """Read Cache-Control, and Pragma: no-cache where there is none. What is not understood is ignored, as the RFC says."""
    headers = list(headers)
    values = [value.decode("latin-1") for name, value in headers if name.lower() == b"cache-control"]
    if not values and any(name.lower() == b"pragma" and b"no-cache" in value.lower() for name, value in headers):
        return Directives(lookup=False)
    lookup, store, only_if_cached, max_age_s = True, True, False, None
    for directive in ",".join(values).split(","):
        name, _, argument = directive.strip().lower().partition("=")
        if name == "no-cache":
            lookup = False
        elif name == "no-store":
            lookup = store = False
        elif name == "only-if-cached":
            only_if_cached = True
        elif name == "max-age":
            seconds = argument.strip().strip('"')
            # An age that cannot be read is stale, says the RFC.
            age = float(seconds) if seconds.isascii() and seconds.isdigit() else 0.0
            max_age_s = age if max_age_s is None else min(age, max_age_s)
    if max_age_s == 0.0:
        lookup, max_age_s = False, None
    return Directives(lookup, store, only_if_cached, max_age_s)
