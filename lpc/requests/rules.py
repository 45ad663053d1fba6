"""The rules by which two different bodies are the same to an engine, as a table: engine, versions, templates.

Each row was found by running the engine's own preprocessing. A test runs the rows again against the installed engines
(``tests/engine/test_as_read.py``), so a release that changes one is noticed.

Two kinds of users have opposite safe sides:

- A response cache may join only what no engine reads apart (`surely`). It uses a row if it holds for its engine, in its
  version, and on all templates. `ANY` stands for all engines: a row must hold in each.
- A router may part only what each engine reads apart (`possibly`). It uses a row if it holds in one engine on one template.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

Kind = Literal["vllm", "sglang", "any"]
VLLM: Final = ("0.32", "0.33")
SGLANG: Final = ("0.5.23",)
"""Versions in which the rows were run."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A change of a body that an engine does not see.

    Attributes:
        name: name by which code asks for it.
        change: difference between the two bodies.
        versions: versions in which it was run, by engine; an engine that is missing reads the two apart.
        templates: ``all``, or the templates on which it holds.
    """

    name: str
    change: str
    versions: Mapping[str, tuple[str, ...]]
    templates: str = "all"


_BOTH: Final = {"vllm": VLLM, "sglang": SGLANG}
_VLLM: Final = {"vllm": VLLM}
_SGLANG: Final = {"sglang": SGLANG}

RULES: Final = (
    Rule("text_part", "one text part of a user or a system message, and its text as a string", _BOTH),
    Rule("part_mark", "`cache_control` on a text part of a user, a system or a tool message", _BOTH),
    Rule("tool_keys", "unknown keys, `cache_control`, `strict: null` and `defer_loading: null` on a tool", _BOTH),
    Rule("tool_order", "the order of keys of a tool outside `function`", _BOTH),
    Rule("call_order", "the order of keys of a tool call", _BOTH),
    Rule("tool_choice", "no `tool_choice`, and `auto` with tools, `none` without tools", _BOTH),
    Rule("echoed_keys", "`annotations`, `provider_specific_fields` and `cache_control` of a message", _BOTH),
    Rule("null_name", "`name: null` of a tool's result that is a string", _BOTH),
    Rule("unknown_keys", "keys of a message that vLLM does not know", _VLLM),
    Rule("no_calls", "an empty list of tool calls", _VLLM),
    Rule("unread_keys", "keys of a message that SGLang does not know, `reasoning`, a user's `name`, `name: null`", _SGLANG),
    Rule("null_content", "`content` of a reply null, absent, and empty", _SGLANG),
    Rule("null_tool_choice", "`tool_choice: null`", _SGLANG),
    Rule("any_text_part", "one text part of any message, and its text as a string", _VLLM),
    Rule("function_order", "the order of keys in `function`", _VLLM),
    Rule("null_in_function", "`description` or `parameters` of a tool null, and absent", _VLLM),
    Rule("reasoning", "`reasoning` for `reasoning_content`; if both, `reasoning` counts", _VLLM),
    Rule("arguments", "white space and escapes in the text of `arguments`", _SGLANG),
    # By template: for routing and `lpc why` only.
    Rule("arguments_text", "white space and escapes in the text of `arguments`", _VLLM, "all but gpt-oss"),
    Rule("empty_arguments", "`arguments` empty, and `{}`", _VLLM, "all but gpt-oss"),
    Rule("billing", "Claude Code's line `x-anthropic-billing-header` in a system prompt", _VLLM, "all but gpt-oss in a chat"),
    Rule("developer", "`developer` for `system` in the first message", _VLLM, "all but DeepSeek V3.2 and V4"),
    Rule("call_ids", "ids of tool calls", _BOTH, "all but Kimi-K2 and Mistral"),
    Rule("parts", "text in several parts, and joined by a line end, by a blank or by nothing", _BOTH, "one of the three"),
    Rule("user_name", "`name` of a user", _BOTH, "all but Kimi-K2 and K3 in vLLM"),
    Rule("white_space", "white space at the end of a user's text", _BOTH, "Llama 3.1, Gemma 2 to 4, Qwen3.6"),
)


@cache
def sure(kind: Kind, version: str = "") -> frozenset[str]:
    """Return the names of the rules that hold on all templates in an engine; of `any` in all engines.

    Args:
        version: of the engine; empty: one of those in the table. In any other version no rule holds.
    """
    engines = ("vllm", "sglang") if kind == "any" else (kind,)
    return frozenset(
        rule.name
        for rule in RULES
        if rule.templates == "all" and all(_covers(rule.versions.get(engine, ()), version) for engine in engines)
    )


def _covers(versions: tuple[str, ...], version: str) -> bool:
    return bool(versions) and (not version or any(f"{version}.".startswith(f"{known}.") for known in versions))


ANY: Final = sure("any")

NULL_COUNTS: Final = frozenset(
    (
        *("add_generation_prompt", "add_special_tokens", "bad_words", "continue_final_message", "echo", "frequency_penalty"),
        *("ignore_eos", "include_reasoning", "include_stop_str_in_output", "length_penalty", "logprobs", "max_tokens"),
        *("min_p", "min_tokens", "mm_payload", "n", "no_stop_trim", "parallel_tool_calls", "presence_penalty"),
        *("repetition_penalty", "return_cached_tokens_details", "return_flat_raw_output_top_logprobs"),
        *("return_flat_raw_top_logprobs_b64", "return_hidden_states", "return_input_ids_in_sglext", "return_meta_info"),
        *("return_output_ids_in_sglext", "return_prompt_token_ids", "return_routed_experts", "return_sampling_mask"),
        *(
            "return_spec_tokens_details",
            "return_token_ids",
            "return_weight_versions",
            "routed_experts_prompt_start",
            "routed_experts_start_len",
        ),
        *("separate_reasoning", "skip_special_tokens", "spaces_between_special_tokens", "stream", "stream_reasoning"),
        *("temperature", "top_k", "top_p", "use_audio_in_video", "use_beam_search"),
        "tool_choice",  # vLLM does not look for calls then
    )
)
"""Parameters for which an engine refuses null (400), or reads it as another value. Any other one is absent if it is null."""
