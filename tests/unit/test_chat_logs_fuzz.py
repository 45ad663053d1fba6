"""Generated odd records of every log format between good ones: the good ones are read, the others are read or counted."""

import copy
import json
import math
import random
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpc_apps.logs.formats import open_trace
from lpc_apps.logs.log import open_log
from lpc_apps.logs.records import MISFIT_ALWAYS, Skipped
from lpc_apps.logs.traces import TraceError
from tests.nightly import EXAMPLES
from tests.unit.test_chat_logs import FORMS, LONG, as_bytes, asked, call, picture, shared, user

CANARY: Final = "canaryzebra"
ODD: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 10**30, 1e300, math.nan, math.inf, 0.5, "", " ", CANARY, f"{{{CANARY}", "[]", "{}", "[[]]"),
    *("null", '"x"', "\ud83d" + CANARY, "-" * 5000, [], {}, [None], [[[]]], [1, CANARY], [{}], {CANARY: CANARY}, {"": None}),
    *({"type": CANARY}, {"type": None}, {"role": None}, {"type": "text"}, {"type": "text", "text": None}, [{"type": 7}]),
    *([{"role": "user", "content": [None, 3]}], [{"role": "user"}], [{"role": ["user"]}], {"messages": CANARY}, {"parts": 3}),
    *([{"type": ["response.done"], "response": {}}], {"role": ["system"], "content": "x"}, {"type": [CANARY], "text": "x"}),
    *({"type": "tool_result"}, [{"type": "tool_result", "content": 5}], [{"type": "image"}], {"tool_calls": [None, 3, {}]}),
    *([{"type": "reasoning", "content": {"a": 1}}], {"function": 3}, {"value": {"stringValue": None}}, {"key": 3, "value": 4}),
    *({"kvlistValue": {"values": [3]}}, {"arrayValue": {"values": None}}, {"arrayValue": 3}, {"choices": [None]}, "1e400"),
    *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "99/Abc/2024:00:00:00 +0000", "2024-13-45", "2024-01-01T25:61"),
)
NAMES: Final = (
    *(
        "role",
        "content",
        "parts",
        "type",
        "tool_calls",
        "function_call",
        "usage",
        "response",
        "tools",
        "system",
        "time",
        "text",
    ),
    *(
        "messages",
        "input",
        "prompt",
        "instructions",
        "documents",
        "reasoning",
        "thinking_blocks",
        "metadata",
        "status",
        "events",
    ),
)


def nodes(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values inside a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in items for found in [(*path, key), *nodes(item, (*path, key))]]


def change(record: Any, draw: random.Random) -> Any:
    """Return a record with one value replaced, removed, renamed, added or put deeper, also inside a string of JSON."""
    record = copy.deepcopy(record)
    if not (paths := nodes(record)):
        return draw.choice(ODD)
    path = draw.choice(paths)
    at = record
    for key in path[:-1]:
        at = at[key]
    here, odd = at[path[-1]], copy.deepcopy(draw.choice(ODD))
    if isinstance(here, str) and here[:1] in "[{" and here and draw.random() < 0.7:
        with suppress(ValueError):
            at[path[-1]] = json.dumps(change(json.loads(here), draw))
            return record
    match draw.randrange(6):
        case 0 | 1:
            at[path[-1]] = odd
        case 2:
            del at[path[-1]]
        case 3 if isinstance(at, dict):
            at[draw.choice(NAMES)] = odd
        case 4:
            deep: Any = here
            for _ in range(draw.choice((1, 3, 90, 3000))):
                deep = [deep] if draw.random() < 0.5 else {"content": deep}
            at[path[-1]] = deep
        case _:
            at[path[-1]] = CANARY if isinstance(here, str) else str(here)
    return record


