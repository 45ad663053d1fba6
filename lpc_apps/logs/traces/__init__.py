"""Request logs with time stamps, in the formats of publishers and gateways.

`open_trace` reads all formats. A log with text also contains conversations: `lpc_apps.logs.traces.chat.chat_conversations`.
"""

from pathlib import Path
from typing import Final

from lpc.errors import UsageError
from lpc_apps.logs.chats import READERS
from lpc_apps.logs.records import TraceError
from lpc_apps.logs.traces.agents import ACTIVE_SESSIONS, read_agent_sessions
from lpc_apps.logs.traces.aiperf import read_aiperf
from lpc_apps.logs.traces.chat import read_chat
from lpc_apps.logs.traces.mooncake import read_mooncake
from lpc_apps.logs.traces.qwen import read_qwen
from lpc_apps.logs.traces.request import Trace, TracedRequest
from lpc_apps.logs.traces.sample import WHOLE, Sample

__all__ = ["FORMATS", "Trace", "TraceError", "TracedRequest", "open_trace"]

FORMATS: Final = ("mooncake", "aiperf", "qwen", "agents", *READERS)
SAMPLED: Final = tuple(name for name in FORMATS if name != "agents")
"""Formats of which a sample can be read."""


def open_trace(
    path: Path,
    format: str,  # noqa: A002 (the word of the command line)
    *,
    active: int = ACTIVE_SESSIONS,
    seed: int = 0,
    sample: Sample = WHOLE,
    texts: bool = False,
) -> Trace:
    """Read a trace.

    Args:
        path: a JSONL file; for agent sessions a tar.
        format: one of FORMATS.
        active, seed: for agent sessions, which have no common clock: number of concurrent sessions, and seed of their order.
        sample: the prompts to read; sessions of agents are drawn, and not sampled.
        texts: also read the blocks of the messages' text alone, which needs a log with text.

    Raises:
        UsageError: the format is unknown, or has no text.
        TraceError: the file cannot be read, has no request, or nearly all of its records are wrong.
    """
    if texts and format in FORMATS and format not in READERS:
        raise UsageError(f"a log of the format {format} has no text of messages: give one of {', '.join(READERS)}")
    match format:
        case "mooncake":
            return read_mooncake(path, sample)
        case "aiperf":
            return read_aiperf(path, sample)
        case "qwen":
            return read_qwen(path, sample)
        case "agents":
            return read_agent_sessions(path, active=active, seed=seed)
    if format in READERS:
        return read_chat(path, format, sample, texts=texts)
    raise UsageError(f"unknown trace format {format!r:.40}: use one of {', '.join(FORMATS)}")
