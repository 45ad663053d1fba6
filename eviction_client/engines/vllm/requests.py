"""Attributes of a vLLM request that the plug-in reads."""

from typing import Any, Final

from vllm.v1.request import Request, RequestStatus

from eviction_client.hints import NO_HINTS, Hints
from lpc.wire.session import name_under_salt

_COMPLETED: Final = frozenset(
    (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_REPETITION)
)


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
        for action in envelope.actions:
            known = action.action_type == "kv.retain" and str(action.action_version).partition(".")[0] == "1"
            if known and isinstance(action.payload, dict):
                return Hints.of({"lpc_retain_seconds": action.payload.get("seconds")})
    return hints


def session_of(request: Request) -> str | None:
    """Name of the conversation: vLLM's session id, or ``session_id`` among the extra arguments if vLLM has none.

    With a cache salt it is a digest of both, because tenants may use the same ids and the salt is secret.
    """
    session = getattr(request, "session_id", None)
    if session is None and (arguments := arguments_of(request)):
        session = arguments.get("session_id")
    if not isinstance(session, str):
        return None
    return name_under_salt(session, request.cache_salt) if request.cache_salt else session
