"""The token that callers of LMCache's HTTP bring: from a file, compared in constant time."""

import base64
import hmac

from lpc.lmcache.errors import LMCacheUnfit
from lpc.lmcache.settings import LMCacheSettings


def token_of(settings: LMCacheSettings) -> str | None:
    """Return the token; None where none is asked for. Raises LMCacheUnfit: the file cannot be read, or is empty."""
    if settings.token_file is None:
        return None
    try:
        token = settings.token_file.read_text().strip()
    except OSError as error:
        raise LMCacheUnfit(f"LPC_LMCACHE_TOKEN_FILE: {settings.token_file} cannot be read: {error.strerror}") from None
    if not token:
        raise LMCacheUnfit(f"LPC_LMCACHE_TOKEN_FILE: {settings.token_file} is empty: write a token into it")
    return token


def bearer(token: str | None) -> dict[str, str]:
    """Return the header that brings a token."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def brings(header: str, token: str) -> bool:
    """Say whether an Authorization header brings the token: as Bearer, or as the password of Basic.

    LMCache's nodes can bring nothing but what is in the coordinator's URL, ``http://lpc:TOKEN@host:9300``, and that is Basic.
    """
    scheme, _, value = header.partition(" ")
    brought = value.strip()
    if scheme.lower() == "basic":
        try:
            brought = base64.b64decode(brought, validate=True).decode().partition(":")[2]
        except ValueError:  # no base64, or no text
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(brought.encode(), token.encode())
