"""Changes that templates make to appended text, which a comparison of messages does not show: prompts that the model's template
may render again from an earlier place.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from lpc.requests.possibly import INSTRUCTIONS
from lpc_apps.why.prompts import Prompt, Unit

LATE_SYSTEM: Final = "late_system"
ENDED_LOOP: Final = "ended_loop"


def warnings_of(prompts: Sequence[Prompt]) -> Counter[str]:
    """Return the number of prompts by warning.

    - ``late_system``: a system message after the first message of another role. Qwen3.5 and 3.6, Mistral 3.2 and DeepSeek put
      it at the head, or refuse it; SGLang merges it into the head of Anthropic's messages; MiniMax-M2 drops it.
    - ``ended_loop``: a user's text after a tool's result, in a loop with thoughts. Qwen3, Qwen3.6, GLM-4.5 and Nemotron 3 then
      leave out the thoughts before it, so the prompt changes from the first of them on.
    """
    found: Counter[str] = Counter()
    for prompt in prompts:
        own = prompt.units[prompt.head :]
        found[LATE_SYSTEM] += any(unit.role in INSTRUCTIONS for unit in own)
        found[ENDED_LOOP] += _ends_loop(own)
    return +found


def _ends_loop(own: Sequence[Unit]) -> bool:
    thought = False
    for before, unit in pairwise(own):
        thought = thought or (before.role == "assistant" and bool(before.thoughts))
        if before.role == "tool" and unit.role == "user" and thought:
            return True
    return False