def odd_line(good: Any, draw: random.Random) -> bytes:
    line = as_bytes(good)
    kind = draw.randrange(10)
    if kind == 0:
        return line[: draw.randrange(1, len(line))]
    if kind == 1:
        at = draw.randrange(len(line))
        return (line[:at] + bytes(draw.randrange(256) for _ in range(3)) + line[at + 3 :]).replace(b"\n", b"")
    if kind == 2:
        return b'{"x": ' + b"7" * 5000 + b", " + line[1:]
    if kind == 3:
        return draw.choice((b"{}", b"[]", b"null", b"3", b"\\x22", b"\x00", b"NaN", b'"x"', b"{" * 5000, b"\xff\xfe\x00"))
    if isinstance(good, bytes):
        return line.replace(b"user", draw.choice((b"\\x22", b"\\xZZ", b"\\", b"\\x5C\\x5C", b"\\u12")), 1)
    record = good
    try:
        for _ in range(draw.randrange(1, 4)):
            record = change(record, draw)
        return json.dumps(record).encode()
    except RecursionError:  # of the test's own
        return b'{"time": 1, "messages": ' + b"[" * 900 + b"]" * 900 + b"}"


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=EXAMPLES, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, MISFIT_ALWAYS))
def test_good_records_are_read_whatever_stands_between_them(name: str, seed: int, count: int) -> None:
    draw = random.Random(seed)
    format, record = FORMS[name]  # noqa: A001
    lines = [as_bytes(record(0))]
    for _ in range(count):
        odd = odd_line(record(2), draw)  # not the same call as a good record
        lines += [odd] if odd.strip() else []
    lines.append(as_bytes(record(1)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        path.write_bytes(b"\n".join(lines) + b"\n")
        alone = Path(folder) / "alone"
        alone.write_bytes(lines[0] + b"\n" + lines[-1] + b"\n")
        skipped = Skipped()
        with open_log(path, format) as log:
            found = list(log.requests(skipped))
        places = [place for place, _ in found]
        with open_log(alone, format) as log:
            good = [request for _, request in log.requests(Skipped())]
        assert repr([dict(found)["log.jsonl:1"], dict(found)[f"log.jsonl:{len(lines)}"]]) == repr(good)
        if name not in ("langfuse page", "langfuse trace", "otel collector"):  # several records a line
            assert len(places) == len(set(places))
            assert len(places) + sum(skipped.counts.values()) == len(lines)
        trace = open_trace(path, format)
        assert CANARY not in repr((trace.reading(), skipped))


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    data=st.binary(max_size=300),
    format=st.sampled_from(("chat", "litellm", "langfuse", "otel", "nginx", "wildchat", "mooncake", "qwen")),
)
def test_any_bytes_are_a_trace_or_one_clear_error(data: bytes, format: str) -> None:  # noqa: A002
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(data)
        with pytest.raises(TraceError):
            open_trace(path, format)


EXTRAS: Final = (
    lambda n: user([picture(n), {"type": "text", "text": "What is it?"}]),
    lambda n: {"role": "assistant", "content": None, "tool_calls": [call(json.dumps({"x": n}))]},
    lambda n: {"role": "assistant", "content": [{"type": "tool_use", "name": n, "input": {}}]},
    lambda n: {"role": "tool", "content": n},
    lambda n: user([{"type": "tool_result", "content": [{"type": "text", "text": n}]}]),
    lambda n: {"role": "assistant", "content": None, "reasoning_content": n},
    lambda n: user([{"type": n, "x": 1}]),
    lambda n: user(n),
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    before=st.lists(st.tuples(st.sampled_from(EXTRAS), st.sampled_from("pqr")), max_size=4),
    part=st.sampled_from(EXTRAS),
    after=st.lists(st.tuples(st.sampled_from(EXTRAS), st.sampled_from("pqr")), max_size=4),
)
def test_two_prompts_share_what_precedes_their_one_difference(before: Any, part: Any, after: Any) -> None:
    start = [*asked(1), *(make(n) for make, n in before)]
    end = [*(make(n) for make, n in after), user(LONG)]

    def shared_of(*histories: list[Any]) -> tuple[int, int]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "log"
            path.write_text("".join(json.dumps({"time": i, "messages": h}) + "\n" for i, h in enumerate(histories)))
            return shared(open_trace(path, "chat"))

    common = shared_of(start, [*start, *end])[0]
    count, shorter = shared_of([*start, part("x"), *end], [*start, part("y"), *end])
    assert common - 1 <= count <= common + 2  # the difference is up to 100 characters after the start of its message
    assert count < shorter
    assert shared_of([*start, part("x"), *end], [*start, part("x"), *end])[0] == shorter
