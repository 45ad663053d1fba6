"""Facts of a model's template: how an engine joins the texts of a message's parts."""

from collections.abc import Mapping
from typing import Final

from lpc.requests.rules import Kind

STRINGS: Final[Mapping[str, str]] = {"vllm": "\n", "sglang": " "}
"""Text that engines put between parts for a template that takes strings, which are most."""
PARTS: Final[Mapping[str, str]] = {"vllm": "", "sglang": ""}
"""The template has the parts itself, and puts nothing between them."""
FAMILIES: Final[tuple[tuple[str, Mapping[str, str]], ...]] = (
    *((name, PARTS) for name in ("qwen3.5", "qwen3.6", "qwen3.8", "qwen3-vl", "qwen2.5-vl")),
    *((name, PARTS) for name in ("glm-4.6", "minimax-m2", "mistral-small-3.2", "gemma-4", "gemma4", "gpt-oss")),
    ("kimi-k2", {"vllm": "\n", "sglang": ""}),
)
"""Parts of a model's name in lower case, and what its template makes of parts. Any other one takes strings."""


def separator(model: str, kind: Kind) -> str:
    """Return what an engine puts between the text parts of a message; of `any` nothing, because engines differ."""
    if kind == "any":
        return ""
    name = model.lower()
    return next((found for part, found in FAMILIES if part in name), STRINGS)[kind]


HARMONY_CHARS: Final = 288
"""Characters before the instructions in Harmony: identity, dates, effort, channels, and the header of the next message."""
HARMONY_WITH_TOOLS_CHARS: Final = HARMONY_CHARS + 79
"""The same with tools, whose channel it names."""


def is_harmony(model: str) -> bool:
    """Return whether a prompt begins with Harmony's own message and has the tools behind the instructions; else in front."""
    return "gpt-oss" in model.lower()


def drops_billing(model: str, kind: Kind) -> bool:
    """Return whether an engine leaves out Claude Code's billing line: vLLM does, but in chats with gpt-oss."""
    return kind == "vllm" and "gpt-oss" not in model.lower()


def has_developer(model: str, kind: Kind) -> bool:
    """Return whether the role `developer` is another one than `system`: in SGLang, and on DeepSeek's newer encodings."""
    name = model.lower()
    return kind != "vllm" or any(part in name for part in ("deepseek-v3.2", "deepseek-v4"))
