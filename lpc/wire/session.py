"""Names of conversations in calls to the sidecar, computed in the same way by engines and gateways."""

import hashlib


def name_under_salt(session: str, salt: str) -> str:
    """Return a name that is unique across tenants, which may use the same session ids; ``salt`` is the tenant's secret."""
    return hashlib.blake2b(session.encode(), key=hashlib.sha256(salt.encode()).digest(), digest_size=16).hexdigest()
