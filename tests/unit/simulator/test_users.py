"""The workloads with users have the published figures, and differ only in whose the habits are."""

from collections import Counter
from functools import cache

import numpy as np
import pytest

from lpc_apps.simulator.workload import Turn
from lpc_apps.simulator.workloads import WORKLOADS
from lpc_apps.simulator.workloads.users import truth

SEEDS = (0, 1)
NAMES = ("users", "users-alike")
TENANTS = ("tenants", "tenants-alike")


@cache
def requests(name: str, seed: int) -> list[Turn]:
    return WORKLOADS[name](seed).arrivals


def lengths(name: str, seed: int) -> dict[str, int]:
    """Return the turns of conversations that began early enough to have ended."""
    begun: dict[str, float] = {}
    for turn in requests(name, seed):
        begun.setdefault(turn.conversation, turn.arrival)
    half = requests(name, seed)[-1].arrival / 2
    counts = Counter(turn.conversation for turn in requests(name, seed))
    return {conversation: count for conversation, count in counts.items() if begun[conversation] < half}


@pytest.mark.parametrize("name", (*NAMES, *TENANTS))
def test_conversations_are_as_long_as_published(name: str) -> None:
    for seed in SEEDS:
        turns = np.array(list(lengths(name, seed).values()))

        assert np.mean(turns == 1) == pytest.approx(0.54, abs=0.05)
        assert 4 <= np.quantile(turns, 0.9) <= 6
        assert turns.max() > (20 if name in NAMES else 15)


@pytest.mark.parametrize("name", NAMES)
def test_the_busiest_tenth_sends_as_much_as_published(name: str) -> None:
    for seed in SEEDS:
        sent = np.sort(list(Counter(turn.user for turn in requests(name, seed)).values()))[::-1]

        assert sent[: len(sent) // 10].mean() / sent.mean() == pytest.approx(8.9, abs=0.6)


@pytest.mark.parametrize("name", (*NAMES, *TENANTS))
def test_most_gaps_are_below_ten_minutes(name: str) -> None:
    gaps = [turn.next.arrival - turn.arrival for seed in SEEDS for turn in requests(name, seed) if turn.next is not None]

    assert np.mean(np.array(gaps) < 600) == pytest.approx(0.8, abs=0.1)


def between_users(name: str, seed: int) -> float:
    """Return the standard deviation, over busy users or tenants, of the share of their conversations with a second turn."""
    user_of = {turn.conversation: turn.user or turn.tenant for turn in requests(name, seed)}
    went_on: dict[str, list[bool]] = {}
    for conversation, turns in lengths(name, seed).items():
        went_on.setdefault(user_of[conversation], []).append(turns > 1)
    return float(np.std([np.mean(own) for own in went_on.values() if len(own) >= 30]))


def test_users_differ_only_where_habits_are_theirs() -> None:
    for seed in SEEDS:
        assert between_users("users", seed) > 0.15
        assert between_users("users-alike", seed) < 0.12  # of 30 conversations each: 0.09 by chance
        assert between_users("tenants", seed) > 0.15
        assert between_users("tenants-alike", seed) < 0.12


@pytest.mark.parametrize("name", TENANTS)
def test_tenants_have_a_salt_each_share_nothing_and_name_no_user(name: str) -> None:
    turns = requests(name, 0)
    assert len({turn.tenant for turn in turns}) == 12
    assert not any(turn.user for turn in turns)
    tenant_of: dict[int, str] = {}
    assert all(tenant_of.setdefault(block, turn.tenant) == turn.tenant for turn in turns for block in turn.contents[:1])


def test_no_user_hits_a_block_of_another_one_behind_the_system_prompt() -> None:
    owner: dict[int, str] = {}
    for turn in requests("users", 0):
        for content in turn.contents[12:]:  # 192 tokens
            assert owner.setdefault(content, turn.user) == turn.user


def test_the_true_laws_are_those_of_the_requests() -> None:
    for seed in SEEDS:
        true, user_of = truth(seed), {turn.conversation: turn.user for turn in requests("users", seed)}
        begun = Counter(user_of.values())
        went_on: dict[str, list[bool]] = {}
        for conversation, turns in lengths("users", seed).items():
            went_on.setdefault(user_of[conversation], []).append(turns > 1)
        busy = [name for name, own in went_on.items() if len(own) >= 30]
        expected = [true.users[name].continues for name in busy]

        assert np.corrcoef(expected, [np.mean(went_on[name]) for name in busy])[0, 1] > 0.9
        assert np.corrcoef([begun[name] for name in busy], [true.users[name].rate for name in busy])[0, 1] > 0.9
