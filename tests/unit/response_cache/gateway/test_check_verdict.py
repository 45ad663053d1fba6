"""What a hit check says of two answers: equal, rounding, or another answer, and what its repetition says."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from response_cache.gateway.check_verdict import (
    NATS,
    CheckAnswer,
    Confirmed,
    Position,
    check_answer,
    confirmed,
    difference,
)


def at(token: str, **probabilities: float) -> Position:
    return Position(token, {name: math.log(one) for name, one in probabilities.items()})


def answer(*positions: Position) -> CheckAnswer:
    return CheckAnswer(positions, 100, 96)


SAME = at("a", a=0.9, b=0.05, c=0.01)
OTHER = at("d", d=0.9, e=0.05, f=0.01)
logprobs = st.dictionaries(st.sampled_from("abcdef"), st.floats(-20, 0), min_size=1)
answers = st.lists(st.builds(lambda listed: Position(max(listed, key=listed.__getitem__), listed), logprobs), min_size=1)


@given(answers, answers)
def test_the_difference_is_the_same_in_both_directions_and_never_negative(one: list[Position], other: list[Position]) -> None:
    assert difference(one, other) == difference(other, one)
    assert 0.0 <= difference(one, other).nats < math.inf


@given(answers)
def test_an_answer_does_not_differ_from_itself(one: list[Position]) -> None:
    assert difference(one, one) == (0.0, None)


def test_improbable_tokens_weigh_as_much_as_they_are_probable() -> None:
    rounded = at("a", a=0.9, b=0.05, c=0.00001)  # a logit that has moved by seven
    assert difference([SAME], [rounded]).is_noise
    assert not difference([SAME], [at("a", a=0.4, b=0.5, c=0.01)]).is_noise


def test_two_tokens_of_nearly_equal_probability_are_a_tie() -> None:
    found = difference([at("a", a=0.48, b=0.47)], [at("b", a=0.47, b=0.48)])
    assert found.at == 0
    assert found.is_noise


def test_answers_are_compared_up_to_the_first_other_token() -> None:
    tie = at("a", a=0.48, b=0.47), at("b", a=0.47, b=0.48)
    found = difference([SAME, tie[0], SAME], [SAME, tie[1], OTHER])
    assert found.at == 1
    assert found.is_noise


def test_other_tokens_that_one_answer_does_not_list_are_no_rounding() -> None:
    found = difference([SAME], [OTHER])
    assert found.at == 0
    assert found.nats == pytest.approx(math.log(0.9 / 0.01) * 0.9 / 0.96 + math.log(5) * 0.05 / 0.96)


def test_a_difference_of_flat_distributions_is_found() -> None:
    one = Position("a", {"a": -5.0, "b": -5.1, "c": -5.2})
    assert not difference([one], [Position("a", {"a": -5.6, "b": -5.7, "c": -5.7})]).is_noise
    assert difference([one], [Position("a", {"a": -5.1, "b": -5.1, "c": -5.3})]).is_noise


@pytest.mark.parametrize(
    ("again", "computed", "fresh_hit", "expected"),
    [
        (OTHER, SAME, SAME, "blocks"),
        (OTHER, SAME, OTHER, "hit"),
        (SAME, SAME, SAME, "unsteady"),
        (OTHER, OTHER, SAME, "unsteady"),
        (OTHER, SAME, at("g", g=0.9, h=0.05), "blocks"),
    ],
)
def test_a_repetition_tells_old_blocks_from_hits_and_from_an_engine_that_is_not_steady(
    again: Position, computed: Position, fresh_hit: Position, expected: str
) -> None:
    repeated = Confirmed(answer(again), answer(computed), answer(fresh_hit))
    assert confirmed(answer(OTHER), answer(SAME), repeated) == expected


CHAT: dict[str, Any] = {
    "choices": [
        {
            "logprobs": {
                "content": [
                    {
                        "token": "\ufffd",
                        "logprob": -0.1,
                        "bytes": [240],
                        "top_logprobs": [
                            {"token": "\ufffd", "logprob": -0.1, "bytes": [240]},
                            {"token": "\ufffd", "logprob": -9999.0, "bytes": [241]},
                        ],
                    }
                ]
            }
        }
    ],
    "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8}},
}
COMPLETION: dict[str, Any] = {
    "choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5, "b": -2.0}]}}],
    "usage": {"prompt_tokens": 9},
}


def test_both_apis_are_read_and_parts_of_characters_stay_apart() -> None:
    chat = check_answer(CHAT)
    assert chat is not None
    assert (chat.tokens, chat.cached) == (9, 8)
    assert sorted(chat.positions[0].logprobs.values()) == [-100.0, -0.1]
    completion = check_answer(COMPLETION)
    assert completion == CheckAnswer([Position("a", {"a": -0.5, "b": -2.0})], 9, None)


def changed(answer: dict[str, Any], path: tuple[str | int, ...], value: Any) -> Any:
    found = changing = json.loads(json.dumps(answer))
    for name in path[:-1]:
        changing = changing[name]
    changing[path[-1]] = value
    return found


NOTHING: tuple[Any, ...] = (None, [], {}, 7, "x", [None])
NO_LOGPROBS: tuple[Any, ...] = (None, {}, {"content": []}, {"content": [1]}, [])
NO_NUMBERS: tuple[Any, ...] = (None, "x", float("nan"), float("inf"), 3, [])


@pytest.mark.parametrize(
    "wrong",
    [
        *([], {}, None, "x", 1, {"choices": []}, {"error": {"message": "no"}}),
        *(changed(CHAT, path, value) for path in (("choices",), ("usage",)) for value in NOTHING),
        *(changed(CHAT, ("choices", 0, "logprobs"), value) for value in NO_LOGPROBS),
        *(changed(CHAT, ("choices", 0, "logprobs", "content", 0, "logprob"), value) for value in NO_NUMBERS),
        changed(CHAT, ("usage", "prompt_tokens"), "9"),
        changed(CHAT, ("usage", "prompt_tokens_details"), {"cached_tokens": "8"}),
        changed(CHAT, ("usage", "prompt_tokens_details"), [8]),
        changed(COMPLETION, ("choices", 0, "logprobs", "token_logprobs"), []),
        changed(COMPLETION, ("choices", 0, "logprobs", "top_logprobs"), [7]),
        changed(COMPLETION, ("choices",), COMPLETION["choices"] * 2),
    ],
)
def test_what_is_no_answer_with_logprobs_is_none(wrong: Any) -> None:
    assert check_answer(wrong) is None


def test_the_bound_is_above_two_steps_of_bfloat16_logits() -> None:
    step = 2.0**4 / 2**7  # between 16 and 32 a bfloat16 has 7 bits below the first
    assert 2 * step < NATS < 4 * step
