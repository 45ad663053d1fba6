"""Bearer tokens: a file of names and digests, and who a token belongs to. Of the sidecar's callers and the gateway's clients.

A token file has one ``name: sha256`` line per token, in hexadecimal; ``#`` begins a comment. The tokens themselves are nowhere.
A name may have several, so that a new one is spread before the old one goes.
"""

import hmac
import re
from collections.abc import Collection, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from lpc.errors import LpcError

MAX_TOKENS: Final = 1000
"""Each is a label of metrics, and is compared with at every call (0.3 microseconds)."""
_BEARER: Final = "bearer "
_LINE: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,62})\s*:\s*([0-9a-fA-F]{64})")


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


def read_named_keys(path: Path, error: type[LpcError], *, line: str, how: str) -> Iterator[tuple[str, str, bytes]]:
    """Yield where each line of a file of names and keys is (path and number, for messages), its name and its 32 bytes.

    Args:
        path: of the file.
        error: to raise where it cannot be read or is malformed; none of it is quoted, since it may hold a secret.
        line: what a line is, for its message.
        how: what to do about it.
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
