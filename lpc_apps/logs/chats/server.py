"""The kind of engine that gave a logged answer, by fields that only its answers have."""

from typing import Final, Literal

from lpc_apps.logs.records import Record

Server = Literal["", "vllm", "sglang"]
_NAMED: Final[tuple[Server, ...]] = ("vllm", "sglang")
_VLLM: Final = frozenset({"prompt_logprobs", "kv_transfer_params", "prompt_token_ids"})
_VLLM_CHOICE: Final = frozenset({"stop_reason", "token_ids"})
_SGLANG: Final = frozenset({"sglext"})
_SGLANG_CHOICE: Final = frozenset({"matched_stop"})


def server_of(answer: object, *said: object) -> Server:
    """Return the kind of the engine of an answer's body; empty: not known.

    Args:
        said: texts of the record that may name it, as LiteLLM's `custom_llm_provider`.
    """
    for text in said:
        for name in _NAMED:
            if isinstance(text, str) and name in text.lower():
                return name
    if not isinstance(answer, dict):
        return ""
    choices = answer.get("choices")
    choice: Record = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    metadata = answer.get("metadata")
    if (
        _SGLANG & answer.keys()
        or _SGLANG_CHOICE & choice.keys()
        or (isinstance(metadata, dict) and "weight_version" in metadata)
    ):
        return "sglang"
    if _VLLM & answer.keys() or _VLLM_CHOICE & choice.keys() or str(answer.get("system_fingerprint")).startswith("vllm"):
        return "vllm"
    return ""
