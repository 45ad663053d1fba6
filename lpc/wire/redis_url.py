"""What a Redis URL says, and who connects. The standard library alone: engines without a fleet read settings too."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self
from urllib.parse import SplitResult, unquote, urlsplit

SCHEMES: Final = ("redis", "rediss", "unix")
ADVICE: Final = (
    "in its user and password write / as %2F, # as %23, ? as %3F, @ as %40, [ as %5B, ] as %5D and % as %25, or leave them out "
    "of the URL and set LPC_REDIS_USER and LPC_REDIS_PASSWORD or LPC_REDIS_PASSWORD_FILE, which are taken as they are"
)
_BROKEN_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class RedisLogin:
    """Who connects, where it is not in the URL; taken as it is, without percent-encoding.

    Attributes:
        user: of Redis' access list; None: the URL's, or the default user.
        password: None: the URL's, or that of ``password_file``.
        password_file: read at each connection, so that a new password needs no restart.
    """

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: Path | None = None


NOBODY: Final = RedisLogin()


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A Redis URL, taken apart.

    Attributes:
        bare: the URL without user and password.
        where: host and port, or the path of a Unix socket: what may be written into a log.
        user: percent-decoded; None where there is none.
        password: percent-decoded; None where there is none.
    """

    bare: str
    where: str
    user: str | None
    password: str | None = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> Self:
        """Take a URL apart. Raises ValueError, with what to do and without the URL, where it is malformed."""
        scheme, separator, _ = url.partition("://")
        if not separator or scheme not in SCHEMES:
            raise ValueError("must start with redis://, rediss:// (TLS) or unix://")
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            # A slash, # or ? ends the host's part early: what should be the port is then a piece of the password.
            raise ValueError(f"cannot be read: {ADVICE if '@' in url else 'write redis://HOST:PORT/DATABASE'}") from None
        userinfo, _, server = parts.netloc.rpartition("@")
        if _cut_short(parts, server) or _BROKEN_PERCENT.search(userinfo):
            raise ValueError(f"cannot be read: {ADVICE}")
        if scheme == "unix":
            if not parts.path:
                raise ValueError("names no socket: write unix:///path/to/redis.sock")
            where = unquote(parts.path)
        else:
            where = f"{unquote(host or 'localhost')}:{port or 6379}"
        user, _, password = userinfo.partition(":")
        bare = f"{scheme}://{server}{parts.path}" + (f"?{parts.query}" if parts.query else "")
        return cls(bare, where, unquote(user) or None, unquote(password) or None)


def _cut_short(parts: SplitResult, server: str) -> bool:
    """Whether the authority has ended within user or password: then the @ that should follow them lies behind it."""
    if parts.fragment:
        return True
    if parts.scheme == "unix":
        # Before the path of a socket stand user and password or nothing; the path itself may contain an @.
        return bool(server)
    return "@" in parts.path + parts.query
