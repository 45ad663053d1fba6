"""Which decoders may run in the sidecar: those whose time and output are bounded by the tokens that they decode."""

from collections.abc import Mapping
from typing import Any, Final

PLAIN: Final = frozenset(("ByteLevel", "ByteFallback", "Fuse", "Metaspace", "WordPiece"))
"""Decoders without a parameter that could do harm."""
MAX_STEPS: Final = 16
"""Decoders in sequence. Llama, Mistral and Gemma have four."""
MAX_STRIP: Final = 64


def check_decoder(decoder: Mapping[str, Any] | None) -> None:
    """Raise ValueError for a decoder, as in `tokenizer.json`, that is not on the list.

    Not on it: regular expressions, which can take minutes while they hold the interpreter's lock; replacements that make text
    longer; blanks cut from the end, at which tokenizers 0.23 panics when a token is short; CTC, which no language model has.
    """
    _check(decoder, MAX_STEPS)


def _check(decoder: Mapping[str, Any] | None, steps: int) -> int:
    """Return how many of the steps are left."""
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
        raise ValueError(f"its decoder has a step {str(kind)[:40]} that the sidecar does not run on what is sent to it")
    return steps


def _bounded(decoder: Mapping[str, Any]) -> bool:
    kind = decoder.get("type")
    if kind == "Replace":
        text = decoder["pattern"].get("String")
        return bool(text) and len(decoder["content"]) <= len(text)
    if kind == "Strip":
        return bool(decoder["start"] <= MAX_STRIP and decoder["stop"] == 0)
    return kind == "BPEDecoder" and bool(decoder["suffix"])
