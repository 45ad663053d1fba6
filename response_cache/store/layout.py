"""The keys in Redis. All keys of a scope share a hash tag, so that one node of a Cluster has them and scripts can use them.

| key | type | value |
|---|---|---|
| `lpc:rc:{S}:e:<id>` | string, PX | a sealed entry |
| `lpc:rc:{S}:g` | string | generation of the scope, with a MAC; a larger one invalidates |
| `lpc:rc:{S}:i` | string, PX | set by an invalidation; the remaining life shows when |
| `lpc:rc:{S}:z` | zset | `id:bytes` by expiry in seconds: limits the scope |
| `lpc:rc:{S}:b` | string | total bytes of the scope's entries |
| `lpc:rc:{S}:z:<name>`, `...:b:<name>` | zset, string | the same for one tenant's entries |
| `lpc:rc:{S}:oz:<name>`, `...:ob:<name>` | zset, string | the same for all parts of a gateway's client, `id:bytes:part` |
| `lpc:rc:{S}:os:<name>` | zset | the client's parts by entries and bytes, as shares of its limits |
| `lpc:rc:{S}:v:<encoder>` | hash | id to sealed vector |
| `lpc:rc:{S}:n` | hash | name of a normal form to id, and id to name |
| `lpc:rc:{S}:d:<day>` | hash | counts of a day: look-ups by result, tokens, seconds |
| `lpc:rc:{S}:x` | stream | ids added (`a`) and removed (`d`): synchronises the sidecars' indexes |
| `lpc:rc:{S}:t:<encoder>:<judge>:<tenant>` | string | evidence, with a MAC; <judge> is empty if it cannot err |
| `lpc:rc:{S}:ot:<name>` | zset | the parts of a gateway's client that have evidence, oldest first |
| `lpc:rc:{S}:k:<encoder>:<judge>:<tenant>`, `...:old` | hash | clusters of entries with one meaning, labels of each |
| `lpc:rc:{S}:f:<id>` | string, PX | a flight: token of the caller that waits for the engine |
| `lpc:rc:{S}:q:<id>` | string, PX | this question has had a hit of another question |
| `lpc:rc:{S}:w:<name>` | string, EX | this answer was reported wrong, which counts once |
| `lpc:rc:{S}:m:<tenant>:<day>` | zset | look-ups of a tenant's most frequent questions on one day, in scopes with `warm_up` |
| `lpc:rc:{S}:r:<day>` | hash | `tenant:id` to the sealed request of a question that came twice |
| `lpc:rc:{S}:o:<day>` | hash | numbers of lists and of stored requests, by client of the gateway |
| `lpc:rc:{S}:p` | zset | sealed pairs of a question and its candidate by expiry in seconds, in scopes with `pairs` |
| `lpc:rc:{C}:s` | hash | the client's scopes: S to the encrypted name |

Evidence and clusters of the normalised tier have `:normalised` after the tenant, and those at a set similarity `:set`. S, C,
names and ids are HMACs in URL-safe base64. S covers the names of client and scope, C that of the client. Only numbers and days
are stored in plain text.
"""

import contextlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from typing import Final

from response_cache.keys.canonical import EntryId

READ: Final = """
local function read(command, key, ...)
  local found = redis.pcall(command, key, ...)
  if type(found) ~= 'table' or not found.err then return found end
  if not string.find(found.err, 'WRONGTYPE', 1, true) then error(found.err) end
  redis.call('DEL', key)
  return redis.call(command, key, ...)
end
"""
"""Start of a script: reads a key, and deletes one of another type, which no sidecar has written and which may never expire."""

PREFIX: Final = "lpc:rc:"
KEEP_S: Final = 400 * 24 * 3600
"""Life of generations and of lists of scopes in seconds: longer than any entry's."""
INVALIDATED_S: Final = 3600
"""Seconds for which an invalidation is remembered: longer than any engine takes for an answer."""
EVIDENCE_S: Final = 100 * 24 * 3600


def text(name: bytes) -> str:
    """Return a name in the form that keys use."""
    return urlsafe_b64encode(name).rstrip(b"=").decode()


def name(value: bytes) -> bytes:
    """Return the name from its form in keys. Raises ValueError."""
    return urlsafe_b64decode(value + b"=" * (-len(value) % 4))


def entries(values: Iterable[bytes]) -> list[EntryId]:
    """Return the entries with these names in keys, without invalid ones."""
    found = []
    for value in values:
        with contextlib.suppress(ValueError):
            found.append(EntryId(name(value)))
    return found


def key(scope: bytes, kind: str, *rest: str) -> str:
    """Return a key of a scope."""
    return ":".join((f"{PREFIX}{{{text(scope)}}}", kind, *rest))
