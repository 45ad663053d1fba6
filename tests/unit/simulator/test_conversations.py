"""Conversations without times: how a file is read, and what is drawn from it."""

import gzip
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lpc.model.conversation import UserTurns
from lpc_apps.logs.datasets.conversation import examples_of
from lpc_apps.logs.records import TraceError
from lpc_apps.logs.registry import load
from lpc_apps.simulator.amounts import SimulationError
from lpc_apps.simulator.conversation_log import MARKUP_TOKENS, read_conversations
from lpc_apps.simulator.conversations import (
    BLOCK_TOKENS,
    MAX_CONTEXT,
    SHARED_FROM,
    WARM_UP_S,
    Conversations,
    ConversationTokens,
    draw,
    load_sample,
    save_sample,
)
from lpc_apps.simulator.run import SimulationRun, WorkloadSpec, build, run_one
from lpc_apps.simulator.sessions import chain

CANARY = "canaryzebra"
USER, REPLY = {"role": "user", "content": "how are you"}, {"role": "assistant", "content": "fine thanks a lot"}
PROMPT, ANSWER = MARKUP_TOKENS + 3, 4
"""Tokens of USER as a prompt, and of REPLY."""


def said(role: str, content: object, **rest: object) -> dict[str, object]:
    return {"role": role, "content": content, **rest}


def written(path: Path, *records: object) -> Path:
    path.write_text("".join(record if isinstance(record, str) else json.dumps(record) + "\n" for record in records))
    return path


def read(tmp_path: Path, *conversations: Sequence[object], **rest: object) -> Conversations:
    records = [{"messages": list(messages), **rest} for messages in conversations]
    return read_conversations(written(tmp_path / "c.jsonl", *records))


def lengths(tmp_path: Path, *messages: object, **rest: object) -> tuple[Sequence[int], Sequence[int], Sequence[bool]]:
    (found,) = read(tmp_path, messages, **rest).found
    return found.prompts, found.replies, found.waits


def test_each_reply_ends_a_request_of_what_was_said_since_the_last_one(tmp_path: Path) -> None:
    assert lengths(tmp_path, USER, REPLY, USER, REPLY) == ([PROMPT] * 2, [ANSWER] * 2, [True] * 2)


@pytest.mark.parametrize(
    ("messages", "prompts", "replies", "waits"),
    [
        pytest.param([USER], [PROMPT], [1], [True], id="a prompt without a reply"),
        pytest.param([USER, USER, REPLY], [2 * PROMPT], [ANSWER], [True], id="two prompts in a row"),
        pytest.param([USER, REPLY, REPLY], [PROMPT], [2 * ANSWER], [True], id="two replies in a row"),
        pytest.param([USER, said("assistant", "")], [PROMPT], [1], [True], id="an empty reply"),
        pytest.param([USER, said("assistant", None), USER], [PROMPT] * 2, [1, 1], [True] * 2, id="no content"),
        pytest.param([REPLY, USER, REPLY], [PROMPT + MARKUP_TOKENS + ANSWER], [ANSWER], [True], id="a greeting"),
        pytest.param([USER, REPLY, said("system", "x")], [PROMPT], [ANSWER], [True], id="instructions at the end"),
        pytest.param(
            [USER, REPLY, said("tool", "how are you"), REPLY], [PROMPT] * 2, [ANSWER] * 2, [True, False], id="a tool's result"
        ),
    ],
)
def test_odd_orders_of_messages_make_the_requests_that_an_engine_got(
    messages: list[object], prompts: list[int], replies: list[int], waits: list[bool], tmp_path: Path
) -> None:
    assert lengths(tmp_path, *messages) == (prompts, replies, waits)


def test_the_parts_of_a_message_are_counted_together(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "how are you"}, {"type": "image_url", "image_url": {"url": "u"}}]
    assert lengths(tmp_path, said("user", parts)) == ([PROMPT + 1024], [1], [True])
    assert read(tmp_path, [said("user", parts)]).reading == {
        "file": "c.jsonl",
        "conversations": 1,
        "requests": 1,
        "skipped": {},
        "estimated": {"image": 1},
    }


def test_definitions_of_tools_are_in_the_first_prompt_alone(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "weather"}}
    (first, second), _, _ = lengths(tmp_path, USER, REPLY, USER, tools=[tool])
    assert first > PROMPT == second


WRONG: dict[str, object] = {
    "not JSON": f'{{"{CANARY}\n',
    "not a JSON object": [CANARY],
    "no field messages": {"text": CANARY},
    "no messages": {"messages": []},
    "a message is not an object": {"messages": [CANARY]},
    "content is neither text nor a list of parts": {"messages": [said("user", 7)]},
    "a text part has no text": {"messages": [said("user", [{"type": "text", "text": 7}])]},
    "unknown role": {"messages": [USER, said("gpt", CANARY), USER]},
    "a message has no role": {"messages": [{"content": CANARY}]},
    "no user message": {"messages": [said("system", CANARY)]},
    "no message with content": {"messages": [said("user", " ")]},
    "id repeated (write one record per conversation, with all its messages)": {"id": "a", "messages": [USER, REPLY, USER]},
    f"first request longer than {MAX_CONTEXT:,} tokens": {"messages": [said("user", f"{CANARY} " * 900_000)]},
}


