"""What a gateway computes from a body before it asks anybody: one step without waiting, in a thread for long bodies.

The C code of `json` holds the interpreter's lock while it parses, so the number of values is bounded before it begins.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lpc.cache.v1 import response_cache_pb2 as pb
from lpc.gateway.conversations import states_of
from lpc.gateway.errors import TooLarge
from lpc.gateway.headers import Headers
from lpc.gateway.hints import retain_seconds
from lpc.gateway.request import Asked, affinity, digest, is_deep, named_otherwise, read, session_of
from lpc.gateway.tenants import Tenants

INLINE_BYTES: Final = 16 * 2**10
"""A longer body is read in a thread."""
_TOKEN: Final = re.compile(rb'"[^"]*"?|[,:\[{]')
"""Of JSON without escapes: a string, or a mark that comes with a value."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Of one body.

    Attributes:
        body: as the engine gets it.
        affinity: by which the engine is chosen.
        salt: that the engine gets with it.
        session: the conversation's name for the engine, where the client said it in a field that engines do not read.
        asked: the completion; None: it is not understood, or another request.
        question: for the caches; None: they are not asked.
        states: the conversation after each of its messages.
    """

    body: bytes
    affinity: bytes
    salt: str | None = None
    session: str | None = None
    asked: Asked | None = None
    question: pb.Request | None = None
    states: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads bodies.

    Attributes:
        tenants: salts and names.
        max_values: of JSON in one body.
        arguments: the field of a body in which engines take arguments for plug-ins, so that hints are sent on; None: they
            are not.
    """

    tenants: Tenants
    max_values: int
    arguments: str | None = None

    async def read(self, path: str, headers: Headers, body: bytes, query: str, tenant: str, scope: str | None) -> Reading:
        """Read a body. ``scope``: the caches are asked in it; None: they are not. Raises TooLarge."""
        if len(body) <= INLINE_BYTES:
            return self._read(path, headers, body, query, tenant, scope)
        return await asyncio.to_thread(self._read, path, headers, body, query, tenant, scope)

    def _read(self, path: str, headers: Headers, body: bytes, query: str, tenant: str, scope: str | None) -> Reading:
        said = self._said(body)
        if said is None:
            return Reading(body, digest("other", tenant))
        sent, salt = self.tenants.apply(tenant, *self._with_hints(said, body))
        name = session_of(said, headers)
        session = None
        if name is None and (name := named_otherwise(said)) is not None:
            session = self.tenants.session(tenant, name)
        asked = read(path, said, name, query)
        key = affinity(said, name, tenant)
        if asked is None:
            return Reading(sent, key, salt, session)
        question = None
        if scope is not None and asked.cacheable:
            # A body that the caches cannot be asked about may be one that the engine understands.
            with contextlib.suppress(ValueError, TypeError, KeyError):
                question = asked.question(tenant, scope)
        return Reading(sent, key, salt, session, asked, question, states_of(asked, tenant))

    def _with_hints(self, said: Mapping[str, Any], body: bytes) -> tuple[Mapping[str, Any], bytes]:
        """Return what a body says, and the body, with the hint that the client's own fields amount to. Its own hint stays."""
        seconds = retain_seconds(said) if self.arguments is not None else 0.0
        arguments = said.get(self.arguments or "") or {}
        if not seconds or not isinstance(arguments, dict) or "lpc_retain_seconds" in arguments:
            return said, body
        said = {**said, str(self.arguments): {**arguments, "lpc_retain_seconds": seconds}}
        return said, json.dumps(said, separators=(",", ":")).encode()

    def _said(self, body: bytes) -> Mapping[str, Any] | None:
        """Return the object that a body holds; None if it holds none. Raises TooLarge."""
        if values_exceed(body, self.max_values):
            raise TooLarge(f"the body has more than {self.max_values} values: send fewer")
        try:
            said = json.loads(body)
        except (ValueError, RecursionError):
            return None
        return said if isinstance(said, dict) and not is_deep(said, body) else None


def values_exceed(body: bytes, most: int) -> bool:
    """Whether JSON has more than ``most`` commas, colons and opening brackets outside of its strings."""
    # In slices, since the other threads wait for each.
    slices = (body[at : at + INLINE_BYTES] for at in range(0, len(body), INLINE_BYTES))
    if sum(part.count(mark) for part in slices for mark in (b",", b":", b"[", b"{")) <= most:
        return False
    marks = strings = 0
    for token in _TOKEN.finditer(body.replace(b"\\\\", b"").replace(b'\\"', b"")):
        if token[0][:1] == b'"':
            strings += 1
        else:
            marks += 1
        # JSON has at most one string more than marks.
        if marks > most or strings > most + 1:
            return True
    return False
