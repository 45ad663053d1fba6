"""The formats of logs, one entry each. To add one, write its file and its entry in FORMATS."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Literal

from lpc.errors import UsageError
from lpc_apps.logs.chats import Reader, bedrock, chat, har, langfuse, litellm, nginx, otel, runs, sglang, vertex, vllm, wildchat
from lpc_apps.logs.datasets import conversations
from lpc_apps.logs.records import Record, WrongRecord
from lpc_apps.logs.traces import lmcache, qwen
from lpc_apps.logs.traces.agents import ACTIVE_SESSIONS, is_archive, read_agent_sessions
from lpc_apps.logs.traces.aiperf import is_aiperf, read_aiperf
from lpc_apps.logs.traces.chat import read_chat
from lpc_apps.logs.traces.mooncake import read_mooncake
from lpc_apps.logs.traces.request import Trace, check_ids, has_ids
from lpc_apps.logs.traces.sample import WHOLE, Sample
from lpc_apps.logs.traces.units import doubt_of


@dataclass(frozen=True)
class Format:
    """A format of logs. It is read by one of `chats`, `trace` and `sessions`; whole conversations, without times, by none.

    Attributes:
        name: word of the command line.
        file: kind of file, for the page log formats, as are the next two.
        record: one record.
        known_by: fields that show the format.
        has_shape: whether a record has these fields.
        is_file: whether an unpacked file is of the format, which has no records; None: records show it.
        check: raises WrongRecord for a record of this shape that is skipped; not for `chats`.
        chats: reader of requests with their text.
        trace: reader of a trace without text, or of a sample of it.
        sessions: reader of sessions without a common clock; its arguments are as in `open_trace`.
        unit: the unit of its times, in words.
        named: whether the log has the conversations of its requests; False: they are recovered from hashes.
    """

    name: str
    file: str
    record: str
    known_by: str
    has_shape: Callable[[Record], bool] = lambda _: False
    is_file: Callable[[IO[bytes]], bool] | None = None
    check: Callable[[Record], object] = lambda _: None
    chats: Reader | None = None
    trace: Callable[[Path, Sample], Trace] | None = None
    sessions: Callable[[Path, int, int], Trace] | None = None
    unit: str = "numbers below 100,000,000,000 are seconds"
    named: bool = True

    def keeps(self, record: Record) -> bool:
        """Return whether the reader keeps a record of this shape."""
        try:
            if self.chats is not None:
                return any(not isinstance(found, WrongRecord) for found in self.chats.read(record))
            self.check(record)
        except WrongRecord:
            return False
        return True


CONVERSATIONS: Final = "conversations"
"""Format of conversations without times."""
_LIST: Final = (
    Format(
        "agents",
        "tar of one JSON per session",
        "`block_size`, `requests` of `t` s, `in`, `out`, `hash_ids`, `stop`, `api_time` s, or of sub-agents with `requests`; "
        "`hash_id_scope`",
        "a tar",
        is_file=is_archive,
        sessions=lambda path, active, seed: read_agent_sessions(path, active=active, seed=seed),
        unit="`t` and `api_time` are seconds",
    ),
    Format(
        "qwen",
        "JSONL of the Qwen-Bailian traces",
        "`chat_id`, `parent_chat_id`, `timestamp` s, `input_length`, `output_length`, `type`, `turn`, `hash_ids` of blocks "
        "([more](#send-a-log-without-its-text))",
        "`hash_ids`, `input_length`, `chat_id`",
        qwen.has_shape,
        check=check_ids,
        trace=qwen.read_qwen,
        unit="`timestamp` and `served` are seconds",
    ),
    Format(
        "aiperf",
        "JSONL of AIPerf, which [adds sessions](#aiperf)",
        "as `mooncake`, of what is new in the prompt; `session_id`, `delay` ms",
        "`input_length` with `session_id` or `delay`",
        is_aiperf,
        trace=read_aiperf,
        unit="`timestamp` and `delay` are milliseconds",
    ),
    Format(
        "mooncake",
        "JSONL",
        "`timestamp` ms, `input_length`, `output_length`, `hash_ids` of blocks, chained by prefix",
        "`hash_ids`, `input_length`",
        has_ids,
        check=check_ids,
        trace=read_mooncake,
        unit="`timestamp` is milliseconds",
        named=False,
    ),
    Format(
        "vllm",
        "vLLM's own log at DEBUG, as text or JSON",
        "the body of a request",
        "a line `Request ... JSON body: {...}`",
        vllm.has_shape,
        chats=Reader(vllm.read, vllm.repair, vllm.has_body),
    ),
    Format(
        "sglang",
        "SGLang's own log of requests as JSON",
        "the body of a request",
        "`event` `request.received.openai` with `obj`",
        sglang.has_shape,
        chats=Reader(sglang.read, sglang.repair, sglang.has_event),
    ),
    Format(
        "bedrock",
        "JSON",
        "a line of AWS Bedrock's model invocation log",
        "`schemaType` ModelInvocationLog",
        bedrock.has_shape,
        chats=Reader(bedrock.read),
    ),
    Format(
        "vertex",
        "JSON",
        "a row of Vertex AI's request-response log, or a result of its batch predictions",
        "`logging_time` with `full_request` or `request_payload`; `processed_time` with `request`",
        vertex.has_shape,
        chats=Reader(vertex.read),
    ),
    Format(
        "har",
        "JSON of a browser or a proxy",
        "all calls, of which chats count",
        "`log` with `entries`; or one entry with `startedDateTime`",
        har.has_shape,
        chats=Reader(har.read),
    ),
    Format(
        "runs",
        "JSON",
        "a call in an export of LangSmith, Weave, PostHog, Datadog, Kong, Azure API Management or MLflow",
        "`run_type`; `op_name`; an `event` of `$ai_`; spans with `span_kind` or `meta`; `ai`; `RequestMessages`; "
        "`request_time`",
        runs.has_shape,
        chats=Reader(runs.read),
    ),
    Format(
        "lmcache",
        "JSON of a collector",
        "spans of LMCache's [token trace](#lmcache), one per look-up",
        "a span `mp.request.trace`, or with `lmcache.input_ids`",
        lmcache.has_shape,
        check=lmcache.check,
        trace=lmcache.read_lmcache,
        unit="`startTimeUnixNano` is nanoseconds",
        named=False,
    ),
    Format(
        "otel",
        "JSON",
        "a span, or a line of the collector",
        "`resourceSpans`, or `attributes`",
        otel.has_shape,
        chats=Reader(otel.read),
    ),
    Format(
        "litellm",
        "JSON",
        "a call",
        "`call_type`, `model_group`, `standard_logging_object`, `proxy_server_request`",
        litellm.has_shape,
        chats=Reader(litellm.read),
    ),
    Format(
        "langfuse",
        "JSON",
        "an observation, or a page or trace of them",
        "`start_time` with a `type` of Langfuse, or with `input`",
        langfuse.has_shape,
        chats=Reader(langfuse.read),
    ),
    Format(
        "nginx",
        "JSON",
        "a line of the access log",
        "a time with `body` or `request_body`",
        nginx.has_shape,
        chats=Reader(nginx.read, nginx.repair),
    ),
    Format(
        "chat",
        "JSON (below)",
        "a request with its messages",
        "a time with `messages`, `input`, `prompt` or `contents`; or `request`",
        chat.has_shape,
        chats=Reader(chat.read),
    ),
    Format(
        "wildchat",
        "JSON or Parquet of [WildChat](https://huggingface.co/datasets/allenai/WildChat-1M)",
        "a conversation, with the times of its replies and its user's hashed address",
        "`conversation_hash`",
        wildchat.has_shape,
        chats=Reader(wildchat.read),
    ),
    Format(
        CONVERSATIONS,
        "JSON or Parquet (below)",
        "a whole conversation",
        "`messages`, `conversations` or a `prompt` without a time; `conversation` or `conversation_a`",
        conversations.has_shape,
        check=lambda record: conversations.conversation_parser()(record),
    ),
)
FORMATS: Final[Mapping[str, Format]] = {known.name: known for known in _LIST}
"""Formats by name. Of several whose shape a record has, the first is its format."""
WITH_TEXT: Final = tuple(known.name for known in _LIST if known.chats is not None)
SAMPLED: Final = tuple(known.name for known in _LIST if known.chats is not None or known.trace is not None)
"""Formats of which a sample can be read."""

if TYPE_CHECKING:
    FormatName = str
else:
    FormatName = Literal[tuple(FORMATS)]
    """Name of a format, for the command line."""


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
        format: one of FORMATS, with times.
        active, seed: for agent sessions, which have no common clock: number of concurrent sessions, and seed of their order.
        sample: the prompts to read; sessions of agents are drawn, and not sampled.
        texts: also read the blocks of the messages' text alone, which needs a log with text.

    Raises:
        UsageError: the format is unknown, or has no text or no times.
        TraceError: the file cannot be read, has no request, or nearly all of its records are wrong.
    """
    with_times = [name for name in FORMATS if name != CONVERSATIONS]
    if format not in with_times:
        raise UsageError(f"unknown trace format {format!r:.40}: use one of {', '.join(with_times)}")
    known = FORMATS[format]
    trace = _read(path, known, active, seed, sample, texts=texts)
    return replace(trace, doubt=doubt_of(trace, f"{known.unit} in the format {known.name}"))


def _read(path: Path, known: Format, active: int, seed: int, sample: Sample, *, texts: bool) -> Trace:
    if known.chats is not None:
        return read_chat(path, known.chats, sample, texts=texts)
    if texts:
        raise UsageError(f"a log of the format {known.name} has no text of messages: give one of {', '.join(WITH_TEXT)}")
    if known.trace is not None:
        return known.trace(path, sample)
    assert known.sessions is not None
    return known.sessions(path, active, seed)
