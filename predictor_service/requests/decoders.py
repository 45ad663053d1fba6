"""Allow-list of decoders: time and output size of each are bounded by the tokens that it decodes."""

from collections.abc import Mapping
from typing import Any, Final

PLAIN: Final = frozenset(("ByteLevel", "ByteFallback", "Fuse", "Metaspace", "WordPiece"))
"""Decoders without dangerous parameters."""
MAX_STEPS: Final = 16
"""Largest number of decoders in sequence. Llama, Mistral and Gemma have four."""
MAX_STRIP: Final = 64


def check_decoder(decoder: Mapping[str, Any] | None) -> None:
    """Raise ValueError if a decoder of a `tokenizer.json` is not allowed.

    Not allowed are regular expressions, which can run for minutes while they hold the interpreter's lock; replacements that
    lengthen text; stripping at the end, at which tokenizers 0.23 panics if a token is short; and CTC, which no language model
    uses.
    """
    _check(decoder, MAX_STEPS)


def _check(decoder: Mapping[str, Any] | None, steps: int) -> int:
    """Return how many of ``steps`` are left."""
    if decoder is None:
        return steps
    if steps == 0:
        raise ValueError(f"its decoder has more than {MAX_STEPS} steps")
    steps -= 1
    kind = decoder.get("type")
    if kind == "Sequence":
        for inner in decoder["decoders"]:
            steps = _check(inner, steps)
    elif kind not in PLAIN and not _bounded(decoder):
        raise ValueError(f"the sidecar does not allow the decoder step {str(kind)[:40]}")
    return steps


def _bounded(decoder: Mapping[str, Any]) -> bool:
    kind = decoder.get("type")
    if kind == "Replace":
        text = decoder["pattern"].get("String")
        return bool(text) and len(decoder["content"]) <= len(text)
    if kind == "Strip":
        return bool(decoder["start"] <= MAX_STRIP and decoder["stop"] == 0)
    return kind == "BPEDecoder" and bool(decoder["suffix"])
