"""Recognises the format of a log by the fields of its first records.

Each record has the shape of at most one format; the format with the most records that its reader keeps is the log's. Records
that would be skipped, such as failed calls and health checks, decide only if no record can be read.
"""

import tarfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, Final

from lpc_apps.logs.chats import READERS, nginx, vllm
from lpc_apps.logs.chats.chat import TIMES
from lpc_apps.logs.chats.fields import object_of, snake
from lpc_apps.logs.chats.otel import LEVELS
from lpc_apps.logs.datasets.conversations import conversation_parser
from lpc_apps.logs.datasets.published import is_published
from lpc_apps.logs.records import DAMAGED, DatasetError, Record, TraceError, WrongRecord, json_lines, unpacked
from lpc_apps.logs.traces.aiperf import is_aiperf
from lpc_apps.logs.traces.request import ids_of, milliseconds, tokens

ENOUGH: Final = 100
"""Records with a known shape that decide, of all files together."""
MOST: Final = 10_000
"""Records that are read at most: a log may begin with damaged ones."""

_LITELLM: Final = frozenset({"call_type", "standard_logging_object", "proxy_server_request", "litellm_call_id", "model_group"})
_LANGFUSE: Final = frozenset(
    {"SPAN", "EVENT", "GENERATION", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL"}
)
"""Types of observations: https://langfuse.com/docs/observability/features/observation-types."""
_COLLECTOR: Final = frozenset(LEVELS) - {"data", "batches"}
_TIMES: Final = (*TIMES, "time_iso8601", "msec", "time_local")


def recognise(files: Sequence[Path]) -> str:
    """Return the format of a log's files, one of `log.FORMATS`. Files without a record of a known format do not count.

    Raises:
        TraceError: a file cannot be read, all are empty, no record has the shape of a known format, or files have different
            formats.
    """
    found: dict[str, Path] = {}
    for file in files:
        known = _format_of(file, -(-ENOUGH // len(files)))
        if known is not None:
            found.setdefault(known, file)
    if not found:
        name = files[0].name if len(files) == 1 else f"{len(files)} files"
        if (result := next(filter(None, map(_result_of, files)), None)) is not None:
            raise TraceError(
                f"{name} is {result}: it has figures of requests, but no prompts. Give the log or the trace that was sent, "
                "or log the requests in the engine or its gateway as on the page log formats"
            )
        if all(next(json_lines(file), None) is None for file in files):
            raise TraceError(f"{name} is empty: it has no requests")
        raise TraceError(
            f"the format of {name} is not recognised: give --format, or write one JSON object per line as on the page "
            "log formats"
        )
    if len(found) > 1:
        named = ", ".join(f"{file} is {known}" for known, file in found.items())
        raise TraceError(f"the files have different formats ({named}): give those of one, or --format")
    return next(iter(found))


def _format_of(path: Path, enough: int) -> str | None:
    """Return the format of most of a file's first records with a known shape; None: there is none. Raises TraceError."""
    try:
        with suppress(*DAMAGED), unpacked(path) as file:
            if _is_tar(file):
                return "agents"
        kept, found = Counter[str](), Counter[str]()
        for _, record in islice(json_lines(path, _repair), MOST):
            try:
                shape = shape_of(record) if isinstance(record, dict) else None
                if shape is None or not isinstance(record, dict):
                    continue
                found[shape] += 1
                kept[shape] += _is_read(record, shape)
            except RecursionError:
                continue
            if kept.total() == enough:
                break
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}") from error
    except DatasetError as error:
        raise TraceError(str(error)) from error
    return next((counts.most_common(1)[0][0] for counts in (kept, found) if counts.total()), None)


def _repair(line: bytes) -> bytes:
    return vllm.repair(line) if vllm.has_body(line) else nginx.repair(line)


def _is_read(record: Record, shape: str) -> bool:
    """Return whether the reader of a format keeps a record of its shape."""
    try:
        if shape == "conversations":
            conversation_parser()(record)
            return True
        if shape in READERS:
            return any(not isinstance(found, WrongRecord) for found in READERS[shape].read(record))
        if shape == "aiperf":
            return True
        ids_of(record, "hash_ids"), tokens(record, "input_length", 1), milliseconds(record, "timestamp")
        return True
    except WrongRecord:
        return False


def _is_tar(file: IO[bytes]) -> bool:
    """Return whether a file is a tar with a member. Zero bytes alone, as at the start of a log that was truncated, are not."""
    try:
        with tarfile.open(fileobj=file) as archive:
            return archive.next() is not None
    except tarfile.TarError:
        return False


RESULTS: Final = (
    ("a result of GuideLLM", {"benchmarks", "metadata"}),
    ("a result of vLLM's benchmark", {"tokenizer_id", "num_prompts"}),
    ("a result of vLLM's benchmark", {"request_throughput", "mean_ttft_ms", "num_prompts"}),
    ("a result of vLLM's benchmark", {"requests_per_second", "tokens_per_second", "elapsed_time"}),
    ("a result of vLLM's benchmark", {"avg_latency", "latencies", "percentiles"}),
    ("a result of SGLang's benchmark", {"dataset_name", "request_throughput", "mean_ttft_ms"}),
    ("AIPerf's profile_export.jsonl", {"metadata", "metrics"}),
    ("a result of AIPerf", {"aiperf_version"}),
    ("a result of AIPerf", {"request_throughput", "time_to_first_token"}),
)
"""Results of load generators, by the fields of their records."""


def _result_of(path: Path) -> str | None:
    """Return what a file is whose first object is of a load generator's result."""
    with suppress(OSError, DatasetError):
        first = next((record for _, record in islice(json_lines(path), ENOUGH) if isinstance(record, dict)), {})
        return next((name for name, fields in RESULTS if fields <= first.keys()), None)
    return None


def shape_of(record: Record) -> str | None:
    """Return the format whose shape a record has; None: of no known format."""
    return next((name for name, has_shape in SHAPES.items() if has_shape(record)), None)


def _otel(record: Record) -> bool:
    if not _COLLECTOR.isdisjoint(record):
        return True
    attributes = record.get("attributes")
    if isinstance(attributes, list):
        return any(isinstance(pair, dict) and "key" in pair for pair in attributes)
    if not isinstance(attributes, dict):
        return False
    ids = {"span_id", "trace_id", "context", "start_time_unix_nano", "time_unix_nano"}
    return any(name.startswith(("gen_ai.", "llm.", "openinference.")) for name in attributes) or not ids.isdisjoint(
        snake(record)
    )


def _langfuse(record: Record) -> bool:
    fields = snake(record)
    inside = fields.get("observations", fields.get("data"))
    if isinstance(inside, list):
        return any(isinstance(item, dict) and (_langfuse(item) or "observations" in item) for item in inside)
    kind = fields.get("type")
    return "start_time" in fields and (
        (isinstance(kind, str) and kind.upper() in _LANGFUSE)
        or (
            not {"trace_id", "observation_id", "provided_model_name", "model_parameters"}.isdisjoint(fields)
            and "input" in fields
            and "messages" not in fields
        )
    )


def _litellm(record: Record) -> bool:
    return not _LITELLM.isdisjoint(record) or (
        "kwargs" in record and isinstance(record["kwargs"], dict) and not _LITELLM.isdisjoint(record["kwargs"])
    )


def _nginx(record: Record) -> bool:
    return not {"body", "request_body"}.isdisjoint(record) and any(name in record for name in _TIMES)


def _hashed(record: Record) -> bool:
    return "hash_ids" in record and "input_length" in record


def _asks(record: Record) -> bool:
    return any(name in record for name in ("messages", "input", "prompt", "contents", "conversations", "text_input", "payload"))


def _chat(record: Record) -> bool:
    return bool(object_of(record.get("request"))) or (_asks(record) and any(name in record for name in (*TIMES, "delay")))


def _conversation(record: Record) -> bool:
    return "messages" in record or isinstance(record.get("conversations"), list) or isinstance(record.get("prompt"), str)


SHAPES: Final[dict[str, Callable[[Record], bool]]] = {
    "qwen": lambda record: _hashed(record) and "chat_id" in record,
    "aiperf": is_aiperf,
    "mooncake": _hashed,
    "vllm": vllm.is_vllm,
    "otel": _otel,
    "litellm": _litellm,
    "langfuse": _langfuse,
    "nginx": _nginx,
    "chat": _chat,
    "wildchat": lambda record: "conversation_hash" in record and "conversation" in record,
    "conversations": lambda record: _conversation(record) or is_published(record),
}
"""By format, the most specific first: whether a record has its shape."""
