"""Segments change nothing: every policy evicts block for block what it evicts when all segments are single blocks."""

import random

import pytest

from lpc_apps.simulator.engine import simulate
from lpc_apps.simulator.policies import REGISTRY, PolicySettings
from lpc_apps.simulator.workload import Turn, Workload
from tests.nightly import LONG

BLOCK = 16
POLICIES = sorted(REGISTRY)


def traffic(seed: int, requests: int = 250) -> Workload:
    """Chats behind shared prompts, whose turns grow, are retried and branch; replies are part of the next prompt."""
    draw = random.Random(seed)
    fresh = iter(range(10**6))
    shared = [[next(fresh) for _ in range(draw.randint(1, 12))] for _ in range(3)]
    chats: dict[str, tuple[int, list[int], Turn | None]] = {}
    turns: list[Turn] = []
    now = 0.0
    for number in range(requests):
        now += draw.expovariate(0.5)
        name = draw.choice([*list(chats)[-12:], f"c{number}"])
        place, history, before = chats.get(name, (1, list(draw.choice(shared)), None))
        if draw.random() < 0.2:
            history = history[: draw.randint(1, len(history))]
        prompt = [*history, *(next(fresh) for _ in range(draw.randint(0, 15)))]
        whole = [*prompt, *(next(fresh) for _ in range(draw.randint(0, 4)))]
        turn = Turn(name, place, f"class{place % 3}", len(prompt) * BLOCK + draw.randint(0, 15), 0, tuple(prompt), tuple(whole))
        turn.output_tokens = (len(whole) + 1) * BLOCK - turn.input_tokens
        turn.arrival = now
        if before is not None:
            before.next = turn
        chats[name] = place + 1, whole, turn
        turns.append(turn)
    return Workload("made", BLOCK, turns, False, 0.0, float("inf"))


def evictions(policy: str, workload: Workload, blocks: int, *, blockwise: bool) -> tuple[int, list[int]]:
    """Return hit tokens and the evicted blocks in order."""
    made = type(
        policy,
        (REGISTRY[policy],),
        {"path": lambda self, turn: self.workload.paths.blocks(turn.all_contents)} if blockwise else {},
    )
    gone: list[int] = []
    result = simulate(
        workload,
        blocks * BLOCK,
        lambda n: made(n, workload, PolicySettings()),
        on_evict=lambda _, contents: gone.extend(contents),
    )
    return result.hit_tokens, gone


@pytest.mark.parametrize("seed", range(4 if LONG else 1))
@pytest.mark.parametrize("blocks", [90, 400])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_evicts_segments_as_it_evicts_blocks(
    policy: str, blocks: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The monitor forgets whole segments, or single blocks: of the prompt used longest ago it may know a part in one case only.
    monkeypatch.setattr("lpc_apps.simulator.policies.plugin.REMEMBERED", 1000)
    # The workload-aware policy refits less often the more it awaits: segments, or single blocks.
    monkeypatch.setattr("lpc_apps.simulator.policies.workload_aware.REFIT_TURN", (10**9, 0))
    found = evictions(policy, traffic(seed), blocks, blockwise=False)

    assert found == evictions(policy, traffic(seed), blocks, blockwise=True)
    assert found[1]
