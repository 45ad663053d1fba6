"""The policy `plugin` is the plug-in: what credit, the guard and the queue of the client do with a sidecar's answers."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from eviction_client.settings import ClientSettings
from lpc.model.returns.credit import LIFETIMES
from lpc.simulator import sidecar
from lpc.simulator.engine import Result, simulate
from lpc.simulator.policies import REGISTRY, PolicySettings
from lpc.simulator.policies.plugin import Plugin
from lpc.simulator.workload import Turn, Workload
from lpc.simulator.workloads import WORKLOADS

UNGUARDED = PolicySettings(guard=False)


def replay(
    workload: Workload, policy: str, share: float = 0.02, settings: PolicySettings | None = None
) -> tuple[Result, list[int]]:
    """Return the result, and the content ids evicted, in their order."""
    gone: list[int] = []
    result = simulate(
        workload,
        round(share * workload.working_set_tokens()),
        lambda blocks: REGISTRY[policy](blocks, workload, settings or PolicySettings()),
        on_evict=lambda _, blocks: gone.extend(blocks),
    )
    return result, gone


def answer(monkeypatch: pytest.MonkeyPatch, credits_s: Mapping[Turn, float]) -> None:
    """Let the sidecar answer these seconds at every lifetime."""
    tables = {turn: np.full(len(LIFETIMES), seconds) for turn, seconds in credits_s.items()}
    monkeypatch.setattr(sidecar, "credits_of", lambda workload: tables)


@pytest.fixture(scope="module")
def documents() -> Workload:
    """Blocks shared by several conversations, and turns that come back."""
    return WORKLOADS["documents"](requests=1200)


@pytest.fixture(scope="module")
def chats() -> Workload:
    return WORKLOADS["chat-exponential"](requests=1500)


@pytest.mark.parametrize("seconds", [0.0, 15.0, -15.0])
@pytest.mark.parametrize("guard", [True, False])
def test_equal_credits_evict_what_lru_evicts(
    documents: Workload, monkeypatch: pytest.MonkeyPatch, seconds: float, guard: bool
) -> None:
    answer(monkeypatch, dict.fromkeys(documents.arrivals, seconds))

    assert replay(documents, "plugin", settings=PolicySettings(guard=guard)) == replay(documents, "lru")


def test_credit_for_those_who_return_raises_hits_and_the_opposite_lowers_them(
    chats: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, {turn: 150.0 if turn.next is not None else -150.0 for turn in chats.arrivals})
    lru, right, wrong = (
        replay(chats, policy, 0.1, settings=settings)[0].hit_rate
        for policy, settings in (("lru", None), ("plugin", UNGUARDED), ("plugin", replace(UNGUARDED, invert=True)))
    )

    assert right > lru + 0.01
    assert wrong < lru - 0.01


def test_the_guard_takes_back_most_of_what_inverted_answers_cost(chats: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, {turn: 150.0 if turn.next is not None else -150.0 for turn in chats.arrivals})
    inverted = PolicySettings(invert=True)
    lru, bare, guarded = (
        replay(chats, policy, 0.1, settings=settings)[0].hit_rate
        for policy, settings in (("lru", None), ("plugin", replace(inverted, guard=False)), ("plugin", inverted))
    )

    assert bare < lru - 0.01
    assert guarded > lru - 0.005


def test_a_seed_gives_one_result() -> None:
    runs = [replay(WORKLOADS["chat-lognormal"](3, requests=700), "plugin", settings=UNGUARDED) for _ in range(2)]

    assert runs[0] == runs[1]


def test_a_block_is_numbered_as_in_an_engine_and_keeps_its_content(documents: Workload) -> None:
    policy = Plugin(40, documents, PolicySettings())
    simulate(documents, 40 * documents.block_tokens, lambda _: policy)
    numbers = [block.block_id for block in policy.queue]

    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number < 40 for number in numbers)


def test_the_environment_has_no_say(documents: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPC_GUARD", "false")
    monkeypatch.setenv("LPC_POOLING", "off")
    assert not ClientSettings().guard

    settings = Plugin(40, documents, PolicySettings()).scorer.settings

    assert settings.guard
    assert settings.pools == "shared"
