"""What the plug-in reads of a request of SGLang."""

from typing import Any

from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_MATCHED_TOKEN

from lpc.wire.session import name_under_salt


def asks_nothing(req: Any) -> bool:
    """Return whether a request does not count as a conversation: the server's own, or one whose prompt is not its tokens."""
    return str(req.rid).startswith(HEALTH_CHECK_RID_PREFIX) or not req.origin_input_ids or req.input_embeds is not None


def completed(req: Any) -> bool:
    """Say whether a request has come to its end; else it runs, or was aborted."""
    return bool(req.finished()) and not isinstance(req.finished_reason, FINISH_ABORT)


def reply_end_of(req: Any) -> int | None:
    """Return the last token of a reply that a token has ended, before that token; None: it ended otherwise."""
    if not isinstance(req.finished_reason, FINISH_MATCHED_TOKEN) or len(req.output_ids) < 2:
        return None
    return int(req.output_ids[-2])


def arguments_of(req: Any) -> dict[str, Any] | None:
    """Return the arguments that the caller sent with a request (``custom_params``)."""
    arguments = getattr(req.sampling_params, "custom_params", None)
    return arguments if isinstance(arguments, dict) else None


def session_of(req: Any) -> str | None:
    """Name of the conversation: SGLang's session id, or ``session_id`` among the caller's arguments where SGLang has none."""
    session = req.session_id or getattr(req.session, "session_id", None)
    if session is None and (arguments := arguments_of(req)):
        session = arguments.get("session_id")
    if not isinstance(session, str):
        return None
    return name_under_salt(session, req.cache_salt) if req.cache_salt else session


def space_of(req: Any) -> bytes:
    """Return what keeps a request's cache apart from others': LoRA and class, and the tenant's salt."""
    return repr((req.extra_key, req.cache_salt)).encode()