def test_wrong_records_change_nothing_but_the_report(tmp_path: Path) -> None:
    good = [{"id": name, "messages": [USER, REPLY] * count} for name, count in (("a", 1), ("b", 5), ("c", 2))]
    plain = read_conversations(written(tmp_path / "good.jsonl", *good))
    mixed = read_conversations(written(tmp_path / "mixed.jsonl", good[0], *WRONG.values(), *good[1:]))
    assert mixed.found == plain.found
    assert mixed.reading is not None
    assert mixed.reading["skipped"] == {
        reason: {"records": 1, "first": f"mixed.jsonl:{number}", "lost": True} for number, reason in enumerate(WRONG, 2)
    }
    assert CANARY not in repr(mixed.reading)


def test_a_file_with_nothing_to_replay_is_refused_with_the_reasons(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no request of this format \(unknown role: 1 \(first: x.jsonl:1\)"):
        read_conversations(written(tmp_path / "x.jsonl", WRONG["unknown role"]))


def test_a_conversation_ends_before_its_context_is_too_long_and_that_is_counted(tmp_path: Path) -> None:
    long = read(tmp_path, [USER, REPLY, said("user", "word " * 2_000_000), REPLY, USER, REPLY])
    (found,) = long.found
    assert (found.prompts, found.replies) == ([PROMPT], [ANSWER])
    assert long.reading is not None
    assert long.reading["estimated"] == {f"request beyond {MAX_CONTEXT:,} tokens": 2}


def test_a_compressed_file_and_an_array_are_read_as_well(tmp_path: Path) -> None:
    records = [{"messages": [USER, REPLY]}] * 2
    plain = read_conversations(written(tmp_path / "c.jsonl", *records))
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress((tmp_path / "c.jsonl").read_bytes()))
    (tmp_path / "c.json").write_text(json.dumps(records, indent=1))
    assert read_conversations(tmp_path / "c.jsonl.gz").found == plain.found == read_conversations(tmp_path / "c.json").found


SYSTEM = said("system", " ".join(f"rule {number}" for number in range(40)))


def own(text: str) -> list[object]:
    return [SYSTEM, said("user", f"{text} " * 60), REPLY, USER, REPLY]


def test_a_system_message_of_two_conversations_is_shared_blocks(tmp_path: Path) -> None:
    found = read(tmp_path, own("red"), own("green"), [said("user", "blue " * 60)]).found
    (system, *_), _, _ = lengths(tmp_path, SYSTEM, said("user", ""), USER)
    assert found[0].shared == found[1].shared
    assert len(found[0].shared) in range(80 // BLOCK_TOKENS, system // BLOCK_TOKENS + 1)
    assert not found[2].shared
    assert not any(one.shared for one in read(tmp_path, own("red"), [said("user", "blue")]).found)


def test_equal_conversations_share_no_more_than_their_first_prompt(tmp_path: Path) -> None:
    first, second = read(tmp_path, own("red"), own("red")).found
    assert len(first.shared) == first.prompts[0] // BLOCK_TOKENS
    assert first == second


def test_prompts_of_different_models_share_nothing(tmp_path: Path) -> None:
    records = [{"messages": own(text), "model": text} for text in ("red", "green")]
    assert not any(one.shared for one in read_conversations(written(tmp_path / "c.jsonl", *records)).found)


def test_the_held_out_half_is_the_one_that_training_does_not_see(tmp_path: Path) -> None:
    records = [{"messages": [SYSTEM, said("user", ""), said("user", f"prompt {number}"), REPLY, USER]} for number in range(40)]
    path = written(tmp_path / "c.jsonl", *records)
    trained = {
        example.conversation
        for conversation in load("conversations", path)
        for example in examples_of(conversation, 5)
        if example.split != "evaluation"
    }
    held_out = read_conversations(path, held_out=True)
    keys = {one.key for one in held_out.found}
    assert keys.isdisjoint(trained)
    assert keys | trained == {one.key for one in read_conversations(path).found}
    assert held_out.reading is not None
    (skipped,) = held_out.reading["skipped"].items()
    assert (skipped[0], skipped[1]["records"]) == ("not of the half that lpc train holds out", len(trained))


class Scripted:
    """Predicts 0.1 times the number of user turns."""

    window = 2

    def __init__(self) -> None:
        self.asked: list[UserTurns] = []

    def probabilities(self, turns: Sequence[UserTurns]) -> list[float]:
        self.asked += turns
        return [turn.turn_count / 10 for turn in turns]


def test_each_request_has_the_prediction_of_its_user_turn(tmp_path: Path) -> None:
    messages = [[USER, REPLY, said("tool", "42"), REPLY, USER, REPLY], [USER]]
    path = written(tmp_path / "c.jsonl", *({"messages": found} for found in messages))
    scorer = Scripted()
    found = read_conversations(path, scorer).found
    assert [one.probability for one in found] == [[0.1, 0.1, 0.2], [0.1]]
    assert scorer.asked[2].prompts == ("how are you",) * 2
    assert [one.probability for one in read_conversations(path).found] == [[None] * 3, [None]]


def test_conversations_are_stored_without_loss(tmp_path: Path) -> None:
    found = read(tmp_path, own("red"), own("green"), [USER, REPLY, said("tool", "x"), REPLY])
    save_sample(found, tmp_path / "c.json.gz")
    again = load_sample(tmp_path / "c.json.gz")
    assert (again.name, again.reading) == ("c.jsonl", found.reading)
    assert [vars(one) | {"shared": tuple(one.shared)} for one in again.found] == [vars(one) for one in found.found]


def tokens(**changes: Any) -> ConversationTokens:
    return ConversationTokens(**{"key": "a", "prompts": [40] * 3, "replies": [20] * 3} | changes)


def drawn(*found: ConversationTokens, **options: Any) -> Any:
    return draw(Conversations("x", found), **options)


PLAIN = tokens(probability=[None] * 3, waits=[True] * 3, shared=(0, 1))


def test_a_prompt_begins_with_all_blocks_of_the_conversation_and_with_shared_ones_only_of_others() -> None:
    turns = [list(chain(first)) for first in drawn(PLAIN, active=5).arrivals]
    for conversation in turns:
        assert [turn.input_tokens for turn in conversation] == [40, 100, 160]
        for turn, after in pairwise(conversation):
            assert list(after.contents)[: len(turn.all_contents)] == list(turn.all_contents)
            assert len(turn.all_contents) == (turn.input_tokens + turn.output_tokens) // BLOCK_TOKENS
    blocks = [set(conversation[-1].all_contents) for conversation in turns]
    assert set.intersection(*blocks) == {SHARED_FROM, SHARED_FROM + 1}
    assert sum(map(len, blocks)) - 2 * (len(blocks) - 1) == len(set.union(*blocks))


@pytest.mark.parametrize("law", ["exponential", "lognormal"])
def test_think_times_have_their_mean_and_so_many_conversations_are_active(law: Any) -> None:
    workload = drawn(PLAIN, think_time=50.0, law=law, active=120, seed=3)
    gaps = [turn.gap for first in workload.arrivals for turn in list(chain(first))[1:]]
    assert sum(gaps) / len(gaps) == pytest.approx(50, rel=0.06)
    # Each is active for three think times, of which the last is not seen.
    starts = [first.arrival for first in workload.arrivals]
    assert sum(WARM_UP_S <= start < workload.until for start in starts) == pytest.approx(1200 / (150.6 / 120), rel=0.1)
    assert (workload.count_from, workload.until) == (2400, 3600)


def test_a_tools_result_follows_at_once() -> None:
    workload = drawn(tokens(probability=[None] * 3, waits=[True, False, True]))
    assert all((second.gap, third.gap > 0) == (0, True) for _, second, third in map(chain, workload.arrivals[:50]))


def test_blocks_behind_each_other_are_a_sequence() -> None:
    contents = drawn(PLAIN).arrivals[1].all_contents
    listed = list(contents)
    assert listed == [SHARED_FROM, SHARED_FROM + 1, (1 << 20) + 2]
    assert [contents[at] for at in range(-3, 3)] == listed * 2
    assert [contents[:2], contents[2:], contents[::-1]] == [tuple(listed[:2]), (listed[2],), tuple(reversed(listed))]
    with pytest.raises(IndexError):
        contents[3]


def test_the_bundled_sample_is_drawn_as_ever() -> None:
    row = run_one(SimulationRun(WorkloadSpec(), "lru", 80_000))
    assert (row["workload"], row["requests"], row["hit_rate"]) == ("sharegpt", 1975, 0.13855949651095276)


def test_a_file_is_a_workload_of_its_own_name_and_seed(tmp_path: Path) -> None:
    path = written(tmp_path / "c.jsonl", *({"messages": own(text)} for text in ("red", "green", "blue")))
    specs = [WorkloadSpec(trace=path, format="conversations", active=20, seed=seed) for seed in (1, 1, 2)]
    rows = [run_one(SimulationRun(spec, "lru", 0.5)) for spec in specs]
    assert rows[0] == rows[1] != rows[2]
    assert rows[0]["workload"] == "c.jsonl"
    assert rows[0]["log"]["conversations"] == 3
    with pytest.raises(SimulationError, match="leave out --count-from"):
        build(WorkloadSpec(trace=path, format="conversations", count_from=5))
