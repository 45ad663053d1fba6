"""Tenants, identified by their cache salts. A salt is secret, so a digest of it stands for the tenant."""

from hashlib import blake2b
from typing import Final

from lpc.wire.session import hashed

MOST_TENANTS: Final = 20
"""Tenants with their own counters; all others count as one."""
OTHERS: Final = "others"


def digest_of(salt: str | None) -> str:
    """Return a salt's digest, 16 hexadecimal digits: `b2sum -l 64` of it, if it is not over-long; empty without a salt."""
    return blake2b(hashed(salt), digest_size=8).hexdigest() if salt else ""
