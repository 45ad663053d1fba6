"""The files of a tokenizer as an engine offers them to the sidecar: which they may be, how large, and by which digest known."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Final

NEEDED: Final = "tokenizer.json"
"""Without it there is no tokenizer that could be read without running code."""
NAMES: Final = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "special_tokens_map.json",
    NEEDED,
    "tokenizer_config.json",
)
"""Files that a tokenizer may have, in order: all of them data. No other name is ever written or read."""
MAX_BYTES: Final = 64 * 2**20
"""Of all files together; the largest in use (vocabularies of 262,144 tokens) have 35 MB."""
CHUNK_BYTES: Final = 128 * 2**10
"""Of one message: a request that comes behind it waits for no more."""


def digest_of(digests: Mapping[str, str]) -> str:
    """Return a tokenizer's digest: SHA-256 of what `sha256sum` prints of its files in the order of their names.

    Args:
        digests: file name to SHA-256 of its content, hexadecimal.
    """
    lines = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
    return sha256(lines.encode()).hexdigest()
