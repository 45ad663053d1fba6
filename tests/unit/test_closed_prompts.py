"""What an engine is given in benchmark `engine --closed`: prompts that repeat its own replies."""

from benchmarks.closed_loop import LONGEST_REPLY, Prompts
from benchmarks.tiny_llama import BLOCK
from benchmarks.trace_replay import Replay, Request

BLOCK_TOKENS = 640
"""Of the log, so that one token of the engine stands for twenty."""


def prompts(*rows: tuple[str, int, int, list[int]]) -> Prompts:
    requests = [Request(0.0, name, 1, "", tokens, reply, blocks) for name, tokens, reply, blocks in rows]
    return Prompts(Replay(BLOCK_TOKENS, requests))


def test_a_prompt_repeats_the_prompt_and_the_reply_before_it() -> None:
    made = prompts(("a", 1300, 200, [1, 2]), ("a", 3200, 100, [1, 2, 3, 4, 5]))
    first = made.prompt(0)
    assert (len(first), made.reply_tokens(0)) == (1300 // 20, 200 // 20)
    reply = [5] * 10
    made.answered(0, first, reply)
    second = made.prompt(1)
    assert second[: len(first) + 10] == first + reply
    assert len(second) == 3200 // 20


def test_a_compacted_prompt_repeats_only_the_blocks_that_it_names() -> None:
    made = prompts(("a", 1920, 200, [1, 2, 3]), ("a", 1280, 200, [1, 9]))
    first = made.prompt(0)
    made.answered(0, first, [5] * 10)
    second = made.prompt(1)
    assert second[:BLOCK] == first[:BLOCK]
    assert second[BLOCK:] != first[BLOCK : 2 * BLOCK]
    assert 5 not in second


def test_a_block_has_the_same_tokens_wherever_it_occurs() -> None:
    made = prompts(("a", 660, 700, [1]), ("a", 1920, 20, [1, 2, 3]), ("b", 1280, 20, [1, 2]), ("a", 1280, 20, [1, 2]))
    first = made.prompt(0)
    made.answered(0, first, [5] * 35)
    second = made.prompt(1)
    made.answered(1, second, [6])
    assert made.prompt(2) == second[: 2 * BLOCK] == made.prompt(3)
    assert 5 in second[BLOCK : 2 * BLOCK]


def test_a_reply_has_at_least_one_token_and_at_most_what_the_tiny_model_takes() -> None:
    made = prompts(("a", 640, 0, [1]), ("a", 640, 10**6, [1]))
    assert (made.reply_tokens(0), made.reply_tokens(1)) == (1, LONGEST_REPLY)
