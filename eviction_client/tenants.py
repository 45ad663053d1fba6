"""Tenants, identified by their cache salts. A salt is secret, so a digest of it stands for the tenant."""

from hashlib import blake2b
from typing import Final

MOST_TENANTS: Final = 20
"""Tenants with their own counters; all others count as one."""
OTHERS: Final = "others"


def digest_of(salt: str) -> str:
    """Return a salt's digest, 16 hexadecimal digits: `b2sum -l 64` of it."""
    return blake2b(salt.encode(), digest_size=8).hexdigest()
