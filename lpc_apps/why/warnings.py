"""What a comparison of messages does not show: changes that templates make to appended text, so that the prompt differs from an
earlier place on, and conversations that go on under another model or cache salt, where nothing of them is cached.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from lpc.requests.possibly import INSTRUCTIONS
from lpc_apps.why.prompts import Prompt, Unit

LATE_SYSTEM: Final = "late_system"
ENDED_LOOP: Final = "ended_loop"
OTHER_SCOPE: Final = "other_scope"


def warnings_of(prompts: Sequence[Prompt]) -> Counter[str]:
    """Return the number of prompts by warning.

    - ``late_system``: a system message after the first message of another role. Qwen3.5 and 3.6, Mistral 3.2 and DeepSeek put
      it at the head, or refuse it; SGLang merges it into the head of Anthropic's messages; MiniMax-M2 drops it.
    - ``ended_loop``: a user's text after a tool's result, in a loop with thoughts. Qwen3, Qwen3.6, GLM-4.5 and Nemotron 3 then
      leave out the thoughts before it, so the prompt changes from the first of them on.
    - ``other_scope``: the conversation's earlier prompt had another model or cache salt. Only of conversations with a name.

    Args:
        prompts: in order of time.
    """
    found: Counter[str] = Counter()
    scopes: dict[str, tuple[str, ...]] = {}
    for prompt in prompts:
        own = prompt.units[prompt.head :]
        found[LATE_SYSTEM] += any(unit.role in INSTRUCTIONS for unit in own)
        found[ENDED_LOOP] += _ends_loop(own)
        if prompt.session is not None:
            found[OTHER_SCOPE] += scopes.get(prompt.session, prompt.scope) != prompt.scope
            scopes[prompt.session] = prompt.scope
    return +found


def _ends_loop(own: Sequence[Unit]) -> bool:
    thought = False
    for before, unit in pairwise(own):
        thought = thought or (before.role == "assistant" and bool(before.thoughts))
        if before.role == "tool" and unit.role == "user" and thought:
            return True
    return False
