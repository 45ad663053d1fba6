"""Reads what the plug-in needs from a request of SGLang."""

from typing import Any

from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_MATCHED_TOKEN

from lpc.wire.session import name_under_salt


def is_conversation(req: Any) -> bool:
    """Return false for the server's own requests, and for prompts that are not given by tokens."""
    return not str(req.rid).startswith(HEALTH_CHECK_RID_PREFIX) and bool(req.origin_input_ids) and req.input_embeds is None


def completed(req: Any) -> bool:
    """Return whether a request has finished without being aborted."""
    return bool(req.finished()) and not isinstance(req.finished_reason, FINISH_ABORT)


def reply_end_of(req: Any) -> int | None:
    """Return the last token before the stop token that ended the reply; None if the reply ended otherwise."""
    if not isinstance(req.finished_reason, FINISH_MATCHED_TOKEN) or len(req.output_ids) < 2:
        return None
    return int(req.output_ids[-2])


def arguments_of(req: Any) -> dict[str, Any] | None:
    """Return the caller's arguments (``custom_params``)."""
    arguments = getattr(req.sampling_params, "custom_params", None)
    return arguments if isinstance(arguments, dict) else None


def session_of(req: Any) -> str | None:
    """Return the name of the conversation: SGLang's session id, or else ``session_id`` of the caller's arguments."""
    session = req.session_id or getattr(req.session, "session_id", None)
    if session is None and (arguments := arguments_of(req)):
        session = arguments.get("session_id")
    if not isinstance(session, str):
        return None
    return name_under_salt(session, req.cache_salt) if req.cache_salt else session


def space_of(req: Any) -> bytes:
    """Return what separates the request's cache from others': the extra key (LoRA and class) and the tenant's salt."""
    return repr((req.extra_key, req.cache_salt)).encode()
