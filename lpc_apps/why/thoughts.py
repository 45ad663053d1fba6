"""Thoughts in the text of a reply. Servers without a reasoning parser return them there, between the markers of the model."""

import re
from typing import Final

from lpc_apps.logs.chats.request import Part

_PAIRS: Final = (
    *(
        (f"<{name}>", f"</{name}>")
        for name in ("think", "thinking", "thought", "thoughts", "reasoning", "seed:think", "mm:think")
    ),
    *((f"<{name}>", f"</{name}>") for name in ("seed:think", "mm:think", "longcat_think", "reflection", "scratchpad")),
    *(("[THINK]", "[/THINK]"), ("◁think▷", "◁/think▷"), ("<|START_THINKING|>", "<|END_THINKING|>")),
    *(("<|begin_of_thought|>", "<|end_of_thought|>"), ("<|thinking|>", "<|/thinking|>"), ("<|think|>", "<|/think|>")),
    *(("<|inner_prefix|>", "<|inner_suffix|>"), ("<unused94>thought", "<unused95>"), ("<|channel>thought", "<channel|>")),
    ("Here is my thought process:", "Here is my response:"),
)
"""Openings and closings of DeepSeek, Qwen, MiniMax, Seed-OSS, LongCat, Magistral, Kimi, Command A, Sky-T1, Apertus, MedGemma,
Gemma 4, Granite 3.2, and of prompts that ask for thoughts."""
_CHANNEL: Final = (
    r"(?:<\|start\|>assistant)?<\|channel\|>analysis[^<]*<\|message\|>"
    r"(?P<harmony>.*?)(?:<\|end\|>|(?=<\|start\|>)|(?=<\|channel\|>)|\Z)"
)
_SKIPPED: Final = r"\A\s*analysis(?P<skipped>.*?)assistantfinal"
"""gpt-oss, with its added tokens as text, and decoded without them."""
_FRAMES: Final = re.compile(
    r"\A\s*(?:<\|start\|>assistant)?<\|channel\|>final[^<]*<\|message\|>|<\|(?:end|return)\|>\s*\Z"
    r"|\A\s*(?:<(?:answer|response)>|<\|(?:START_RESPONSE|begin_of_solution)\|>)"
    r"|(?:</(?:answer|response)>|<\|(?:END_RESPONSE|end_of_solution)\|>)\s*\Z"
)
"""Marks around the answer behind thoughts."""
_THOUGHTS: Final = re.compile(
    "|".join(rf"{re.escape(opening)}.*?(?:{re.escape(closing)}|\Z)" for opening, closing in _PAIRS) + f"|{_CHANNEL}|{_SKIPPED}",
    re.DOTALL,
)
_CLOSINGS: Final = tuple(closing for _, closing in _PAIRS if closing[0] in "<[◁")
_HINTS: Final = tuple(dict.fromkeys([*(opening for opening, _ in _PAIRS), *_CLOSINGS, "<|channel|>analysis", "assistantfinal"]))


def apart(role: str, part: Part) -> tuple[tuple[str, ...], Part | None]:
    """Return the thoughts in a part of a message, and the part without them; None: nothing is left."""
    if part.kind == "reasoning":
        return (part.text,), None
    if part.kind != "text" or role != "assistant" or not any(hint in part.text for hint in _HINTS):
        return (), part
    found: list[str] = []

    def cut(match: re.Match[str]) -> str:
        found.append(match[0])
        return ""

    text = _THOUGHTS.sub(cut, part.text)
    # A template may write the opening at the end of the prompt, so that the reply begins with thoughts.
    ends = [at + len(closing) for closing in _CLOSINGS if (at := text.find(closing)) >= 0]
    if ends:
        found.append(text[: min(ends)])
        text = text[min(ends) :]
    if not found:
        return (), part
    while (rest := _FRAMES.sub("", text)) != text:
        text = rest
    text = text.strip()
    return tuple(found), Part("text", text) if text else None
