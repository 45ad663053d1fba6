"""Reads what the plug-in needs from a request of SGLang."""

from hashlib import blake2b
from typing import Any

from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_MATCHED_TOKEN

from eviction_client.tenants import digest_of
from lpc.wire.session import category_name, hashed, key_of, kind_name, name_of, user_name


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


def id_of(req: Any) -> str:
    """Return the id under which the plug-in stores a request."""
    return key_of(str(req.rid))


def category_of(req: Any) -> str:
    """Return the digest of the category that the caller named, which groups reuse classes; empty without one."""
    return category_name(arguments_of(req))


def kind_of(req: Any) -> str:
    """Return what the sidecar groups requests by: a digest of the LoRA adapter's id and the category; empty without both."""
    return kind_name(name_of(str(req.lora_id)) if req.lora_id else "", category_of(req))


def tenant_of(req: Any) -> str:
    """Return the digest of the cache salt, which separates tenants; empty without one."""
    return digest_of(req.cache_salt)


def session_of(req: Any) -> str | None:
    """Return the digest of the conversation's name: SGLang's session id, or else ``session_id`` of the caller's arguments."""
    session = req.session_id or getattr(req.session, "session_id", None)
    if session is None and (arguments := arguments_of(req)):
        session = arguments.get("session_id")
    return name_of(session, req.cache_salt or "") if isinstance(session, str) and session else None


def space_of(req: Any) -> bytes:
    """Return what separates the request's cache from others': the extra key (LoRA and class) and the tenant's salt."""
    parts = repr([hashed(part or "") for part in (req.extra_key, req.cache_salt)])
    return blake2b(parts.encode(), digest_size=16).digest()


def user_of(req: Any) -> str:
    """Return the digest of who asks: see :func:`lpc.wire.session.user_name`."""
    return user_name(arguments_of(req), req.cache_salt)
