"""Request logs with time stamps, in the formats of publishers and gateways.

`open_trace` reads all formats. A log with text also contains conversations: `lpc.logs.traces.chat.chat_conversations`.
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
    """Read a trace.

    Args:
        path: a JSONL file; for agent sessions a tar.
        format: one of FORMATS.
        skip_limit: share of lines, from 0 to 1, that may be wrong; 10 lines always may. No limit applies to agent sessions:
            none may be wrong.
        active, seed: for agent sessions, which have no common clock: number of concurrent sessions, and seed of their order.

    Raises:
        UsageError: the format is unknown.
        TraceError: the file cannot be read, has no request, or has too many wrong lines.
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
