"""Request logs with time stamps, in the formats their publishers and gateways use.

`open_trace` reads any of them. A log with text also gives conversations to embed: `lpc.logs.traces.chat.chat_conversations`.
"""

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Final

from lpc.logs.traces.chat import read_chat
from lpc.logs.traces.mooncake import read_mooncake
from lpc.logs.traces.qwen import read_qwen
from lpc.logs.traces.request import SKIP_LIMIT, Trace, TracedRequest, TraceError

__all__ = ["FORMATS", "SKIP_LIMIT", "Trace", "TraceError", "TracedRequest", "open_trace"]

FORMATS: Final = MappingProxyType[str, Callable[[Path, float], Trace]](
    {"mooncake": read_mooncake, "qwen": read_qwen, "chat": read_chat}
)


def open_trace(path: Path, format: str, *, skip_limit: float = SKIP_LIMIT) -> Trace:  # noqa: A002 (the word of the command line)
    """Read a trace whole.

    Args:
        path: a JSONL file.
        format: one of FORMATS.
        skip_limit: the share of lines, from 0 to 1, that may be wrong; 10 lines always may.

    Raises:
        TraceError: an unknown format, a file that cannot be read, no request in it, or too many wrong lines.
    """
    if format not in FORMATS:
        raise TraceError(f"unknown trace format {format!r:.40}: use one of {', '.join(FORMATS)}")
    return FORMATS[format](path, skip_limit)
