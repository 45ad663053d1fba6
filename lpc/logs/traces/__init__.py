"""Request logs with time stamps, in the formats their publishers and gateways use.

`open_trace` reads any of them. A log with text also gives conversations to embed: `lpc.logs.traces.chat.chat_conversations`.
"""

from pathlib import Path
from typing import Final

from lpc.errors import UsageError
from lpc.logs.traces.agents import ACTIVE_SESSIONS, read_agent_sessions
from lpc.logs.traces.chat import read_chat
from lpc.logs.traces.mooncake import read_mooncake
from lpc.logs.traces.qwen import read_qwen
from lpc.logs.traces.request import SKIP_LIMIT, Trace, TracedRequest, TraceError

__all__ = ["FORMATS", "SKIP_LIMIT", "Trace", "TraceError", "TracedRequest", "open_trace"]

FORMATS: Final = ("mooncake", "qwen", "chat", "agents")


def open_trace(
    path: Path,
    format: str,  # noqa: A002 (the word of the command line)
    *,
    skip_limit: float = SKIP_LIMIT,
    active: int = ACTIVE_SESSIONS,
    seed: int = 0,
) -> Trace:
    """Read a trace whole.

    Args:
        path: a JSONL file; of agent sessions, a tar.
        format: one of FORMATS.
        skip_limit: the share of lines, from 0 to 1, that may be wrong; 10 lines always may. Of agent sessions none may.
        active, seed: of agent sessions, which have no common clock: how many are laid side by side, and by which draw.

    Raises:
        UsageError: an unknown format.
        TraceError: a file that cannot be read, no request in it, or too many wrong lines.
    """
    match format:
        case "mooncake":
            return read_mooncake(path, skip_limit)
        case "qwen":
            return read_qwen(path, skip_limit)
        case "chat":
            return read_chat(path, skip_limit)
        case "agents":
            return read_agent_sessions(path, active=active, seed=seed)
    raise UsageError(f"unknown trace format {format!r:.40}: use one of {', '.join(FORMATS)}")
