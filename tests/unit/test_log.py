"""Any log opens without a word about it: format, compression and streams are recognised."""

import gzip
import io
import json
import os
import sys
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lpc.errors import UsageError
from lpc_apps.logs.formats import FORMATS
from lpc_apps.logs.log import open_log
from lpc_apps.logs.records import Skipped, TraceError
from lpc_apps.logs.traces.block_size import block_tokens_of
from lpc_apps.simulator.conversation_log import read_conversations
from tests.unit import test_token_traces as tokens
from tests.unit.test_chat_logs import FORMS, chat, collector, otel, span, user, written
from tests.unit.test_traces import mooncake, qwen

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Json = dict[str, Any]
MOONCAKE = Path(__file__).parents[3] / "shared" / "data" / "mooncake_conversation_trace.jsonl"
ODD: list[Json | str | bytes] = ["", "{", "[1, 2]", "null", '"text"', b"\xff\xfe\x00", {"level": "info", "msg": "started"}, {}]
"""Lines that belong to no format."""
RECORDS: dict[str, tuple[str, Callable[[int], Json | str | bytes]]] = {
    **FORMS,
    "mooncake": ("mooncake", lambda turn: mooncake(turn, *range(turn + 1))),
    "aiperf": ("aiperf", lambda turn: {"session_id": "a", "input_length": 300, "output_length": 9, "timestamp": turn}),
    "qwen": ("qwen", lambda turn: qwen(turn, turn)),
    "lmcache": ("lmcache", lambda turn: tokens.line(tokens.other(turn), tokens.span(turn, [7] * 40, f"r{turn}"))),
    "vllm": (
        "vllm",
        lambda turn: (
            f"(APIServer pid=7) DEBUG 11-28 21:44:{turn % 60:02} [entrypoints/.../utils/request_logger.py:74] "
            f'Request r{turn} JSON body: {{"messages": [{{"role": "user", "content": "hi {turn}"}}], "model": "m"}}'
        ),
    ),
    "sglang": (
        "sglang",
        lambda turn: (
            f'[2026-11-28 21:44:00] {{"timestamp": "2026-11-28T21:44:{turn % 60:02}", "event": "request.received.openai", '
            f'"obj": {{"messages": [{{"role": "user", "content": "hi {turn}"}}]}}}}'
        ),
    ),
    "conversations": ("conversations", lambda turn: {"id": turn, "messages": [user("hi")]}),
    "wildchat": (
        "wildchat",
        lambda turn: {
            "conversation_hash": "0f",
            "timestamp": turn,
            "conversation": [
                user("hi") | {"turn_identifier": turn},
                {"role": "assistant", "content": "yes", "timestamp": turn},
            ],
        },
    ),
    "ShareGPT": ("conversations", lambda turn: {"id": turn, "conversations": [{"from": "human", "value": "hi"}]}),
    "single prompts": ("conversations", lambda _: {"prompt": "hi"}),
    "ShareGPT's turns with times": ("chat", lambda turn: {"time": turn, "conversations": [{"from": "human", "value": "hi"}]}),
    "chat in a request": ("chat", lambda turn: {"timestamp": turn, "request": {"messages": [user("hi")]}}),
    "anthropic": (
        "chat",
        lambda turn: {
            "created_at": "2026-01-01T00:00:00Z",
            "request": {"model": "claude", "system": "Be brief.", "messages": [user("hi")], "max_tokens": 9},
            "response": {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Hello"}]},
        },
    ),
    "responses": ("chat", lambda turn: {"created_at": 1.7e9 + turn, "instructions": "Be brief.", "input": "hi"}),
    "bedrock": (
        "bedrock",
        lambda turn: {
            "schemaType": "ModelInvocationLog",
            "timestamp": "2026-01-01T00:00:00Z",
            "requestId": f"{turn}",
            "input": {"inputBodyJson": {"messages": [user("hi")]}},
        },
    ),
    "vertex": (
        "vertex",
        lambda turn: {"logging_time": turn, "full_request": {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}},
    ),
    "har": (
        "har",
        lambda _: {
            "startedDateTime": "2026-01-01T00:00:00Z",
            "request": {"url": "/v1/chat/completions", "postData": {"text": json.dumps({"messages": [user("hi")]})}},
        },
    ),
    "runs": (
        "runs",
        lambda turn: {"id": f"{turn}", "run_type": "llm", "start_time": turn, "inputs": {"messages": [user("hi")]}},
    ),
    "langfuse span": ("langfuse", lambda turn: {"type": "SPAN", "startTime": "2024-01-01T00:00:00Z", "input": None}),
    "otel agent span": ("otel", lambda turn: collector(span(turn, {"gen_ai.operation.name": "invoke_agent"}))),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_format_is_recognised_between_lines_of_none(name: str, tmp_path: Path) -> None:
    expected, record = RECORDS[name]
    path = written(tmp_path / "log", *ODD, *(record(turn) for turn in range(1, 4)), *ODD)
    with open_log(path) as log:
        assert (log.format, log.recognised) == (expected, True)


def test_a_log_that_begins_with_zero_bytes_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\0" * 4096 + b"\n" + json.dumps(chat(0)).encode())
    with open_log(tmp_path / "log") as log:
        assert (log.format, len(log.trace().requests)) == ("chat", 1)


SKIPPED = ("langfuse span", "otel agent span")
"""Records whose reader skips them."""


@pytest.mark.parametrize("name", [name for name in RECORDS if name not in SKIPPED])
def test_most_records_decide(name: str, tmp_path: Path) -> None:
    expected, record = RECORDS[name]
    others = [
        other(1) for kind, (format_, other) in RECORDS.items() if format_ != expected and kind in ("otel", "qwen", "nginx")
    ]
    with open_log(written(tmp_path / "log", *others, *(record(turn) for turn in range(1, 4)))) as log:
        assert log.format == expected


@pytest.mark.parametrize("name", SKIPPED)
def test_records_that_are_skipped_do_not_decide(name: str, tmp_path: Path) -> None:
    _, record = RECORDS[name]
    failed = {"time": 3, "status": 503, "body": {"messages": [user("hi")]}}
    path = written(tmp_path / "log", *(record(turn) for turn in range(1, 9)), *[failed] * 9, chat(0), chat(1))
    with open_log(path) as log:
        assert (log.format, len(log.trace().requests)) == ("chat", 2)


def test_a_tar_of_sessions_is_recognised_in_any_compression(tmp_path: Path) -> None:
    session = {"id": "s", "block_size": 64, "requests": [{"t": 0, "in": 64, "out": 1, "hash_ids": [1], "stop": "end"}]}
    text = json.dumps(session).encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("a.json")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    for data in (buffer.getvalue(), gzip.compress(buffer.getvalue()), zstd.compress(buffer.getvalue())):
        (tmp_path / "log").write_bytes(data)
        with open_log(tmp_path / "log") as log:
            assert log.format == "agents"
            assert len(log.trace().requests) == 1


def test_a_given_format_overrides_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "log", chat(0))
    with open_log(path, "conversations") as log:
        assert (log.format, log.recognised) == ("conversations", False)
    with pytest.raises(UsageError, match="unknown log format 'csv': use one of agents"), open_log(path, "csv"):
        pass


@pytest.mark.parametrize(
    "data",
    [b"", b"\n\n", b"[]", gzip.compress(b"", mtime=0), zstd.compress(b" \n")],
    ids=["no bytes", "lines", "array", "gzip", "zstd"],
)
@pytest.mark.parametrize("format", [None, *FORMATS])
def test_an_empty_log_is_said_to_be_empty_by_every_reader(data: bytes, format: str | None, tmp_path: Path) -> None:  # noqa: A002
    (tmp_path / "log").write_bytes(data)
    if format == "agents" and data:
        return  # no tar archive
    with pytest.raises(TraceError, match=r"log(: it)? is empty"), open_log(tmp_path / "log", format) as log:
        read_conversations(log.path) if format == "conversations" else log.trace()


@pytest.mark.parametrize("text", ["time,prompt\n1,canaryzebra\n", '{"canaryzebra": 1}\n', "{", "\0" * 99_999])
def test_a_log_of_no_known_format_is_refused_without_its_text(text: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(text)
    with (
        pytest.raises(TraceError, match="the format of log is not recognised: give --format") as caught,
        open_log(tmp_path / "log"),
    ):
        pass
    assert "canaryzebra" not in str(caught.value)


@pytest.mark.parametrize("missing", ["none", "."])
def test_a_missing_file_and_an_empty_folder_are_refused(missing: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot read"), open_log(tmp_path / missing):
        pass


TEXT = b"".join(json.dumps(chat(turn)).encode() + b"\n" for turn in range(200))


@pytest.mark.parametrize(
    "data", [TEXT, gzip.compress(TEXT), zstd.compress(TEXT), zstd.compress(TEXT[:999]) + zstd.compress(TEXT[999:])]
)
def test_standard_input_and_pipes_give_what_the_file_gives(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").write_bytes(data)
    with open_log(tmp_path / "log") as log:
        expected = log.trace().requests
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    with open_log("-") as log:
        assert (log.format, log.trace().name) == ("chat", "standard input")
        assert log.trace().requests == expected
        copy = log.path
        assert copy.parent.stat().st_mode & 0o077 == 0
    assert not copy.exists()
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(data,))
    writer.start()
    with open_log(tmp_path / "pipe") as log:
        assert log.trace().requests == expected
    writer.join()


@pytest.mark.parametrize("cut", [10, 99, 300])
def test_zstandard_that_is_cut_off_or_damaged_gives_what_comes_before(cut: int, tmp_path: Path) -> None:
    whole = b"".join(zstd.compress(TEXT[at : at + 5_000]) for at in range(0, len(TEXT), 5_000))
    for data in (whole[:-cut], whole[:-cut] + b"x" * 999):
        (tmp_path / "log").write_bytes(data)
        with open_log(tmp_path / "log") as log:
            trace = log.trace()
        assert 100 < len(trace.requests) < 200
        assert trace.skipped.counts["file cut off"] == 1


def test_without_its_package_zstandard_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log").write_bytes(zstd.compress(TEXT))
    monkeypatch.setitem(sys.modules, zstd.__name__, None)
    with pytest.raises(TraceError, match="compressed with Zstandard: unpack it with zstd -d"), open_log(tmp_path / "log"):
        pass


def test_only_logs_with_text_give_messages(tmp_path: Path) -> None:
    with open_log(written(tmp_path / "log", chat(0), "{", chat(1))) as log:
        skipped = Skipped()
        found = list(log.requests(skipped))
    assert [place for place, _ in found] == ["log:1", "log:3"]
    assert skipped.counts == {"not JSON": 1}
    with open_log(written(tmp_path / "log", mooncake(0, 1))) as log, pytest.raises(TraceError, match="has no text of requests"):
        log.requests(Skipped())


@pytest.mark.parametrize("size", [16, 24, 64, 100, 256, 1024])
@pytest.mark.parametrize("partial", [True, False])
def test_the_size_of_a_mooncake_block_is_found_by_its_lengths(size: int, partial: bool, tmp_path: Path) -> None:
    lengths = [(37 * i * i) % 30_000 + 1_100 for i in range(300)]
    rows = [
        {"timestamp": 0, "input_length": n, "output_length": 1, "hash_ids": [*range(-(-n // size) if partial else n // size)]}
        for n in lengths
    ]
    damaged = [{**rows[0], "hash_ids": [1] * 999}, {**rows[0], "input_length": 10**9}, {**rows[0], "hash_ids": []}, "{"]
    path = written(tmp_path / "trace", *damaged, *rows)
    with open_log(path) as log:
        trace = log.trace()
    assert trace.block_tokens == size
    assert len(trace.requests) == len(rows)
    uncovered = f"hash_ids does not cover input_length in blocks of {size}"
    assert trace.skipped.counts == {uncovered: 2, "input_length is above 100,000,000": 1, "not JSON": 1}


def test_a_qwen_trace_may_have_other_blocks_as_well(tmp_path: Path) -> None:
    rows = [{**qwen(i, i), "input_length": 900 + 77 * i, "hash_ids": [*range(-(-(900 + 77 * i) // 64))]} for i in range(40)]
    with open_log(written(tmp_path / "trace", *rows)) as log:
        trace = log.trace()
    assert (log.format, trace.block_tokens, len(trace.requests)) == ("qwen", 64, 40)


def test_few_lengths_that_fit_many_sizes_mean_the_published_one(tmp_path: Path) -> None:
    assert block_tokens_of(written(tmp_path / "trace", mooncake(0, 1)), 512) == 512
    assert block_tokens_of(written(tmp_path / "trace", {"input_length": 3, "hash_ids": []}), 16) == 16


@pytest.mark.skipif(not MOONCAKE.exists(), reason="the trace is not here")
def test_mooncake_s_own_trace_has_blocks_of_512_tokens() -> None:
    with open_log(MOONCAKE) as log:
        assert (log.format, log.trace().block_tokens) == ("mooncake", 512)


def test_every_format_has_records_here() -> None:
    assert {format_ for format_, _ in RECORDS.values()} | {"agents"} == set(FORMATS)


BODY: Json = {"model": "m", "messages": [user("Hello")], "metadata": {"user_id": "u"}}
ANSWER: Json = {"id": "x", "created": 1_700_000_000, "choices": [{"message": {"role": "assistant", "content": "Hi"}}]}


@pytest.mark.parametrize(
    "record",
    [
        {"timestamp": 1_700_000_000, **BODY, "response": ANSWER},
        {"ts": 1_700_000_000_000, "request": BODY, "response": ANSWER},
        {"created_at": "2023-11-14T22:13:20Z", "request": json.dumps(BODY), "response": json.dumps(ANSWER)},
        {"request": {"method": "POST", "body": BODY}, "response": {"status_code": 200, "body": ANSWER}},
        {"request": BODY, "response": {**ANSWER, "created": None, "created_at": 1_700_000_000}},
    ],
)
def test_bodies_of_openai_s_and_anthropic_s_apis_are_read_as_clients_log_them(record: Json, tmp_path: Path) -> None:
    with open_log(written(tmp_path / "log", record)) as log:
        assert log.format == "chat"
        ((_, request),) = log.requests(Skipped())
    assert (request.time, request.user, request.scope[0]) == (1_700_000_000, "u", "m")
    assert [message.text for message in (*request.messages, *request.reply)] == ["Hello", "Hi"]


def test_the_time_zero_is_a_time_and_a_reply_of_json_is_text(tmp_path: Path) -> None:
    record = {"time": 0, "messages": [user("json?")], "response": '{"created": 5, "x": 1}'}
    with open_log(written(tmp_path / "log", record)) as log:
        ((_, request),) = log.requests(Skipped())
    assert (request.time, request.reply[0].text) == (0, '{"created": 5, "x": 1}')


def test_a_conversation_of_the_responses_api_is_a_session(tmp_path: Path) -> None:
    rows = [{"time": i, "input": f"{i}", "conversation": c} for i, c in enumerate(["conv_1", {"id": "conv_1"}])]
    with open_log(written(tmp_path / "log", *rows)) as log:
        assert [request.session for _, request in log.requests(Skipped())] == ["conv_1", "conv_1"]


def test_otel_s_collector_file_names_its_agent_spans_as_left_out(tmp_path: Path) -> None:
    agent = span(0, {"gen_ai.operation.name": "invoke_agent"})
    with open_log(written(tmp_path / "log", collector(agent, otel(0)), collector(otel(1), agent))) as log:
        trace = log.trace()
    assert len(trace.requests) == 2
    assert trace.skipped.counts == {"not a chat: invoke_agent": 2}
