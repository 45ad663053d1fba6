"""Tenants, as cache salts keep them apart. A salt is secret, so a tenant is shown by a digest of it."""

from hashlib import blake2b
from typing import Final

MOST_TENANTS: Final = 20
"""Tenants with counters of their own; all others count as one."""
OTHERS: Final = "others"


def digest_of(salt: str) -> str:
    """Return a salt's digest, 16 hexadecimal digits: `b2sum -l 64` of it."""
    return blake2b(salt.encode(), digest_size=8).hexdigest()
