"""Files of a tokenizer that an engine offers to the sidecar: allowed names, size limits and digest."""

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Final

NEEDED: Final = "tokenizer.json"
"""A tokenizer without this file cannot be loaded without running code."""
NAMES: Final = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "special_tokens_map.json",
    NEEDED,
    "tokenizer_config.json",
)
"""Allowed files, in order; all contain only data. Files with other names are neither read nor written."""
OTHER_FORMATS: Final = (
    *("tekken.json", "tokenizer.model", "tokenizer.model.v3", "tokenizer.model.v7", "tokenizer.model.v11", "tiktoken.model"),
    *("tokenizer.model.v15", "spiece.model", "sentencepiece.model", "sentencepiece.bpe.model", "source.spm", "target.spm"),
    *("qwen.tiktoken", "hy.tiktoken", "vocab.json", "merges.txt", "vocab.txt", "encoder.json", "vocab.bpe"),
)
"""Usual names of vocabularies in other formats: tekken, SentencePiece, tiktoken, and the halves of older BPE tokenizers."""
MAX_BYTES: Final = 64 * 2**20
"""Limit of all files together; known tokenizers have at most 35 MB (vocabularies of 262,144 tokens)."""
CHUNK_BYTES: Final = 128 * 2**10
"""Bytes of one message; small, so that requests on the same connection do not wait long."""
LEAST_CHUNK_BYTES: Final = 4 * 2**10
"""Mean bytes of a message that a sidecar accepts."""
_OTHER: Final = re.compile(r".*\.(model(\.v\d+\w*)?|tiktoken|gguf|spm)|tekken.*\.json")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def is_digest(text: str) -> bool:
    """Return whether a text may be a tokenizer's digest."""
    return _DIGEST.fullmatch(text) is not None


def without_needed(names: Iterable[str]) -> str:
    """Return why a tokenizer without NEEDED cannot be used, and what to do. ``names``: of its files."""
    found = sorted(name for name in names if name in OTHER_FORMATS or _OTHER.fullmatch(name))
    only = f"only {', '.join(found[:5])}" if found else "and no vocabulary in another format"
    return (
        f"it has no {NEEDED}, {only}; take that of the same model in Hugging Face's format, or write one with transformers: "
        "AutoTokenizer.from_pretrained(SOURCE).save_pretrained(FOLDER)"
    )


def digest_of(digests: Mapping[str, str]) -> str:
    """Return a tokenizer's digest: SHA-256 of the output of `sha256sum` for its files, sorted by name.

    Args:
        digests: hexadecimal SHA-256 of each file's content, by file name.
    """
    lines = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
    return sha256(lines.encode()).hexdigest()
