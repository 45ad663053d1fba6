"""Recognises the format of a log by the fields of its first records.

Each record has the shape of at most one format; the format with the most records that its reader keeps is the log's. Records
that would be skipped, such as failed calls and health checks, decide only if no record can be read.
"""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from lpc_apps.logs.chats.chat import batched
from lpc_apps.logs.chats.envelopes import opened
from lpc_apps.logs.formats import FORMATS, Format
from lpc_apps.logs.records import DAMAGED, DatasetError, Record, TraceError, json_lines, unpacked

ENOUGH: Final = 100
"""Records with a known shape that decide, of all files together."""
MOST: Final = 10_000
"""Records that are read at most: a log may begin with damaged ones."""


def recognise(files: Sequence[Path]) -> str:
    """Return the format of a log's files, one of FORMATS. Files without a record of a known format do not count.

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
        if (other := next(filter(None, map(_other_of, files)), None)) is not None:
            raise TraceError(f"{name} is {other}")
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
            for known in FORMATS.values():
                if known.is_file is not None and known.is_file(file):
                    return known.name
        kept, found = Counter[str](), Counter[str]()
        for _, record in islice(json_lines(path, _repair), MOST):
            try:
                shape = format_of(record) if isinstance(record, dict) else None
                if shape is None or not isinstance(record, dict):
                    continue
                found[shape.name] += 1
                kept[shape.name] += shape.keeps(record)
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
    """Return a line that is not JSON as the first format reads it that repairs such lines."""
    readers = (known.chats for known in FORMATS.values() if known.chats is not None)
    repair = next((reader.repair for reader in readers if reader.repair is not None and reader.repairs(line)), None)
    return line if repair is None else repair(line)


_RESULTS: Final = (
    ("a result of GuideLLM", {"benchmarks", "metadata"}),
    ("a result of vLLM's benchmark", {"tokenizer_id", "num_prompts"}),
    ("a result of vLLM's benchmark", {"request_throughput", "mean_ttft_ms", "num_prompts"}),
    ("a result of vLLM's benchmark", {"requests_per_second", "tokens_per_second", "elapsed_time"}),
    ("a result of vLLM's benchmark", {"avg_latency", "latencies", "percentiles"}),
    ("a result of SGLang's benchmark", {"dataset_name", "request_throughput", "mean_ttft_ms"}),
    ("AIPerf's profile_export.jsonl", {"metadata", "metrics"}),
    ("a result of AIPerf", {"aiperf_version"}),
    ("a result of AIPerf", {"request_throughput", "time_to_first_token"}),
    ("an answer of Prometheus", {"status", "data"}),
)
"""Figures without prompts, by the fields of their records."""
_BATCH: Final = "without times: give --rate with requests per second to take their order at that pace"
_GATEWAY: Final = "log the requests in the engine or its gateway as on the page log formats"
OTHERS: Final = (
    *(
        (fields, f"{name}: it has figures of requests, but no prompts. Give the log or the trace that was sent, or {_GATEWAY}")
        for name, fields in _RESULTS
    ),
    ({"custom_id", "body"}, f"a batch of OpenAI's API {_BATCH}"),
    ({"custom_id", "params"}, f"a batch of Anthropic's API {_BATCH}"),
    ({"recordId", "modelInput"}, f"a batch of AWS Bedrock {_BATCH}"),
    ({"key", "request"}, f"a batch of Gemini's API {_BATCH}"),
    (
        {"custom_id", "response"},
        "the result of a batch of OpenAI's API, without its prompts: give the batch itself, with --rate",
    ),
    (
        {"custom_id", "result"},
        "the result of a batch of Anthropic's API, without its prompts: give the batch itself, with --rate",
    ),
    ({"key", "response"}, "the result of a batch of Gemini's API, without its prompts: give the batch itself, with --rate"),
    ({"Records"}, "a log of AWS CloudTrail, which has no prompts: turn on Bedrock's model invocation logging"),
    ({"eventVersion", "eventSource", "eventName"}, "a log of AWS CloudTrail: turn on Bedrock's model invocation logging"),
    (
        {"resourceId", "operationName", "category"},
        "a diagnostic log of Azure, which has no prompts: log messages in API Management (ApiManagementGatewayLlmLog), or in "
        "your gateway",
    ),
    (
        {"sessionId", "uuid", "message", "timestamp"},
        "a session of Claude Code, which has messages and not requests: log the requests in a gateway, or give --format "
        "agents and sessions of kv-cache-tester",
    ),
    ({"timestamp", "type", "payload"}, f"a session of Codex, which has messages and not requests: {_GATEWAY}"),
    ({"chat", "user_id", "updated_at"}, "an export of Open WebUI, which has conversations: write one per line with `messages`"),
    ({"query", "answer", "conversation_id"}, f"an export of Dify, which has questions and not prompts: {_GATEWAY}"),
    ({"event_id", "data"}, f"a stream of KV cache events, which have hashes and no requests: {_GATEWAY}"),
)
"""Files of other programs that cannot be read, by the fields of their records, with what to do."""
TEXTS: Final = (
    (rb"^\[GIN\] \d{4}/", f"Ollama's log, which has times and no prompts: {_GATEWAY}"),
    (
        rb"\bslot +(?:launch_slot_|update_slots|print_timing): ",
        f"a log of llama.cpp's server, which has no prompts: {_GATEWAY}",
    ),
    (
        rb"(?:Receive|Receive OpenAI|Finish): obj=",
        "SGLang's log of requests as text: start it with --log-requests --log-requests-level 3 --log-requests-format json",
    ),
    (rb"^generation_id,|(?:^|,)tokens_prompt(?:,|$)", f"OpenRouter's list of activity, which has no prompts: {_GATEWAY}"),
    (rb"text_generation_(?:router|launcher)", f"a log of Text Generation Inference, which has no prompts: {_GATEWAY}"),
)
"""Texts of other programs that cannot be read, by a pattern of a line of their beginning, with what to do."""
BEGINNING: Final = 64 * 2**10
"""Bytes of a text in which such a line is searched."""


def _other_of(path: Path) -> str | None:
    """Return what a file is whose first object, or beginning, is of another program, and what to do."""
    first = _first(path)
    named = next((said for fields, said in OTHERS if fields <= first.keys()), None)
    if named is not None:
        return named
    with suppress(OSError, DatasetError, *DAMAGED), unpacked(path) as file:
        beginning = file.read(BEGINNING)
        return next((said for pattern, said in TEXTS if re.search(pattern, beginning, re.MULTILINE)), None)
    return None


def is_batch(path: Path) -> bool:
    """Return whether a file is a batch: requests that have no times, and are sent together."""
    return bool(batched(_first(path)))


def _first(path: Path) -> Record:
    with suppress(OSError, DatasetError):
        return next((record for _, record in islice(json_lines(path), ENOUGH) if isinstance(record, dict)), {})
    return {}


def format_of(record: Record) -> Format | None:
    """Return the first format whose shape a record has; None: of no known format."""
    first = opened(record)[0]
    return next((known for known in FORMATS.values() if known.has_shape(first)), None)
