"""ShareGPT's segments become conversations, and conversations examples on one side of the split."""

import json
from itertools import islice
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from lpc.model.conversation import Message
from lpc_apps.logs.datasets.conversation import Conversation, conversation_key, examples_of
from lpc_apps.logs.datasets.sharegpt import load_segments, load_sharegpt
from lpc_apps.logs.records import Skipped


def segment(name: str, start: int, count: int) -> dict[str, object]:
    turns = [{"from": ("human", "gpt")[i % 2], "value": f"m{i}"} for i in range(start, start + count)]
    return {"id": f"{name}_{start}", "conversations": turns}


def load(tmp_path: Path, records: list[object], cut: int = 0) -> tuple[list[Conversation], Skipped]:
    path = tmp_path / "sharegpt.json"
    text = json.dumps([*records, segment("last", 0, 2)])
    path.write_text(text[: len(text) - cut])
    skipped = Skipped()
    return list(load_sharegpt(path, skipped)), skipped


def contents(conversation: Conversation) -> list[str]:
    return [message.content for message in conversation.messages]


def test_segments_that_follow_on_are_stitched_whatever_their_order(tmp_path: Path) -> None:
    loaded, _ = load(tmp_path, [segment("a", 4, 2), segment("a", 0, 4)])
    assert contents(loaded[0]) == [f"m{i}" for i in range(6)]
    assert loaded[0].ended


def test_an_overlap_of_one_message_is_taken_once(tmp_path: Path) -> None:
    loaded, _ = load(tmp_path, [segment("a", 0, 4), segment("a", 3, 3)])
    assert contents(loaded[0]) == [f"m{i}" for i in range(6)]


def test_a_missing_segment_leaves_the_end_unknown(tmp_path: Path) -> None:
    loaded, skipped = load(tmp_path, [segment("a", 0, 4), segment("a", 8, 2)])
    assert len(loaded[0].messages) == 4
    assert not loaded[0].ended
    assert skipped.first["segment missing"] == "a from message 4"


def test_without_stitching_each_segment_is_a_conversation(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps([segment("a", 4, 2), segment("a", 0, 4)]))
    assert [(one.id, len(one.messages), one.ended) for one in load_segments(path)] == [("a_4", 2, True), ("a_0", 4, True)]


def test_each_user_turn_is_an_example_and_only_the_last_does_not_continue() -> None:
    messages = tuple(Message(("user", "assistant")[i % 2], f"m{i}") for i in range(5))
    examples = list(examples_of(Conversation("a", messages), window=2))
    assert [(e.turns.prompts, e.turns.turn_count, e.continues) for e in examples] == [
        (("m0",), 1, True),
        (("m0", "m2"), 2, True),
        (("m2", "m4"), 3, False),
    ]
    assert [(e.turns.history_chars, e.turns.last_reply_chars) for e in examples] == [(0, 0), (4, 2), (8, 2)]


@given(st.text(min_size=1), st.sampled_from(["", " ", "\n"]))
def test_a_first_prompt_has_one_side_whatever_its_case_and_white_space(text: str, padding: str) -> None:
    assert conversation_key(text) == conversation_key(padding + text + padding)


def test_no_real_conversation_and_no_first_prompt_is_on_two_sides() -> None:
    side_of_first_prompt: dict[str, str] = {}
    count = 0
    for conversation in islice(load_sharegpt(), 3000):
        sides = {example.split for example in examples_of(conversation, 5)}
        first = next((m.content for m in conversation.messages if m.role == "user" and m.content.strip()), None)
        if first is None or not sides:
            continue
        assert len(sides) == 1
        normalised = " ".join(first.casefold().split())
        assert side_of_first_prompt.setdefault(normalised, min(sides)) == min(sides)
        count += 1
    assert count > 2000


def test_malformed_records_are_counted_and_named(tmp_path: Path) -> None:
    bad: list[object] = [
        {"id": "x_0"},
        {"id": "x_y", "conversations": []},
        {"id": "z_0", "conversations": [{"from": "martian", "value": ""}]},
    ]
    loaded, skipped = load(tmp_path, [segment("a", 0, 2), *bad])
    assert [conversation.id for conversation in loaded] == ["a", "last"]
    assert sum(skipped.counts.values()) == 3
    assert skipped.first["malformed record (ValueError)"] == "sharegpt.json:record 2"
