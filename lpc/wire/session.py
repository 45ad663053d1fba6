"""How a conversation is called on the wire, the same by engines and gateways."""

import hashlib


def name_under_salt(session: str, salt: str) -> str:
    """Return a conversation's name among the tenants of an engine: they may use the same ids, and the salt is secret."""
    return hashlib.blake2b(session.encode(), key=hashlib.sha256(salt.encode()).digest(), digest_size=16).hexdigest()
