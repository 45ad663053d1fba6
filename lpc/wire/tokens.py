"""Bearer tokens of the sidecar's callers and the gateway's clients: reads token files and finds a token's owner.

A caller has a file with its token alone. A server's token file has one line ``name: sha256`` per token, with a hexadecimal
digest; ``#`` begins a comment. It does not contain the tokens themselves. A name may have several tokens, so that a new one can
be distributed before the old one is removed.
"""

import hmac
import re
from collections.abc import Collection, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from lpc.errors import LpcError

MAX_TOKENS: Final = 1000
"""Each token is compared at every call (0.3 microseconds), and each name is a label of metrics."""
_BEARER: Final = "bearer "
_LINE: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,62})\s*:\s*([0-9a-fA-F]{64})")


class TokenFileError(LpcError):
    """The token file is unreadable or malformed. The message does not quote it, because it may contain a token by mistake."""


def owner_of(authorization: str, names: Mapping[bytes, str]) -> tuple[bytes, str] | None:
    """Return digest and owner of the token in an Authorization header; None: there is no token, or it is unknown."""
    if authorization[: len(_BEARER)].lower() != _BEARER:
        return None
    digest = sha256(authorization[len(_BEARER) :].strip().encode()).digest()
    found: tuple[bytes, str] | None = None
    # Compare all, so that the time does not reveal which one matches.
    for known, name in names.items():
        if hmac.compare_digest(known, digest):
            found = known, name
    return found


def read_tokens(path: Path, taken: Collection[str] = ()) -> dict[bytes, str]:
    """Return the name of each token's SHA-256 digest.

    Args:
        taken: names that are reserved.

    Raises:
        TokenFileError: the file is unreadable or malformed.
    """
    names: dict[bytes, str] = {}
    for where, name, digest in read_named_keys(path, TokenFileError, line="name: sha256", how="write `name: sha256` lines"):
        if name in taken:
            raise TokenFileError(f"{where}: the name {name} is taken: choose another")
        if names.setdefault(digest, name) != name:
            raise TokenFileError(f"{where}: this token belongs to two clients: make one for each")
    if len(names) > MAX_TOKENS:
        raise TokenFileError(f"{path} contains {len(names)} tokens, at most {MAX_TOKENS} are allowed")
    return names


def read_named_keys(path: Path, error: type[LpcError], *, line: str, how: str) -> Iterator[tuple[str, str, bytes]]:
    """Yield path and line number (for messages), name and 32 bytes of each line of a file of names and keys.

    Args:
        path: the file.
        error: class to raise if the file is unreadable or malformed. Messages do not quote it, because it may contain secrets.
        line: format of a line, for messages.
        how: the remedy, for messages.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as failure:
        raise error(f"cannot read {path}: {failure.strerror}; {how}") from failure
    except UnicodeDecodeError as failure:
        raise error(f"{path} is not UTF-8: {how}") from failure
    for number, content in enumerate(text.splitlines(), 1):
        content = content.partition("#")[0].strip()
        if not content:
            continue
        where = f"{path}, line {number}"
        match = _LINE.fullmatch(content)
        if match is None:
            raise error(
                f"{where}: expected `{line}`, a name of letters, digits, dots, dashes or underscores and 64 hexadecimal digits"
            )
        yield where, match[1], bytes.fromhex(match[2])


def token_in(path: Path, error: type[LpcError]) -> str:
    """Return the token that a file consists of, without white space around it.

    Args:
        error: class to raise if the file is unreadable or empty.
    """
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else "it is not text"
        raise error(f"cannot read the token in {path}: {reason}") from None
    if not token:
        raise error(f"{path} is empty: write the token into it")
    return token
