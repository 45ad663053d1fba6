"""The keys in Redis. All of one scope have one hash tag, so that a Cluster keeps them together and a script may use them all.

| key | type | holds |
|---|---|---|
| `lpc:rc:{S}:e:<id>` | string, PX | a sealed entry |
| `lpc:rc:{S}:g`, `...:g:<name>` | string | generation of the scope, of a model or tag, with a MAC: a larger one invalidates |
| `lpc:rc:{S}:i` | string, PX | something was invalidated; its life left says when |
| `lpc:rc:{S}:z` | zset | `id:bytes` by the second at which it ends: bounds the scope |
| `lpc:rc:{S}:b` | string | bytes of the scope's entries |
| `lpc:rc:{S}:z:<name>`, `...:b:<name>` | zset, string | the same of one tenant's entries |
| `lpc:rc:{S}:v:<encoder>` | hash | id to sealed vector |
| `lpc:rc:{S}:x` | stream | what was added (`a`) and removed (`d`): keeps the sidecars' arrays equal |
| `lpc:rc:{S}:t:<encoder>:<judge>:<tenant>` | string | evidence, with a MAC; <judge> is empty where it cannot err |
| `lpc:rc:{S}:k:<encoder>:<judge>:<tenant>`, `...:old` | hash | clusters of entries that mean the same, their labels |
| `lpc:rc:{S}:f:<id>` | string, PX | a flight: who asks the engine now |
| `lpc:rc:{S}:q:<id>` | string, PX | this question was answered from another one's |
| `lpc:rc:{S}:w:<name>` | string, EX | this answer was called wrong: it counts once |
| `lpc:rc:{S}:c:<day>` | hash | counters of a day in UTC |
| `lpc:rc:{C}:s` | hash | the client's scopes, S to the sealed name |

S and C are HMACs of the client's and the scope's name, names and ids as well, all in base64 for URLs. No key and no value says
anything in clear but numbers.
"""

import contextlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from typing import Final

from lpc.responses.canonical import EntryId

PREFIX: Final = "lpc:rc:"
KEEP_S: Final = 400 * 24 * 3600
"""Life of what has no other end: generations and lists of scopes; longer than any entry's."""
INVALIDATED_S: Final = 3600
"""So long it is known when something was invalidated last: longer than any engine takes for an answer."""
COUNTERS_S: Final = 40 * 24 * 3600
EVIDENCE_S: Final = 100 * 24 * 3600


def text(name: bytes) -> str:
    """Return a name as it stands in keys."""
    return urlsafe_b64encode(name).rstrip(b"=").decode()


def name(value: bytes) -> bytes:
    """Return the name that a text stands for. Raises ValueError."""
    return urlsafe_b64decode(value + b"=" * (-len(value) % 4))


def entries(values: Iterable[bytes]) -> list[EntryId]:
    """Return the entries that texts name, without those that this project did not write."""
    found = []
    for value in values:
        with contextlib.suppress(ValueError):
            found.append(EntryId(name(value)))
    return found


def key(scope: bytes, kind: str, *rest: str) -> str:
    """Return the key of a kind in a scope."""
    return ":".join((f"{PREFIX}{{{text(scope)}}}", kind, *rest))
