"""Attributes of a vLLM request that the plug-in reads."""

from typing import Any, Final

from vllm.v1.request import Request, RequestStatus

from eviction_client.policy.hints import NO_HINTS, Hints
from eviction_client.tenants import digest_of
from lpc.wire.session import category_name, key_of, kind_name, name_of, user_name

_COMPLETED: Final = frozenset(
    (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_REPETITION)
)


MOST_ACTIONS: Final = 16
"""Actions of ``kv_hints`` that are read."""


def completed(request: Request) -> bool:
    """Return whether a finished request is complete, and not aborted or failed."""
    return request.status in _COMPLETED


def reply_end_of(request: Request) -> int | None:
    """Return the last token of a complete reply before its stop token; None if the reply was cut off."""
    if request.status != RequestStatus.FINISHED_STOPPED or len(request.output_token_ids) < 2:
        return None
    last: int = request.output_token_ids[-2]
    return last


def arguments_of(request: Request) -> dict[str, Any] | None:
    """Return the extra arguments that the caller sent with a request (``vllm_xargs``)."""
    return None if request.sampling_params is None else request.sampling_params.extra_args


def hints_of(request: Request) -> Hints:
    """Return the hints of a request: its extra arguments, else the action ``kv.retain`` of vLLM's ``kv_hints`` (vllm#53423)."""
    hints = Hints.of(arguments_of(request))
    envelope = getattr(request, "kv_hints", None)  # vLLM 0.32
    if hints is NO_HINTS and envelope is not None:
        for action in envelope.actions[:MOST_ACTIONS]:
            known = action.action_type == "kv.retain" and str(action.action_version)[:2] in ("1", "1.")
            if known and isinstance(action.payload, dict):
                return Hints.of({"lpc_retain_seconds": action.payload.get("seconds")})
    return hints


def prompt_blocks_of(request: Request, block_tokens: int, lookahead: int) -> int:
    """Return how many block hashes only the prompt decides. ``lookahead``: tokens after a block that its hash covers."""
    tokens: int = request.num_prompt_tokens
    return max((tokens - lookahead) // block_tokens, 0)


def id_of(request: Request) -> str:
    """Return the id under which the plug-in stores a request."""
    return key_of(request.request_id)


def category_of(request: Request) -> str:
    """Return the digest of the category that the caller named, which groups reuse classes; empty without one."""
    return category_name(arguments_of(request))


def kind_of(request: Request) -> str:
    """Return what the sidecar groups requests by: a digest of the LoRA adapter's name and the category; empty without both."""
    lora = "" if request.lora_request is None else name_of(request.lora_request.lora_name)
    return kind_name(lora, category_of(request))


def some_layers_of(request: Request) -> int:
    """Return up to which token the cache had a prompt for some layers only when it started; 0: no further than its hit.

    vLLM's last look-up tells it (vllm#45845). After a preemption that was another one than the prompt's first.
    """
    boundary = getattr(request, "shared_prefix_boundary", 0)
    return boundary if isinstance(boundary, int) and not request.num_preemptions else 0


def resendable(request: Request) -> bool:
    """Return whether its token ids alone name the prompt's blocks: no cache salt, LoRA adapter, image or embedding."""
    others = request.cache_salt, request.lora_request, request.mm_features, getattr(request, "prompt_embeds", None)
    return request.prompt_token_ids is not None and all(other is None or other == [] for other in others)


def tenant_of(request: Request) -> str:
    """Return the digest of the cache salt, which separates tenants; empty without one."""
    return digest_of(request.cache_salt)


def session_of(request: Request) -> str | None:
    """Return the digest of the conversation's name: vLLM's session id, or else ``session_id`` of the extra arguments.

    Tenants may use the same names, so the digest differs between cache salts.
    """
    session = getattr(request, "session_id", None)
    if session is None and (arguments := arguments_of(request)):
        session = arguments.get("session_id")
    return name_of(session, request.cache_salt or "") if isinstance(session, str) and session else None


def user_of(request: Request) -> str:
    """Return the digest of who asks: see :func:`lpc.wire.session.user_name`."""
    return user_name(arguments_of(request), request.cache_salt)
