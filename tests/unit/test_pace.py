"""The plug-in's threads give way to the scheduler's while they walk over long prompts."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eviction_client import pace
from eviction_client.plugin import Plugin
from eviction_client.policy.hints import NO_HINTS, Hints
from eviction_client.settings import ClientSettings
from eviction_client.stores import BlockHash, MemoryStore
from eviction_client.transport.messages import PACKED_AT_ONCE, Question, encode
from eviction_client.transport.scripted_predictor import ScriptedPredictor

BLOCKS = 20_000
MOST_HASHED = 12 * pace.PIECE
"""Hashes of blocks between two pauses: a walk hashes each block a few times."""


class Counted(bytes):
    """A block hash that counts how often a table looks it up or stores it."""

    looked_up = 0

    def __hash__(self) -> int:
        Counted.looked_up += 1
        return super().__hash__()


class Pauses:
    """What happens between the pauses of a thread."""

    def __init__(self) -> None:
        self.between: list[int] = []

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.between.append(Counted.looked_up)
        Counted.looked_up = 0


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pauses]:
    pauses = Pauses()
    monkeypatch.setattr(pace.time, "sleep", pauses.sleep)
    Counted.looked_up = 0
    yield pauses


def in_a_thread_that_gives_way(work: Callable[[], object]) -> None:
    def run() -> None:
        pace.gives_way()
        try:
            work()
        except BaseException as error:
            errors.append(error)

    errors: list[BaseException] = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


class InAThread:
    """Runs each round at once, in a thread that gives way."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def wake(self) -> None:
        in_a_thread_that_gives_way(self._work)

    def close(self) -> None:
        pass


class Never(InAThread):
    """Runs no round."""

    def wake(self) -> None:
        pass


def chain(name: int, blocks: int = BLOCKS) -> list[BlockHash]:
    return [BlockHash(Counted(f"{name}-{place}".rjust(31).encode() + bytes([place % 256]))) for place in range(blocks)]


@pytest.mark.parametrize("rule", ["auto", "lpc"])
def test_the_background_pauses_within_each_walk_over_a_long_prompt(pauses: Pauses, tmp_path: Path, rule: str) -> None:
    plugin = Plugin(
        ClientSettings(hints_share=0.5, rule=rule, lru_file=tmp_path / "lru"),
        capacity=BLOCKS,
        block_tokens=16,
        predictor=ScriptedPredictor(lambda _: 1),
        store=MemoryStore(),
        background=InAThread,
    )
    plugin.add_tier("below", 2 * BLOCKS, blocks=2 * BLOCKS, prompts_only=False)
    chains = [chain(name) for name in range(3)]
    for number in range(9):
        blocks = chains[number % 3]
        Counted.looked_up = 0
        pauses.between.clear()
        plugin.started(number, blocks, kept=number > 5, cached=16 * 100)
        plugin.finished(
            number,
            completed=True,
            blocks=blocks,
            prompt_blocks=len(blocks) - 5_000,
            hints=Hints(done=True) if number == 8 else NO_HINTS,
            token_ids=range(16 * len(blocks)),
            tenant="s",
        )
        assert len(pauses.between) > 5 * BLOCKS / pace.PIECE
        assert max([*pauses.between, Counted.looked_up]) <= MOST_HASHED
    assert plugin.failures == plugin.learner.guard_failures == 0


def test_the_schedulers_thread_looks_up_few_blocks_of_a_long_prompt(pauses: Pauses, tmp_path: Path) -> None:
    plugin = Plugin(
        ClientSettings(hints_share=0.5, lru_file=tmp_path / "lru"),
        capacity=BLOCKS,
        block_tokens=16,
        predictor=ScriptedPredictor(lambda _: 1),
        store=MemoryStore(),
        background=Never,
    )
    blocks, others = chain(1), chain(1, 3) + chain(2)
    for number in range(40):
        plugin.finished(f"other {number}", completed=True, blocks=others, prompt_blocks=len(others))
    Counted.looked_up = 0
    ended = plugin.finished("r", completed=True, blocks=blocks, prompt_blocks=len(blocks), hints=Hints(done=True))
    assert [run.end for run in ended.spans] == [3, len(blocks)]
    assert Counted.looked_up < 100 and not pauses.between


def test_a_thread_on_which_others_wait_does_not_pause(pauses: Pauses) -> None:
    assert [len(piece) for piece in pace.in_pieces(range(1_200))] == [500, 500, 200]
    assert not pauses.between


def test_pieces_are_consecutive_and_paused_between(pauses: Pauses) -> None:
    pieces: list[range] = []
    in_a_thread_that_gives_way(lambda: pieces.extend(pace.in_pieces(range(1_200))))  # type: ignore[arg-type]
    assert [item for piece in pieces for item in piece] == list(range(1_200)) and len(pauses.between) == 2
    assert not list(pace.in_pieces(())) or list(pace.in_pieces(())) == [()]


def test_a_long_prompt_is_encoded_in_pieces(pauses: Pauses) -> None:
    ids = [n % 150_000 for n in range(5 * PACKED_AT_ONCE + 7)]
    messages: list[bytes] = []
    question = Question(ids, "m", 3, "c", "s")
    in_a_thread_that_gives_way(lambda: messages.append(encode(question, "t").SerializeToString()))
    assert len(pauses.between) == 5
    sent = type(encode(question)).FromString(messages[0]).conversation
    assert list(sent.tokens.ids) == ids
    assert (sent.tokens.served_model, sent.tokens.tokenizer, sent.turn_count) == ("m", "t", 3)
    assert (sent.category, sent.conversation_id) == ("c", "s")
