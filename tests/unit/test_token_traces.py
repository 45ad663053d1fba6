"""LMCache's token trace: a span per look-up, of which a request may have several, becomes requests with blocks of tokens."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from lpc_apps.logs.formats import open_trace
from lpc_apps.logs.log import open_log
from lpc_apps.logs.records import MOST_VALUES, TraceError
from lpc_apps.logs.traces import Trace
from lpc_apps.logs.traces.lmcache import AGAIN, BLOCK_TOKENS
from tests.command import lpc

Json = dict[str, Any]
START = 1_780_000_000_000_000_000


def text(value: str) -> Json:
    return {"stringValue": value}


def array_of(tokens: list[int]) -> Json:
    return {"arrayValue": {"values": [{"intValue": str(token)} for token in tokens]}}


def span(second: float, tokens: object, name: str | None = "r", model: str = "m", **fields: Any) -> Json:
    """As the collector's file exporter writes LMCache's span of a look-up."""
    named = [] if name is None else [{"key": "session_id", "value": text(name)}]
    ids = array_of(tokens) if isinstance(tokens, list) else tokens
    return {
        "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": "eee19b7ec3c1b174",
        "name": "mp.request.trace",
        "kind": 1,
        "startTimeUnixNano": str(START + int(second * 1e9)),
        "endTimeUnixNano": str(START + int(second * 1e9)),
        "attributes": [
            *named,
            {"key": "lmcache.model", "value": text(model)},
            {"key": "lmcache.input_ids", "value": ids},
        ],
        "status": {},
        **fields,
    }


def other(second: float) -> Json:
    """Another span of LMCache, which a collector puts into the same lines."""
    return span(second, []) | {"name": "mp.lookup_prefetch", "attributes": [{"key": "session_id", "value": text("r")}]}


def line(*spans: Json) -> Json:
    scope = {"scope": {"name": "lmcache.mp_server"}, "spans": list(spans)}
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [scope]}]}


def write(folder: Path, *lines: Json | str) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines))
    return path


def prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(150_000), k=length)


def read(folder: Path, *lines: Json | str) -> Trace:
    with open_log(write(folder, *lines)) as log:
        assert log.format == "lmcache"
        return log.trace()


def hits(trace: Trace) -> list[int]:
    seen: set[int] = set()
    found = []
    for request in trace.requests:
        found.append(sum(block in seen for block in request.blocks))
        seen.update(request.blocks)
    return found


def test_prompts_share_the_full_blocks_that_they_begin_with_alike(tmp_path: Path) -> None:
    draw = random.Random(3)
    prompts: list[list[int]] = []
    for _ in range(60):
        earlier = draw.choice(prompts) if prompts else []
        prompts.append(earlier[: draw.randint(0, len(earlier))] + prompt(draw.random().__hash__(), draw.randint(1, 300)))
    trace = read(tmp_path, *(line(span(at, tokens, f"r{at}")) for at, tokens in enumerate(prompts)))
    expected = []
    for at, tokens in enumerate(prompts):
        longest = 0
        for before in prompts[:at]:
            same = next(
                (i for i, (a, b) in enumerate(zip(before, tokens, strict=False)) if a != b), min(map(len, (before, tokens)))
            )
            longest = max(longest, same // BLOCK_TOKENS)
        expected.append(longest)
    assert hits(trace) == expected
    assert sum(expected) > 100
    assert [request.input_tokens for request in trace.requests] == [len(tokens) for tokens in prompts]
    assert {request.output_tokens for request in trace.requests} == {0}
    assert (trace.decodes, trace.start) == (False, START / 1e9)


def test_a_request_that_is_looked_up_again_counts_once_at_its_first_time(tmp_path: Path) -> None:
    first = prompt(1, 600)
    lines = [
        line(span(9, first + prompt(2, 40), "a"), other(9)),
        line(span(1, first, "a"), span(5, first, "a"), span(6, first, "b"), other(6)),
    ]
    trace = read(tmp_path, *lines)
    assert [request.arrival for request in trace.requests] == [0, 5]
    assert [request.input_tokens for request in trace.requests] == [600, 600]
    assert trace.skipped.counts == {AGAIN: 2, "not a span of a look-up": 2}
    assert trace.skipped.reading()[AGAIN]["first"].endswith(":2")


def test_another_prompt_under_the_same_name_is_another_request(tmp_path: Path) -> None:
    first = prompt(1, 600)
    ends = [*first[:-1], first[-1] + 1]
    lines = [line(span(at, tokens, "a")) for at, tokens in enumerate((first, prompt(2, 600), ends, first[:590]))]
    trace = read(tmp_path, *lines)
    assert [request.input_tokens for request in trace.requests] == [600, 600, 600, 590]
    other_model = read(tmp_path, line(span(0, first, "a")), line(span(1, first, "a", "n")))
    assert (len(other_model.requests), hits(other_model)) == (2, [0, 0])


def test_look_ups_without_a_name_are_requests(tmp_path: Path) -> None:
    first = prompt(1, 600)
    trace = read(tmp_path, line(span(0, first, None), span(1, first, None)), line(span(2, first, None)))
    assert len(trace.requests) == 3
    assert hits(trace) == [0, 37, 37]


def test_conversations_are_recovered_from_what_prompts_begin_with(tmp_path: Path) -> None:
    one, two = prompt(1, 640), prompt(2, 640)
    lines = [(one, "a"), (two, "b"), (one + prompt(3, 100), "c"), (two + prompt(4, 100), "d"), (one + prompt(3, 400), "e")]
    trace = read(tmp_path, *(line(span(10 * at, tokens, name)) for at, (tokens, name) in enumerate(lines)))
    places = [(request.conversation, request.turn) for request in trace.requests]
    assert places == [("c1", 1), ("c2", 1), ("c1", 2), ("c2", 2), ("c1", 3)]


@pytest.mark.parametrize(
    "written",
    [
        lambda tokens: array_of(tokens),
        lambda tokens: {"arrayValue": {"values": [{"intValue": token} for token in tokens]}},
        lambda tokens: {"array_value": {"values": [{"int_value": token} for token in tokens]}},
        lambda tokens: {"stringValue": json.dumps(tokens)},
        lambda tokens: {"stringValue": json.dumps([str(token) for token in tokens])},
        lambda tokens: json.dumps(tokens),
    ],
    ids=["text of numbers", "numbers", "snake case", "JSON", "JSON of texts", "plain text"],
)
def test_token_ids_are_read_however_a_collector_writes_them(written: Any, tmp_path: Path) -> None:
    tokens = prompt(5, 333)
    trace = read(tmp_path, line(span(0, written(tokens), "a")), line(span(1, array_of(tokens), "b")))
    assert hits(trace) == [0, 20]


def test_spans_without_an_envelope_and_with_attributes_by_name_are_read(tmp_path: Path) -> None:
    tokens = prompt(5, 333)
    plain = {
        "name": "renamed",
        "start_time": "2026-11-30T09:00:01Z",
        "span_id": "1",
        "attributes": {"session_id": "a", "lmcache.model": "m", "lmcache.input_ids": tokens},
    }
    trace = read(
        tmp_path, plain, plain | {"start_time": "2026-11-30T09:00:02Z", "attributes": plain["attributes"] | {"session_id": 7}}
    )
    assert hits(trace) == [0, 20]


WRONG = {
    "null": None,
    "text": "abc",
    "cut JSON": "[1, 2",
    "negative": [-1, 2],
    "too large": [1, 2**32],
    "fraction": {"arrayValue": {"values": [{"doubleValue": 1.5}]}},
    "truth": {"arrayValue": {"values": [{"intValue": True}]}},
    "text of no number": {"arrayValue": {"values": [{"intValue": "1e3"}]}},
    "digits of another script": {"arrayValue": {"values": [{"intValue": "\u0661"}]}},
    "digits without an end": {"arrayValue": {"values": [{"intValue": "9" * 5000}]}},
    "an object": {"kvlistValue": {"values": []}},
    "lists": {"arrayValue": {"values": [{"arrayValue": {"values": []}}]}},
    "numbers and texts": {"arrayValue": {"values": [{"intValue": 1}, {"intValue": "2"}]}},
    "one of another kind": {"arrayValue": {"values": [{"intValue": "1"}, {"doubleValue": 2.0}]}},
    "underscores": {"arrayValue": {"values": [{"intValue": "1_0"}]}},
    "empty text": {"arrayValue": {"values": [{"intValue": "1"}, {"intValue": ""}]}},
    "nothing inside": {"arrayValue": {"values": [{}]}},
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_look_up_without_token_ids_is_counted_and_many_are_refused(kind: str, tmp_path: Path) -> None:
    good = [line(span(at, prompt(at, 40), f"r{at}")) for at in range(20)]
    bad = span(0, WRONG[kind], "bad")
    trace = read(tmp_path, *good, line(bad, span(30, prompt(30, 40), "beside")))
    assert len(trace.requests) == 21
    assert trace.skipped.counts == {"lmcache.input_ids is not a list of token ids": 1}
    with pytest.raises(TraceError, match="10 of 30 requests"):
        read(tmp_path, *good, *[line(bad)] * 10)


def test_empty_prompts_missing_times_and_cut_lines_are_counted(tmp_path: Path) -> None:
    good = [line(span(at, prompt(at, 40), f"r{at}")) for at in range(20)]
    timeless = span(0, prompt(1, 40), "x", startTimeUnixNano="0")
    cut = json.dumps(line(span(50, prompt(1, 400), "y")))[:900]
    trace = read(tmp_path, *good, "", "[]", '{"resourceSpans": 7}', line(), line(span(1, [], "e")), line(timeless), cut)
    assert len(trace.requests) == 20
    counts = trace.skipped.counts
    assert counts["lmcache.input_ids is empty"] == 1
    assert counts["no time"] == 1
    assert sum(counts.values()) == 5, counts
    del good[1:]
    with pytest.raises(TraceError, match="no request of this format"):
        open_trace(write(tmp_path, line(other(1)), line(other(2))), "lmcache")


def test_a_batch_with_more_values_than_a_record_may_have_is_counted(tmp_path: Path) -> None:
    huge = {"stringValue": f"[{'7,' * MOST_VALUES}7]"}
    long = prompt(9, 200_000)
    trace = read(tmp_path, line(span(0, long, "a")), line(span(1, huge, "b")), line(span(2, long, "c")))
    assert [request.input_tokens for request in trace.requests] == [200_000, 200_000]
    assert sum(trace.skipped.counts.values()) == 1


def test_a_sample_keeps_all_prompts_of_a_family(tmp_path: Path) -> None:
    from lpc_apps.logs.traces.sample import Sample

    lines = [
        line(span(4 * family + at, prompt(family, 200 + 50 * at), f"{family}.{at}")) for family in range(60) for at in range(3)
    ]
    path = write(tmp_path, *lines)
    trace = open_trace(path, "lmcache", sample=Sample(3, 1))
    assert 0 < len(trace.requests) < 180
    assert len(trace.requests) % 3 == 0
    assert sum(hits(trace)) > 0


def test_simulate_and_why_read_a_token_trace(tmp_path: Path) -> None:
    lines = [
        line(span(10 * turn + session, prompt(session, 400 + 200 * turn), f"{session}.{turn}"), other(turn))
        for turn in range(5)
        for session in range(8)
    ]
    path = write(tmp_path, *lines)
    done = lpc("simulate", str(path), "--capacity", "20000", "--policies", "lru", "--count-from", "0", "--json")
    assert done.returncode == 0, done.err
    row = json.loads(done.out)["rows"][0]
    assert row["hit_rate"] == pytest.approx((400 + 600 + 800 + 1000) / 4000, abs=0.01)
    why = lpc("why", str(path))
    assert why.returncode == 0, why.err
    assert "the format lmcache has no names of conversations, so no cause can be named" in " ".join((why.out + why.err).split())


def test_an_export_of_a_token_trace_gives_its_hits(tmp_path: Path) -> None:
    lines = [line(span(at, prompt(at % 3, 100 + 30 * at), f"r{at}")) for at in range(12)]
    trace = read(tmp_path, *lines)
    assert lpc("export", str(tmp_path / "trace.jsonl"), "--anonymous", "--to", str(tmp_path / "out.jsonl")).returncode == 0
    again = open_trace(tmp_path / "out.jsonl", "mooncake")
    assert hits(again) == hits(trace)
    assert sum(hits(trace)) > 0
    assert [request.turn for request in again.requests] == [request.turn for request in trace.requests]
