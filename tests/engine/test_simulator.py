"""The simulator's LRU against vLLM's real scheduler: the same requests, and of each the same tokens from the cache."""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.request import RequestStatus

from lpc_apps.logs.formats import open_trace
from lpc_apps.simulator.engine import simulate
from lpc_apps.simulator.policies import REGISTRY, PolicySettings
from lpc_apps.simulator.workload import Cost, from_trace
from testing.bare_scheduler import BLOCK, STEP_S, Engine
from tests.nightly import LONG

pytestmark = pytest.mark.supports(engine="vLLM", tier="GPU pool", what="the simulator's blocks")

APART_S = 60.0
"""Between requests that do not overlap."""
MOST_CAPACITY = 40
"""Blocks."""


@dataclass
class Asked:
    """A request as it was served. ``hit``: tokens from the cache. ``parent``: number of the one that it continues.
    ``most``: tokens of its reply."""

    tokens: list[int]
    reply: list[int]
    hit: int
    parent: int
    arrival: float
    most: int
    shows_reply: bool


@dataclass(frozen=True)
class Step:
    """What comes next.

    Attributes:
        session: of three.
        kind: ``on``: history, reply and a new text; ``again``: the session's last prompt; ``dropped``: the last prompt and a
            new text, without the reply; ``new``: another conversation.
        head: system prompt of a new conversation.
        text: tokens of the new text.
        reply: tokens of the reply.
        aborted: whether the client leaves before the reply's end, after ``reply`` tokens.
        shows_reply: whether the log has the reply's text.
    """

    session: int
    kind: str
    head: int
    text: int
    reply: int
    aborted: bool
    shows_reply: bool


LENGTHS = st.sampled_from([1, 8, 15, 16, 17, 24, 31, 32, 33, 48, 64, 80])
STEPS = st.lists(
    st.builds(
        Step,
        session=st.integers(0, 2),
        kind=st.sampled_from(["on", "on", "on", "again", "dropped", "new"]),
        head=st.integers(0, 2),
        text=LENGTHS,
        reply=LENGTHS,
        aborted=st.booleans(),
        shows_reply=st.booleans(),
    ),
    min_size=6,
    max_size=16,
)
HEADS = [[], [7] * 32, [9] * 40]


