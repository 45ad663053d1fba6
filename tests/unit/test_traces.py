"""Traces of three formats become requests, and conversations are recovered where the file does not name them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lpc.errors import UsageError
from lpc_apps.logs.formats import open_trace
from lpc_apps.logs.traces import Trace, TracedRequest, TraceError
from lpc_apps.logs.traces.chat import BLOCK_TOKENS
from lpc_apps.logs.traces.mooncake import SHARED_AFTER

MOONCAKE = Path(__file__).parents[3] / "shared" / "data" / "mooncake_conversation_trace.jsonl"
SYSTEM = 0

Read = Callable[..., Trace]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(format: str, *lines: dict[str, Any] | str, **options: Any) -> Trace:  # noqa: A002
        return open_trace(write(tmp_path, *lines), format, **options)

    return read


def write(tmp_path: Path, *lines: dict[str, Any] | str) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def mooncake(second: float, *blocks: int) -> dict[str, Any]:
    return {
        "timestamp": second * 1000,
        "input_length": len(blocks) * 512 - 100,
        "output_length": 9,
        "hash_ids": list(blocks),
    }


def qwen(chat: int, second: float, parent: int = -1, turn: int = 1, blocks: tuple[int, ...] = (1, 2)) -> dict[str, Any]:
    return {
        "chat_id": chat,
        "parent_chat_id": parent,
        "timestamp": second,
        "input_length": len(blocks) * 16 - 3,
        "output_length": 7,
        "type": "search",
        "turn": turn,
        "hash_ids": list(blocks),
    }


def chat(second: object, *contents: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]
    return {"time": second, "messages": messages, **fields}


def conversations(trace: Trace) -> list[tuple[str, int]]:
    return [(request.conversation, request.turn) for request in trace.requests]


def shares_a_prefix_of(first: TracedRequest, second: TracedRequest) -> int:
    shared = 0
    for one, other in zip(first.blocks, second.blocks, strict=False):
        if one != other:
            break
        shared += 1
    return shared


# Mooncake


def test_a_mooncake_line_is_a_request_in_seconds_since_the_first(read: Read) -> None:
    trace = read("mooncake", mooncake(10, 1, 2), mooncake(11.5, 3, 4))
    assert trace.block_tokens == 512
    assert trace.start is None
    assert trace.duration == 1.5
    assert trace.requests[1] == TracedRequest(1.5, 924, 9, (2, 3), "c2", 1, "turn1")


def test_a_request_that_extends_all_full_blocks_of_an_earlier_one_is_its_next_turn(read: Read) -> None:
    trace = read("mooncake", mooncake(0, 1, 2, 3), mooncake(9, 1, 2, 4, 5), mooncake(20, 1, 2, 4, 6, 7))
    assert conversations(trace) == [("c1", 1), ("c1", 2), ("c1", 3)]
    assert [r.category for r in trace.requests] == ["turn1", "turn2", "turn3-4"]


def test_the_deepest_match_wins_and_among_equals_the_latest(read: Read) -> None:
    lines = [mooncake(0, 1, 9), mooncake(1, 1, 2, 3, 9), mooncake(2, 1, 8), mooncake(3, 1, 2, 3, 4, 9), mooncake(4, 1, 7, 9)]
    assert conversations(read("mooncake", *lines)) == [("c1", 1), ("c1", 2), ("c1", 2), ("c1", 3), ("c1", 3)]


def test_a_prefix_that_many_prompts_share_makes_no_conversation(read: Read) -> None:
    others = [mooncake(i, SYSTEM, 100 + 2 * i, 101 + 2 * i) for i in range(SHARED_AFTER + 1)]
    trace = read("mooncake", *others, mooncake(50, SYSTEM, 10), mooncake(60, SYSTEM, 20, 30), mooncake(70, SYSTEM, 20, 40))
    short, first, second = trace.requests[-3:]
    assert (first.turn, second.turn) == (1, 2)
    assert first.conversation == second.conversation != short.conversation
    assert (short.linkable, first.linkable) == (False, True)


@pytest.mark.skipif(not MOONCAKE.exists(), reason="the Mooncake trace is not at hand")
def test_a_cut_of_the_real_trace_changes_no_later_turn(tmp_path: Path) -> None:
    trace = open_trace(MOONCAKE, "mooncake")
    assert (len(trace.requests), trace.skipped.counts) == (12_031, {})
    assert sum(request.turn > 1 for request in trace.requests) == 3_975
    assert 3_500 < trace.duration < 3_600
    assert min(len(request.blocks) for request in trace.requests) > 0
    start = tmp_path / "start.jsonl"
    with MOONCAKE.open() as file:
        start.write_text("".join(line for line, _ in zip(file, range(3_000), strict=False)))
    assert open_trace(start, "mooncake").requests == trace.requests[:3_000]


# Qwen-Bailian


def test_a_qwen_line_keeps_its_type_and_turn(read: Read) -> None:
    trace = read("qwen", qwen(5, 61.5), qwen(6, 62.0, parent=5, turn=2, blocks=(1, 2, 3)))
    assert trace.block_tokens == 16
    first, second = trace.requests
    assert (first.arrival, second.arrival) == (0, 0.5)
    assert (second.input_tokens, second.output_tokens, second.category) == (45, 7, "search")
    assert shares_a_prefix_of(first, second) == 2


def test_the_root_of_the_chain_of_parents_names_the_conversation(read: Read) -> None:
    trace = read("qwen", qwen(5, 1), qwen(7, 3, parent=6, turn=3), qwen(6, 2, parent=5, turn=2), qwen(8, 4))
    assert conversations(trace) == [("5", 1), ("5", 2), ("5", 3), ("8", 1)]


# Chat logs


def test_a_chat_line_is_a_request_whose_tokens_are_the_gateway_s(read: Read) -> None:
    usage = {"prompt_tokens": 11, "completion_tokens": 3}
    trace = read("chat", chat(1_700_000_000, "hello", usage=usage, category="support", session_id="a"))
    assert trace.start == 1_700_000_000
    assert trace.block_tokens == BLOCK_TOKENS
    request = trace.requests[0]
    assert (request.arrival, request.input_tokens, request.output_tokens, request.category) == (0, 11, 3, "support")


def test_a_turn_s_blocks_start_the_next_turn_s(read: Read) -> None:
    first, second, other = read(
        "chat", chat(0, "q" * 500), chat(9, "q" * 500, "a" * 500, "r" * 500), chat(10, "Q" + "q" * 499)
    ).requests
    assert shares_a_prefix_of(first, second) == len(first.blocks) - 1  # all but the partial one
    assert shares_a_prefix_of(first, other) == 0


def test_a_logged_reply_has_the_blocks_that_the_next_prompt_has_where_it_repeats_it(read: Read) -> None:
    first, second = read("chat", chat(0, "q" * 500, response="a" * 500), chat(9, "q" * 500, "a" * 500, "r" * 500)).requests
    assert first.with_reply is not None
    full = (first.input_tokens + first.output_tokens) // BLOCK_TOKENS
    assert first.with_reply[:full] == second.blocks[:full]
    assert full > len(first.blocks) + 5
    assert read("chat", chat(0, "q" * 500)).requests[0].with_reply is None


def test_without_a_session_id_messages_link_requests(read: Read) -> None:
    trace = read("chat", chat(0, "a"), chat(1, "b"), chat(2, "a", "x", "c"), chat(3, "a", "x", "c", "y", "d"))
    assert conversations(trace) == [("c1", 1), ("c2", 1), ("c1", 2), ("c1", 3)]


def test_a_logged_response_tells_apart_conversations_that_open_alike(read: Read) -> None:
    trace = read("chat", chat(0, "hi", response="x"), chat(1, "hi", response="y"), chat(2, "hi", "x", "c"))
    assert conversations(trace) == [("c1", 1), ("c2", 1), ("c1", 2)]


# Wrong lines and files

GOOD = {"mooncake": mooncake(0, 1, 2), "qwen": qwen(1, 0), "chat": chat(0, "hello")}


@pytest.mark.parametrize(
    ("format", "wrong", "reason"),
    [
        ("mooncake", "{", "not JSON"),
        ("mooncake", GOOD["mooncake"] | {"timestamp": 10**400}, "timestamp is not a number of milliseconds"),
        ("mooncake", GOOD["mooncake"] | {"input_length": 0}, "input_length is not a whole number from 1"),
        ("mooncake", GOOD["mooncake"] | {"output_length": True}, "output_length is not a whole number from 0"),
        ("mooncake", GOOD["mooncake"] | {"hash_ids": "1, 2"}, "hash_ids is not a list of whole numbers"),
        ("mooncake", GOOD["mooncake"] | {"hash_ids": []}, "hash_ids does not cover input_length in blocks of 512"),
        ("qwen", GOOD["qwen"], "chat_id is another line's"),
        ("qwen", GOOD["qwen"] | {"type": ""}, "type is not text"),
        ("chat", chat("yesterday", "a"), "time is not ISO 8601"),
        ("chat", chat(-1, "a"), "time is neither a number of seconds nor ISO 8601"),
        ("chat", chat(10**21, "a"), "time is neither a number of seconds nor ISO 8601"),
        ("chat", chat(float("nan"), "a"), "time is neither a number of seconds nor ISO 8601"),
        ("chat", chat("0001-01-01", "a"), "time is before 1970"),
        ("chat", chat(None, "a"), "no time"),
        ("chat", {"time": 0, "messages": "a"}, "no messages"),
        ("chat", chat(0, " "), "no message with content"),
        (
            "chat",
            {"time": 0, "messages": [{"role": "user", "content": 1}]},
            "content is neither text nor a list of parts",
        ),
        ("chat", {"time": 0, "messages": [{"role": "user", "content": [{"type": "text"}]}]}, "a text part has no text"),
        ("chat", chat(0, "a", response=1), "response is neither text nor a message"),
        ("chat", chat(0, "a", usage=1), "usage is not an object"),
        ("chat", chat(0, "a", session_id=[]), "session_id is neither text nor a whole number"),
    ],
)
def test_a_wrong_line_is_counted_and_named(read: Read, format: str, wrong: dict[str, Any] | str, reason: str) -> None:  # noqa: A002
    trace = read(format, GOOD[format], "", wrong)
    assert len(trace.requests) == 1
    assert trace.skipped.counts == {reason: 1}
    assert trace.skipped.first == {reason: "trace.jsonl:3"}


def test_ten_lines_may_always_be_wrong_and_eleven_of_a_small_file_may_not(read: Read) -> None:
    assert read("mooncake", GOOD["mooncake"], *["{"] * 10).skipped.counts == {"not JSON": 10}
    with pytest.raises(
        TraceError, match=r"11 of 12 records of .*trace\.jsonl are wrong, more than 90% and 10: not JSON: 11 \(first: trace"
    ):
        read("mooncake", GOOD["mooncake"], *["{"] * 11)


def test_no_message_repeats_a_line(read: Read) -> None:
    secret = "my secret"
    with pytest.raises(TraceError) as caught:
        read("chat", *[chat(secret, secret, session_id=[secret])] * 2, '{"time": "my secret')
    assert secret not in str(caught.value)


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match="use one of agents, qwen, aiperf, mooncake, vllm, sglang, bedrock, vertex, har, runs, lmcache, otel, litellm",
    ):
        open_trace(write(tmp_path, GOOD["qwen"]), "csv")


@pytest.mark.parametrize("format", ["mooncake", "qwen", "chat"])
def test_files_that_are_missing_empty_or_of_another_format_are_refused(tmp_path: Path, format: str) -> None:  # noqa: A002
    with pytest.raises(TraceError, match="No such file"):
        open_trace(tmp_path / "none", format)
    with pytest.raises(TraceError, match="cannot read"):
        open_trace(tmp_path, format)
    with pytest.raises(TraceError, match=r"trace\.jsonl is empty: it has no requests"):
        open_trace(write(tmp_path, ""), format)
    with pytest.raises(TraceError, match="check the file and --format"):
        open_trace(write(tmp_path, {"another": "format"}), format)
