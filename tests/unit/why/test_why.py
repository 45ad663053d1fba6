"""Planted causes of misses are found with what they cost, and clean logs have none."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lpc_apps.logs.chats import chat
from lpc_apps.why.analysis import Analysis, analyse
from lpc_apps.why.prompts import Prompts
from tests.unit.why.traffic import PLANTS, Record, clean, hits, in_system, share, words

CLOSE = 0.02
"""Shares of prompt tokens."""


SETTINGS = {"mode": "strict", "lang": "en", "depth": 3, "tone": "calm", "limit": 40}
SHOTS = [f"Example {i}:\nInput: {words(random.Random(i), 25)}\nOutput: label {i}\n" for i in range(8)]


def analysed(records: list[Record]) -> Analysis:
    units = Prompts()
    return analyse([units.prompt(request) for record in records for request in chat.read(record)], units)


def causes(found: Analysis) -> list[tuple[str, str]]:
    return [(finding.key.cause, finding.key.where) for finding in found.findings]


@pytest.mark.parametrize("cause", PLANTS)
def test_a_planted_cause_is_found_with_what_it_costs(cause: str) -> None:
    records = clean(0)
    expected = share(cause, records)
    assert expected > 2 * CLOSE
    found = analysed(PLANTS[cause](records))
    assert [finding.key.cause for finding in found.findings] == [cause.removesuffix("_in_history")]
    (finding,) = found.findings
    assert finding.lost / found.tokens == pytest.approx(expected, abs=CLOSE)
    assert finding.alone == finding.together == found.fixed == pytest.approx(found.hit_rate + expected, abs=CLOSE)


@pytest.mark.parametrize("cause", [cause for cause in PLANTS if cause != "media"])
def test_a_planted_cause_is_found_without_session_ids(cause: str) -> None:
    records = clean(2)
    planted = [{k: v for k, v in record.items() if k != "session_id"} for record in PLANTS[cause](records)]
    found = analysed(planted)
    assert [finding.key.cause for finding in found.findings] == [cause.removesuffix("_in_history")]
    assert found.lost / found.tokens == pytest.approx(share(cause, records), abs=CLOSE)


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_a_clean_log_has_no_findings(seed: int, ids: bool) -> None:
    records = clean(seed, ids=ids)
    found = analysed(records)
    hit, total = hits(records)
    assert (found.findings, found.lost) == ([], 0)
    assert found.hit_rate == found.fixed == pytest.approx(hit / total)


def test_prompts_for_several_tenants_are_computed_once_each_and_are_no_finding() -> None:
    rng = random.Random(0)
    rules = words(rng, 150)
    records = [
        {
            "time": 1.7e9 + i,
            "messages": [
                {"role": "system", "content": f"You work for {('Acme', 'Globex', 'Initech')[i % 3]} Corp. {rules}"},
                {"role": "user", "content": words(rng, 20)},
            ],
        }
        for i in range(60)
    ]
    assert analysed(records).findings == []


def test_two_causes_in_one_prompt_only_help_together() -> None:
    both = in_system(
        lambda rng, number: f"2026-01-01T{number // 60 % 24:02}:{number % 60:02}:00Z for req_{rng.getrandbits(48):012x}"
    )
    found = analysed(both(clean(0)))
    assert causes(found) == [("time", "system"), ("id", "system")]
    first, second = found.findings
    assert first.alone < found.hit_rate + CLOSE
    assert second.alone < found.hit_rate + CLOSE
    assert second.together == found.fixed > found.hit_rate + 0.5


def test_a_request_by_a_helper_of_an_agent_or_sent_again_is_no_finding() -> None:
    records = []
    for record in clean(3, sessions=10):
        helper = {
            **record,
            "time": record["time"] + 1,
            "messages": [{"role": "system", "content": "Summarise."}, record["messages"][-1]],
        }
        again = {**record, "time": record["time"] + 2}
        records += [record, helper, again]
    assert analysed(records).findings == []


def test_a_question_asked_in_another_way_is_no_finding() -> None:
    rng = random.Random(0)
    records = []
    for record in clean(4, sessions=10):
        other = [*record["messages"][:-1], {"role": "user", "content": record["messages"][-1]["content"] + words(rng, 10)}]
        records += [record, {**record, "time": record["time"] + 1, "messages": other}]
    assert analysed(records).findings == []


@pytest.mark.parametrize(
    ("texts", "cause"),
    [
        (lambda rng, i, rules: f"Config: {json.dumps(dict(rng.sample(sorted(SETTINGS.items()), 5)))}\n{rules}", "keys"),
        (lambda rng, i, rules: f"Current time: {i % 24:02}:30\nRequest id: req_{rng.getrandbits(40):010x}\n{rules}", "time"),
        (lambda rng, i, rules: f"user: customer{i}@example.com\n{rules}", "text"),
        (lambda rng, i, rules: rules.replace(". ", rng.choice([". ", ".  ", ".\r\n", ".\n"]), 5), "space"),
        (lambda rng, i, rules: f"{rules}\n{''.join(rng.sample(SHOTS, 4))}\nAnswer with one label. {rules}", "lines"),
    ],
)
def test_causes_that_other_linters_find_in_system_prompts_are_found(texts: Any, cause: str) -> None:
    rng = random.Random(5)
    rules = words(rng, 120)
    records = [
        {
            "time": 1.7e9 + i,
            "messages": [{"role": "system", "content": texts(rng, i, rules)}, {"role": "user", "content": words(rng, 20)}],
        }
        for i in range(60)
    ]
    assert cause in [found for found, _ in causes(analysed(records))]


def test_a_time_in_a_template_without_a_system_prompt_is_found() -> None:
    rng = random.Random(6)
    rules = words(rng, 120)
    records = [
        {
            "time": 1.7e9 + i,
            "messages": [{"role": "user", "content": f"Today is 2026-01-{1 + i % 28:02}. {rules} {words(rng, 20)}"}],
        }
        for i in range(60)
    ]
    found = analysed(records)
    assert causes(found) == [("time", "user")]
    assert found.fixed > found.hit_rate + 0.3


def test_a_system_prompt_that_is_replaced_in_every_turn_is_found() -> None:
    rng = random.Random(7)
    records = [
        {**record, "messages": [{"role": "system", "content": words(rng, 80)}, *record["messages"][1:]]} for record in clean(7)
    ]
    found = analysed(records)
    assert causes(found) == [("lines", "system")]
    assert found.fixed > found.hit_rate + 0.2


def test_a_tool_with_the_same_name_and_another_definition_is_found() -> None:
    rng = random.Random(8)

    def tools() -> list[Record]:
        return [
            {"name": "search", "description": words(rng, 120)},
            {"name": "mail", "description": words(random.Random(1), 400)},
        ]

    records = [{**record, "tools": tools()} for record in clean(8, sessions=6)]
    assert causes(analysed(records)) == [("tools", "tools")]


def chats(number: int, turns: int, change: Callable[[list[Record], int, int], Record]) -> list[Record]:
    """Return requests of conversations whose messages ``change`` returns, by conversation and turn."""
    draw, found = random.Random(3), []
    for conversation in range(number):
        said: list[Record] = [{"role": "system", "content": words(random.Random(1), 80)}]
        for turn in range(turns):
            said.append({"role": "user", "content": words(draw, 20)})
            reply = f"cafe\u0301 {words(draw, 30)}"
            row = {"time": 60 * turn + conversation, "session_id": f"s{conversation}", "response": reply}
            found.append(row | change([*said], conversation, turn))
            said.append({"role": "assistant", "content": reply})
    return sorted(found, key=lambda row: row["time"])


def test_a_time_in_the_description_of_each_tool_is_found_there() -> None:
    def tools(said: list[Record], conversation: int, turn: int) -> Record:
        about = f"Today is 2026-03-{1 + (5 * conversation + turn) % 28:02}. "
        each = [{"name": f"tool{at}", "description": about + words(random.Random(at), 30)} for at in range(6)]
        return {"messages": said, "tools": [{"type": "function", "function": tool} for tool in each]}

    found = analysed(chats(5, 5, tools))
    assert causes(found) == [("time", "tools")] and found.fixed > found.hit_rate + 0.3


def test_a_reply_in_another_unicode_form_has_the_loss_of_its_conversation() -> None:
    def composed(said: list[Record], conversation: int, turn: int) -> Record:
        return {"messages": [{**one, "content": one["content"].replace("e\u0301", "\u00e9")} for one in said]}

    found = analysed(chats(5, 6, composed))
    unchanged = analysed(chats(5, 6, lambda said, *_: {"messages": said}))
    assert causes(found) == [("space", "assistant")]
    assert found.hit_rate < unchanged.hit_rate - 0.05 and found.fixed == pytest.approx(unchanged.hit_rate, abs=CLOSE)


def test_lines_that_are_put_behind_the_last_message_are_one_cause() -> None:
    """As the reminders of agents, which are in the last message only."""
    reminder = f"\n<system-reminder>{words(random.Random(9), 30)}</system-reminder>"

    def reminded(said: list[Record], conversation: int, turn: int) -> Record:
        return {"messages": [*said[:-1], {**said[-1], "content": said[-1]["content"] + reminder}]}

    found = analysed(chats(5, 6, reminded))
    assert causes(found) == [("edited", "user")] and found.findings[0].alone > found.hit_rate + 0.05


def test_odd_requests_are_analysed() -> None:
    only_system = {"time": 1.7e9, "messages": [{"role": "system", "content": "Be kind."}]}
    nested = {
        "time": 1.7e9 + 1,
        "messages": [{"role": "user", "content": "{" * 5000 + "1" * 5000}],
        "tools": [[], "x", None, {}],
    }
    other = {"time": 1.7e9 + 2, "messages": [{"role": "user", "content": "{" * 5000 + "2" * 5000}], "tools": [{"name": 7}, [1]]}
    ended = {"time": 1.7e9 + 3, "session_id": "a", "messages": [{"role": "user", "content": "1"}], "response": ""}
    found = analysed([only_system, nested, other, ended, ended, only_system])
    assert found.requests == 6
    assert 0 <= found.hit_rate <= found.fixed <= 1


TEXTS = st.sampled_from(["a" * 70, "b" * 200, "Time 12:30. " + "c" * 90, "Time 12:31. " + "c" * 90, "d " * 60, "d  " * 60, "e"])
CONTENT = st.one_of(
    TEXTS,
    st.lists(
        st.one_of(
            st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}),
            st.fixed_dictionaries({"type": st.just("thinking"), "thinking": TEXTS}),
            st.fixed_dictionaries({"type": st.just("image"), "source": st.sampled_from(["x", "y"])}),
            st.fixed_dictionaries({"type": st.just("tool_use"), "name": TEXTS, "input": st.just({"b": 1, "a": 2})}),
        ),
        min_size=1,
        max_size=3,
    ),
)
MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": CONTENT})
TOOL = st.sampled_from([{"name": "f", "description": "g" * 80}, {"description": "g" * 80, "name": "f"}, {"name": "h"}, "x"])
REQUEST = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGE, min_size=1, max_size=6), "tools": st.lists(TOOL, max_size=3), "time": st.integers(0, 99)},
    optional={"session_id": st.sampled_from(["s", "t"]), "response": TEXTS, "user": st.just("u")},
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(REQUEST, min_size=1, max_size=12))
def test_any_requests_are_analysed_and_a_replay_never_hits_more_than_the_prompts(records: list[Record]) -> None:
    found = analysed(sorted(records, key=lambda record: record["time"]))
    hit, total = hits(sorted(records, key=lambda record: record["time"]))
    assert found.hit_rate == pytest.approx(hit / total)
    assert found.hit_rate <= found.fixed <= 1
    assert found.lost >= 0
    for finding in found.findings:
        assert finding.lost > 0 and finding.requests > 0
        assert found.hit_rate <= finding.alone <= 1 and found.hit_rate <= finding.together <= 1