class Served:
    """Requests in vLLM, in order of arrival. ``log``: those that the cache can hold."""

    def __init__(self, blocks: int, *, asynchronous: bool, max_overlap: int) -> None:
        self.log: list[Asked] = []
        self._blocks = blocks
        self._asynchronous = asynchronous
        self._max_overlap = max_overlap
        self._engine = Engine(blocks + 1, learned=False, asynchronous=asynchronous)  # one is vLLM's null block
        self._fresh = itertools.count(10_000)
        self._latest: dict[int, int] = {}
        self._running: dict[int, tuple[Any, bool]] = {}
        """By number: request, and whether its client leaves."""

    def ask(self, step: Step) -> None:
        """Add a request after its conversation's last one has ended, and some steps later."""
        number = self._latest.get(step.session, -1)
        while number in self._running or len(self._running) >= self._max_overlap:
            self.step()
        for _ in range(step.text % 5):
            self.step()
        self._engine.now += APART_S * (self._max_overlap == 1)
        text = [next(self._fresh) for _ in range(step.text)]
        if number < 0 or step.kind == "new":
            number, tokens = -1, HEADS[step.head] + text
        else:
            before = self.log[number]
            tokens = before.tokens + before.reply * (step.kind == "on") + text * (step.kind != "again")
            if step.kind == "dropped" and not before.shows_reply and len(text) >= len(before.reply):
                return  # nothing shows that the reply is not there
        if -(-(len(tokens) + step.reply - 1) // BLOCK) > self._blocks:
            return
        # Of an asynchronous scheduler the next step is under way when the client leaves, and may have taken a block.
        leaves = step.aborted and not (self._asynchronous and (len(tokens) + step.reply - 1) % BLOCK == 0)
        name = len(self.log)
        request = self._engine.add(f"{name}", tokens, step.reply + 50 * leaves)
        self._latest[step.session] = name
        self._running[name] = request, leaves
        self.log.append(Asked(tokens, [], 0, number, self._engine.now + name / 1e6, step.reply, step.shows_reply))

    def step(self) -> None:
        """Let vLLM schedule once."""
        self._engine.step()
        for name, (request, leaves) in [*self._running.items()]:
            asked = self.log[name]
            if leaves and len(request.output_token_ids) >= asked.most:
                self._engine.scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
            if f"{name}" not in self._engine.scheduler.requests:
                asked.reply = list(request.output_token_ids)[: asked.most]
                asked.hit = self._engine.outcome.hits[f"{name}"]
                del self._running[name]

    def end(self) -> list[Asked]:
        """Return the requests when all have ended."""
        while self._running:
            self.step()
        for number, asked in enumerate(self.log):
            asked.shows_reply = asked.shows_reply or not _is_elsewhere(self.log, number)
        return self.log


def in_vllm(steps: Sequence[Step], blocks: int, *, asynchronous: bool, max_overlap: int = 1) -> list[Asked]:
    """Serve requests, at most ``max_overlap`` at a time."""
    served = Served(blocks, asynchronous=asynchronous, max_overlap=max_overlap)
    for step in steps:
        served.ask(step)
    return served.end()


def _is_elsewhere(served: Sequence[Asked], number: int) -> bool:
    """Return whether a log without a reply's text has it in the next prompt, or it is the text of no other request."""
    asked = served[number]
    whole, begun = asked.tokens + asked.reply, len(asked.tokens) + 1
    following = next((each for each in served[number + 1 :] if each.parent == number), None)
    if following is not None and following.tokens[: len(whole)] == whole:
        return True
    others = (each.tokens + each.reply for each in (*served[:number], *served[number + 1 :]))
    return all(other[:begun] != whole[:begun] for other in others)


class Log:
    """A log of the publisher's form `qwen`, whose ids of blocks are equal if all tokens up to their ends are."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, ...], int] = {}

    def lines(self, served: Sequence[Asked]) -> Iterator[str]:
        for number, asked in enumerate(served):
            prompt = self._blocks(asked.tokens)
            full = len(asked.tokens) // BLOCK
            both = self._blocks(asked.tokens + asked.reply)
            record: dict[str, Any] = {
                "chat_id": number,
                "parent_chat_id": asked.parent,
                "timestamp": asked.arrival,
                "input_length": len(asked.tokens),
                "output_length": len(asked.reply),
                "hash_ids": prompt,
                "type": "text",
                "turn": number + 1,
            }
            yield json.dumps(record | ({"reply_hash_ids": both[full:]} if asked.shows_reply else {}))

    def _blocks(self, tokens: Sequence[int]) -> list[int]:
        return [self._ids.setdefault(tuple(tokens[: at + BLOCK]), len(self._ids)) for at in range(0, len(tokens), BLOCK)]


def in_simulator(served: Sequence[Asked], blocks: int) -> list[int]:
    """Return the tokens from the cache of each request."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        path.write_text("\n".join(Log().lines(served)))
        workload = from_trace(open_trace(path, "qwen"), count_from=0.0)
    hits: list[int] = []
    simulate(
        workload,
        blocks * BLOCK,
        lambda capacity: REGISTRY["lru"](capacity, workload, PolicySettings()),
        cost=Cost(prefill_tokens_s=1e9, output_token_s=STEP_S),
        on_start=lambda _, tokens: hits.append(tokens),
    )
    return hits


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@settings(max_examples=400 if LONG else 60, deadline=None)
@given(steps=STEPS, blocks=st.integers(4, MOST_CAPACITY))
def test_each_request_hits_what_it_hits_in_vllm(asynchronous: bool, steps: list[Step], blocks: int) -> None:
    served = in_vllm(steps, blocks, asynchronous=asynchronous)
    if served:
        assert in_simulator(served, blocks) == [asked.hit for asked in served]


@settings(max_examples=400 if LONG else 30, deadline=None)
@given(steps=STEPS)
def test_requests_that_overlap_hit_what_they_hit_in_vllm_while_nothing_is_evicted(steps: list[Step]) -> None:
    served = in_vllm(steps, 1000, asynchronous=False, max_overlap=3)
    if served:
        assert in_simulator(served, 1000) == [asked.hit for asked in served]
