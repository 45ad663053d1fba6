"""Bearer tokens: a file of names and digests, and who a token belongs to. Of the sidecar's callers and the gateway's clients.

A token file has one ``name: sha256`` line per token, in hexadecimal; ``#`` begins a comment. The tokens themselves are nowhere.
A name may have several, so that a new one is spread before the old one goes.
"""

import hmac
from collections.abc import Collection, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from lpc.errors import LpcError
from lpc.wire.named_keys import read_named_keys

MAX_TOKENS: Final = 1000
"""Each is a label of metrics, and is compared with at every call (0.3 microseconds)."""
_BEARER: Final = "bearer "


class TokenFileError(LpcError):
    """The token file cannot be used. The message says why, without quoting it: someone may have put a token there."""


def owner_of(authorization: str, names: Mapping[bytes, str]) -> tuple[bytes, str] | None:
    """Return digest and owner of the token in an Authorization field; None where it is none or nobody's."""
    if authorization[: len(_BEARER)].lower() != _BEARER:
        return None
    digest = sha256(authorization[len(_BEARER) :].strip().encode()).digest()
    found: tuple[bytes, str] | None = None
    # All of them, so that the time taken does not tell which came close.
    for known, name in names.items():
        if hmac.compare_digest(known, digest):
            found = known, name
    return found


def read_tokens(path: Path, taken: Collection[str] = ()) -> dict[bytes, str]:
    """Return the name of each token's SHA-256 digest.

    Args:
        taken: names that are others'.

    Raises:
        TokenFileError: it cannot be read or is malformed.
    """
    names: dict[bytes, str] = {}
    for where, name, digest in read_named_keys(path, TokenFileError, line="name: sha256", how="write `name: sha256` lines"):
        if name in taken:
            raise TokenFileError(f"{where}: the name {name} is taken: choose another")
        if names.setdefault(digest, name) != name:
            raise TokenFileError(f"{where}: this token belongs to two clients: make one for each")
    if len(names) > MAX_TOKENS:
        raise TokenFileError(f"{path} holds {len(names)} tokens, at most {MAX_TOKENS} are possible")
    return names
