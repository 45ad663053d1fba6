"""The list of prefixes: what counts, what is kept, what is never listed, and the file that outlives the process."""

import json
import random
import stat
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from eviction_client import prefixes
from eviction_client.background import AtOnce
from eviction_client.block_hash import BlockHash
from eviction_client.plugin import Plugin
from eviction_client.prefixes import HALF_LIFE_S, Prefixes
from eviction_client.settings import ClientSettings
from eviction_client.transport.scripted_predictor import ScriptedPredictor

BLOCK = 16
SYSTEM = list(range(1000, 1000 + 10 * BLOCK))


class Served:
    """A plug-in without an engine, whose requests are token ids."""

    def __init__(self, folder: Path, most: int = 10, clock: list[float] | None = None, **fields: Any) -> None:
        self.now = clock or [1e9]
        settings = ClientSettings(pooling="off", state=folder, list_prefixes=most)
        self.plugin = Plugin(
            settings,
            capacity=10_000,
            block_tokens=BLOCK,
            predictor=ScriptedPredictor(),
            clock=lambda: self.now[0],
            background=AtOnce,
            **{"model": "m", **fields},
        )
        self.count = 0

    def serve(self, tokens: list[int], *, resendable: bool = True, reply: int = 3 * BLOCK) -> list[int]:
        """Serve a prompt; return the history for the next turn."""
        self.count += 1
        self.now[0] += 1.0
        history = tokens + [7_000_000 + self.count * 1000 + n for n in range(reply)]
        names = [name_of(history[: end * BLOCK]) for end in range(1, len(history) // BLOCK + 1)]
        prompt = names[: len(tokens) // BLOCK]
        self.plugin.started(self.count, prompt)
        self.plugin.finished(
            self.count,
            completed=True,
            blocks=names,
            prompt_blocks=len(prompt),
            reply_end=1,
            session=None,
            token_ids=tokens,
            resendable=resendable,
        )
        return history

    def close(self) -> None:
        self.plugin.close()


def name_of(tokens: list[int]) -> BlockHash:
    return BlockHash(random.Random(repr(tokens)).randbytes(32))


def lines_of(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    head, *lines = map(json.loads, (folder / "prefixes-0.jsonl").read_text().splitlines())
    return head, lines


def question(number: int, length: int = 3 * BLOCK) -> list[int]:
    return [100_000 + number * 1000 + n for n in range(length)]


def test_a_shared_beginning_comes_first_and_a_conversation_has_its_longest_alone(tmp_path: Path) -> None:
    served = Served(tmp_path)
    for number in range(6):
        served.serve(SYSTEM + question(number))
    history = SYSTEM + question(50)
    prompt = history
    for turn in range(4):
        prompt = history + question(60 + turn)
        history = served.serve(prompt)
    served.close()
    head, lines = lines_of(tmp_path)
    assert (head["model"], head["block_tokens"]) == ("m", BLOCK)
    assert stat.S_IMODE((tmp_path / "prefixes-0.jsonl").stat().st_mode) == 0o600
    assert lines[0]["tokens"] == SYSTEM and lines[0]["reuses"] == pytest.approx(6, abs=0.1)
    # Its last prompt without the new question, and none of its shorter prefixes.
    assert [line["tokens"] for line in lines[1:]] == [prompt[: -3 * BLOCK]]


def test_nothing_is_listed_of_prompts_that_token_ids_do_not_name_or_that_nobody_repeated(tmp_path: Path) -> None:
    served = Served(tmp_path)
    for number in range(5):
        served.serve(SYSTEM + question(number), resendable=False)
    for number in range(5):
        served.serve(question(100 + number, 20 * BLOCK))
    for number in range(5):
        served.serve(question(200, 5 * BLOCK) + question(300 + number))  # shorter than is worth a request
    served.close()
    assert lines_of(tmp_path)[1] == []


def test_a_flood_of_single_reuses_hides_no_frequent_prefix_and_memory_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefixes, "MOST_TOKENS", 20_000)
    served = Served(tmp_path, most=5)
    for number in range(10):
        served.serve(SYSTEM + question(number))
    for number in range(400):
        own = question(1000 + number, 12 * BLOCK)
        served.serve(own + question(5000 + number))
        served.serve(own + question(6000 + number))
    found = served.plugin.learner.prefixes
    assert (
        found is not None and len(found) <= 40 and sum(len(one.tokens) for one in found.listed(0.0)) <= found.tokens <= 20_000
    )
    served.close()
    lines = lines_of(tmp_path)[1]
    assert len(lines) == 5 and lines[0]["tokens"] == SYSTEM


def test_a_beginning_of_many_short_questions_stays_when_one_of_them_goes_on(tmp_path: Path) -> None:
    served = Served(tmp_path)
    for number in range(5):
        history = served.serve(SYSTEM + question(number, 5))  # less than a block: all prompts have the same blocks
    served.serve(history + question(50))
    served.close()
    assert [line["tokens"][: len(SYSTEM)] for line in lines_of(tmp_path)[1]] == [SYSTEM] * 2
    assert lines_of(tmp_path)[1][0]["tokens"] == SYSTEM


def test_long_prompts_are_written_in_small_parts(tmp_path: Path) -> None:
    """A thread that encodes them at once would hold the interpreter for milliseconds, in which the scheduler waits."""
    served = Served(tmp_path)
    long = question(1, 60_000)
    for number in range(2):
        served.serve(long + question(70 + number))
    found = served.plugin.learner.prefixes
    assert found is not None
    parts = list(found.saved("m", served.now[0]))
    assert max(map(len, parts)) < 8000 and json.loads(b"".join(parts).splitlines()[1])["tokens"] == long
    served.close()


def test_reuses_halve_so_that_yesterdays_prompt_makes_room(tmp_path: Path) -> None:
    served = Served(tmp_path, most=1)
    for number in range(20):
        served.serve(SYSTEM + question(number))
    served.now[0] += 10 * HALF_LIFE_S
    other = question(9000, 10 * BLOCK)
    for number in range(3):
        served.serve(other + question(100 + number))
    served.close()
    assert [line["tokens"] for line in lines_of(tmp_path)[1]] == [other]


def test_two_restarts_in_succession_keep_the_list(tmp_path: Path) -> None:
    clock = [1e9]
    first = Served(tmp_path, clock=clock)
    for number in range(5):
        first.serve(SYSTEM + question(number))
    first.close()
    for _ in range(2):
        Served(tmp_path, clock=clock).close()
    head, lines = lines_of(tmp_path)
    assert lines[0]["tokens"] == SYSTEM and lines[0]["reuses"] > 3
    # The engine may name equal blocks otherwise now: the list has each prefix once.
    (tmp_path / "prefixes-0.jsonl").write_text(
        "".join(json.dumps(one) + "\n" for one in (head, *({**line, "block": "00" * 32} for line in lines)))
    )
    again = Served(tmp_path, clock=clock)
    for number in range(5):
        again.serve(SYSTEM + question(20 + number))
    again.close()
    assert [line["tokens"] for line in lines_of(tmp_path)[1]] == [SYSTEM]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "null\n{}",
        '{"format": "other", "at": 1}',
        "\xff",
        '{"format": "F", "at": 1, "block_tokens": 16}\n{"tokens": 1}',
    ],
)
def test_a_damaged_list_is_replaced(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "prefixes-0.jsonl").write_text(text.replace('"F"', json.dumps(prefixes.FORMAT)))
    served = Served(tmp_path)
    for number in range(3):
        served.serve(SYSTEM + question(number))
    assert served.plugin.failures == 0
    served.close()
    assert lines_of(tmp_path)[1][0]["tokens"] == SYSTEM


def test_a_list_of_another_model_is_not_passed_on_under_this_ones_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = Served(tmp_path)
    for number in range(3):
        old.serve(SYSTEM + question(number))
    old.close()
    new = Served(tmp_path, model="of another tokenizer")
    new.serve(question(9))
    new.close()
    head, lines = lines_of(tmp_path)
    assert head["model"] == "of another tokenizer" and lines == []
    assert "of another model" in caplog.text


def test_switching_it_off_deletes_what_a_killed_engine_had_written_in_part(tmp_path: Path) -> None:
    partial = tmp_path / ".prefixes-0.jsonl.0123456789abcdef"
    partial.write_text("[1, 2, 3")
    others = [tmp_path / ".prefixes-1.jsonl.0123456789abcdef", tmp_path / ".prefixes-0.jsonl.mine"]
    for other in others:
        other.write_text("")
    Served(tmp_path, most=0).close()
    assert not partial.exists() and all(other.exists() for other in others)


def test_off_by_default_and_switching_it_off_deletes_the_list(tmp_path: Path) -> None:
    assert ClientSettings().list_prefixes == 0
    served = Served(tmp_path)
    for number in range(3):
        served.serve(SYSTEM + question(number))
    served.close()
    assert lines_of(tmp_path)[1]
    off = Served(tmp_path, most=0)
    off.serve(SYSTEM + question(9))
    off.close()
    assert not (tmp_path / "prefixes-0.jsonl").exists()
    with pytest.raises(ValidationError, match="LPC_STATE"):
        ClientSettings(list_prefixes=5)


def test_a_failure_of_the_list_reaches_neither_engine_nor_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr(Prefixes, "finished", fail)
    served = Served(tmp_path)
    served.serve(SYSTEM)
    assert served.plugin.learner.guard_failures == 0 and served.plugin.failures == 1
    served.close()
