"""A reply that comes back in another form is the same reply: without its thoughts, or changed at a place."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from lpc_apps.logs.chats import chat
from lpc_apps.why.prompts import Prompts
from lpc_apps.why.thoughts import apart
from tests.unit.why.test_why import CLOSE, analysed, causes
from tests.unit.why.traffic import Record, clean, hits, words

THOUGHTS = {
    "Qwen": "<think>\n{t}\n</think>\n\n{a}",
    "prompts": "<thinking>{t}</thinking>\n{a}",
    "DeepSeek, whose template opens them": "{t}\n</think>\n\n{a}",
    "Magistral": "[THINK]{t}[/THINK]{a}",
    "gpt-oss": "<|channel|>analysis<|message|>{t}<|end|><|start|>assistant<|channel|>final<|message|>{a}<|return|>",
    "gpt-oss without special tokens": "analysis{t}assistantfinal{a}",
    "Kimi-VL": "◁think▷{t}◁/think▷{a}",
    "Seed-OSS": "<seed:think>{t}</seed:think>{a}",
    "Command A": "<|START_THINKING|>{t}<|END_THINKING|><|START_RESPONSE|>{a}<|END_RESPONSE|>",
    "Hunyuan": "<think>\n{t}\n</think>\n<answer>\n{a}\n</answer>",
    "EXAONE": "<thought>\n{t}\n</thought>\n\n{a}",
    "Granite 3.2": "Here is my thought process:\n{t}\nHere is my response:\n{a}",
}
SHORT = clean(3, sessions=6, turns=4)


def without_ids(records: list[Record], named: bool) -> list[Record]:
    return records if named else [{key: value for key, value in record.items() if key != "session_id"} for record in records]


def replied(records: list[Record], change: Callable[[random.Random, str], str]) -> list[Record]:
    """Return records in which the reply had another text than the next prompts have."""
    rng = random.Random(9)

    def other(record: Record) -> Record:
        reply = record["response"]
        return {**record, "response": {**reply, "content": change(rng, reply["content"])}}

    return [other(record) for record in records]


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("form", THOUGHTS.values(), ids=THOUGHTS)
def test_thoughts_in_the_text_of_a_reply_that_are_left_out_later_are_found_with_what_they_cost(form: str, named: bool) -> None:
    planted = replied(SHORT, lambda rng, text: form.format(t=words(rng, 120), a=text))
    found = analysed(without_ids(planted, named))
    assert causes(found) == [("reasoning", "history")]
    (hit, total), (could, _) = hits(planted), hits(SHORT)
    assert found.hit_rate == pytest.approx(hit / total)
    assert found.fixed == pytest.approx(could / total, abs=CLOSE)


def test_a_reply_of_thoughts_alone_that_is_left_out_later_is_reasoning_that_was_dropped() -> None:
    question, follow_up = ({"role": "user", "content": words(random.Random(i), 60)} for i in (1, 2))
    thoughts = {"role": "assistant", "content": f"<think>\n{words(random.Random(3), 40)}"}
    records: list[Record] = [
        {"time": 1.0, "session_id": "s", "messages": [question], "response": thoughts},
        {"time": 2.0, "session_id": "s", "messages": [question, thoughts, follow_up], "response": "Yes."},
        {"time": 3.0, "session_id": "s", "messages": [question, follow_up, {"role": "assistant", "content": "Yes."}, question]},
    ]
    assert ("reasoning", "history") in causes(analysed(records))


def test_a_users_text_and_a_reply_without_markers_have_no_thoughts() -> None:
    units = Prompts()
    marked = {"role": "user", "content": "<think>x</think>y"}
    plain = {"role": "assistant", "content": "I think </b> that analysis is <b>hard</b>."}
    (request,) = chat.read({"time": 1.0, "messages": [marked, plain, marked]})
    for unit in units.prompt(request).units:
        assert unit.thoughts == () and unit.without_thoughts is unit.parts
    assert apart("assistant", request.messages[1].parts[0]) == ((), request.messages[1].parts[0])


CHANGES: dict[str, Any] = {
    "a word before it": lambda rng, text: f"Answer: {text}",
    "a long start": lambda rng, text: words(rng, 60) + text,
    "a fence": lambda rng, text: f"```\n{text}\n```",
    "a role": lambda rng, text: f"Assistant:\n\n{text}",
    "a word in it": lambda rng, text: text.replace(". ", " (sic). ", 1),
}


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_reply_that_comes_back_without_a_part_of_its_text_is_found_with_what_it_costs(change: Any, named: bool) -> None:
    planted = replied(SHORT, change)
    found = analysed(without_ids(planted, named))
    assert {cause for cause, _ in causes(found)} == {"edited"}
    assert found.fixed == pytest.approx(hits(SHORT)[0] / hits(SHORT)[1], abs=CLOSE)


def test_a_reply_that_comes_back_without_its_end_costs_nothing() -> None:
    assert analysed(replied(SHORT, lambda rng, text: text + words(rng, 60))).findings == []


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("turns", [2, 4])
@pytest.mark.parametrize("words_of_user", [3, 60])
def test_a_reply_that_comes_back_with_a_new_start_is_found_however_short_the_question_is(
    words_of_user: int, turns: int, named: bool
) -> None:
    rng = random.Random(4)
    clean_log, planted = [], []
    for session in range(8):
        base: list[Record] = []
        changed: list[Record] = []
        for turn in range(turns):
            question = {"role": "user", "content": words(rng, words_of_user)}
            base, changed = [*base, question], [*changed, question]
            answer = words(rng, 150)
            record = {"time": 100.0 * session + turn, "session_id": f"s{session}", "response": answer}
            clean_log.append({**record, "messages": base})
            planted.append({**record, "messages": changed})
            base = [*base, {"role": "assistant", "content": answer}]
            changed = [*changed, {"role": "assistant", "content": f"Answer: {answer}"}]
    found = analysed(without_ids(planted, named))
    assert causes(found) == [("edited", "assistant")]
    assert found.fixed == pytest.approx(hits(clean_log)[0] / hits(clean_log)[1], abs=CLOSE)


def test_conversations_that_begin_alike_are_not_taken_for_each_other() -> None:
    rng = random.Random(5)
    greeting = {"role": "user", "content": "Good morning, who are you and what can you do for me today?"}
    records = []
    for session in range(12):
        reply = {"role": "assistant", "content": words(rng, 60)}
        question = {"role": "user", "content": words(rng, 20)}
        records.append({"time": session + 1.0, "messages": [greeting], "response": reply})
        records.append({"time": session + 20.0, "messages": [greeting, reply, question]})
    assert analysed(sorted(records, key=lambda record: record["time"])).findings == []
