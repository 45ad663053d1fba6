"""The rule `lpc` in vLLM's real scheduler evicts in the order of the paper's policy in the simulator."""

import random
from dataclasses import dataclass
from typing import Any

import pytest

from eviction_client.background import AtOnce
from eviction_client.policy.reuse_monitor import SHARED_FROM, ReuseMonitor
from eviction_client.policy.rules.lpc import LOG_ODDS_STEP
from eviction_client.transport.messages import SidecarPrediction
from lpc.model.probability import expit
from lpc_apps.simulator.cache import BlockCache
from lpc_apps.simulator.policies.lpc import Continuations, LpcPolicy
from lpc_apps.simulator.policy import PolicySettings
from lpc_apps.simulator.workload import Turn, Workload
from testing.bare_scheduler import BLOCK, Engine

pytestmark = pytest.mark.supports(
    engine="vLLM", tier="GPU pool", what="the rule lpc: the order of Learned Prefix Caching, in its scheduler without a model"
)

MEAN_GAP_S = 70.0
BLOCKS = 60


@dataclass
class Asked:
    """A request of a conversation: its prompt's blocks, and its continuation probability on the grid of the rule's classes."""

    conversation: str
    turn: int
    contents: tuple[int, ...]
    probability: float
    pause_s: float


def drawn(seed: int) -> list[Asked]:
    """Return the turns of conversations that share a system prompt of two blocks, in a random order."""
    rng = random.Random(seed)
    # First some that only make the system prompt known as shared; their probabilities are lowest.
    asked = [Asked(f"early {n}", 1, (0, 1, 2 + n), expit(-8.0), 1.0) for n in range(SHARED_FROM + 1)]
    contents, histories = 100, {}
    for number in range(250):
        name = f"chat {rng.randrange(max(number - 30, 0), number + 1)}"
        history = histories.setdefault(name, [0, 1])
        history += range(contents, contents + (new := rng.randint(1, 3)))
        contents += new
        probability = expit(LOG_ODDS_STEP * rng.randint(-16, 16))
        turn = sum(one.conversation == name for one in asked) + 1
        asked.append(Asked(name, turn, tuple(history[:20]), probability, rng.uniform(0.0, 20.0)))
    return [one for one in asked if one.turn == 1 or one.contents != asked[0].contents]


def in_the_simulator(asked: list[Asked], ends: list[float]) -> list[int]:
    """Return the contents that the simulator's `lpc` evicts, in order. ``ends``: time at which each request ends."""
    turns = [
        Turn(
            one.conversation,
            one.turn,
            "",
            len(one.contents) * BLOCK + 1,
            3,
            one.contents,
            one.contents,
            probability=one.probability,
        )
        for one in asked
    ]
    workload = Workload("asked", BLOCK, turns, False, 0.0, float("inf"))
    cache: BlockCache[Any] = BlockCache(BLOCKS - 1, LpcPolicy(BLOCKS - 1, workload, PolicySettings()))
    evicted: list[int] = []
    for turn, now in zip(turns, ends, strict=True):
        cache.policy.arrive(turn, now)
        path = workload.paths.of(turn)
        chunks = cache.allocate(path, 1, now)
        assert chunks is not None
        evicted += [content for chunk in chunks for content in chunk]
        cache.release(path, 1, turn, now)
    return evicted


def in_vllm(asked: list[Asked]) -> tuple[list[int], list[float]]:
    """Return the contents that vLLM's pool evicts under the rule `lpc`, in order, and the time at which each request ends."""
    probabilities = {f"{number}": one.probability for number, one in enumerate(asked)}
    engine = Engine(
        BLOCKS,
        rule="lpc",
        background=AtOnce,
        script=lambda name: SidecarPrediction(probabilities[name], "v", 1),
    )
    content_of: dict[bytes, int] = {}
    evicted: list[int] = []
    engine.on_evicted.append(lambda name: evicted.append(content_of[bytes(name)[:-4]]))
    ends = []
    for number, one in enumerate(asked):
        engine.now += one.pause_s
        tokens = [6 + content for content in one.contents for _ in range(BLOCK)]
        request = engine.add(f"{number}", [*tokens, 5], 3)
        content_of.update(zip(request.block_hashes, one.contents, strict=False))
        while engine.scheduler.has_unfinished_requests() or engine.in_flight:
            engine.step()
        ends.append(engine.now)
    plugin = engine.scheduler.lpc.plugin
    assert plugin.rule == "lpc" and plugin.failures == 0
    return evicted, ends


@pytest.mark.parametrize("seed", range(3))
def test_lpc_evicts_in_vllm_what_the_papers_policy_evicts_in_the_simulator(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in (ReuseMonitor, Continuations):
        monkeypatch.setattr(part, "mean_gap_s", MEAN_GAP_S)
    asked = drawn(seed)
    ours, ends = in_vllm(asked)
    papers = in_the_simulator(asked, ends)
    assert len(papers) > 200
    assert ours == papers
