"""What hints may decide: within a share of the cache, and of a request that is done only what it alone has used."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eviction_client.policy.hints import MOST_UNRECORDED, NO_HINTS, Hints, Owners, Retained
from eviction_client.stores import BlockHash


@pytest.mark.parametrize(
    ("arguments", "hints"),
    [
        (None, NO_HINTS),
        ({"lpc_retain_seconds": "200"}, Hints(retain_s=200.0)),
        ({"lpc_retain_seconds": -200}, NO_HINTS),
        ({"lpc_retain_seconds": "soon"}, NO_HINTS),
        ({"lpc_retain_seconds": float("inf")}, NO_HINTS),
        ({"lpc_retain_seconds": 10**400}, NO_HINTS),
        ({"lpc_done": "true"}, Hints(done=True)),
        ({"lpc_done": 0}, NO_HINTS),
        ({"lpc_done": 1, "lpc_retain_seconds": 5}, Hints(5.0, done=True)),
    ],
)
def test_an_unreadable_argument_is_not_a_hint(arguments: dict[str, Any] | None, hints: Hints) -> None:
    assert Hints.of(arguments) == hints


def chain(*names: str) -> list[BlockHash]:
    return [BlockHash(name.encode()) for name in names]


def uses(owners: Owners, session: str | None, blocks: list[BlockHash], *, recorded: bool = True) -> int:
    """Return the depth from which a conversation owns a chain that it uses now."""
    own_from = owners.own_from(session, blocks)
    owners.used(session, blocks)
    if recorded:
        owners.record()
    return own_from


def test_a_conversation_owns_the_blocks_of_all_its_turns_until_another_uses_them() -> None:
    owners = Owners(100)
    assert uses(owners, "a", chain("system", "a1")) == 0
    assert uses(owners, "a", chain("system", "a1", "a2")) == 0
    assert uses(owners, "b", chain("system", "b1")) == 1
    assert uses(owners, "a", chain("system", "a1", "a2")) == 1


@pytest.mark.parametrize("recorded", [True, False])
def test_a_prompt_that_somebody_repeats_belongs_to_nobody(recorded: bool) -> None:
    owners = Owners(100)
    uses(owners, "victim", chain("system", "question"), recorded=recorded)
    assert uses(owners, "attacker", chain("system", "question"), recorded=recorded) == 2
    assert uses(owners, None, chain("system", "question", "more"), recorded=recorded) == 2
    assert uses(owners, None, chain("system", "question", "more"), recorded=recorded) == 3


def test_nothing_is_owned_while_too_many_uses_are_unrecorded() -> None:
    owners = Owners(10_000)
    for number in range(3 * MOST_UNRECORDED):
        owners.used(f"s{number}", chain("system", f"s{number}"))
    assert owners.own_from("new", chain("system", "new")) == 2
    owners.record()
    assert owners.own_from("new", chain("system", "new")) == 1


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.lists(st.integers(0, 1), min_size=1, max_size=5), st.booleans()))
)
def test_own_blocks_are_those_that_no_other_conversation_has_used(made: list[tuple[str | None, list[int], bool]]) -> None:
    owners = Owners(10_000)
    users: dict[bytes, set[object]] = {}
    for session, path, recorded in made:
        blocks = [BlockHash(bytes(path[: depth + 1])) for depth in range(len(path))]
        wanted = max((n for n, block in enumerate(blocks, 1) if users.get(block, set()) - {session}), default=0)
        assert uses(owners, session, blocks, recorded=recorded) == wanted
        for block in blocks:
            users.setdefault(block, set()).add(session or object())


def test_owners_of_blocks_in_use_are_remembered_and_the_memory_is_bounded() -> None:
    owners = Owners(10)
    for number in range(1000):
        uses(owners, f"s{number}", chain("system", f"s{number}"))
        assert len(owners) <= 24
    assert uses(owners, "s1", chain("system", "new")) == 1


def test_hinted_prefixes_are_looked_up_to_a_limit_and_their_refusal_does_not_count() -> None:
    retained: Retained[int] = Retained(4)
    assert retained.hold({1: 1}, 60.0, 0.0)
    prefix = iter(range(2, 1000))
    assert not retained.follow(prefix, 60.0, 0.0)
    assert next(prefix) <= 8 and (retained.held, retained.refused) == (1, 0)
    assert retained.follow(iter((1, 2, 3, 4)), 60.0, 0.0)
    assert (retained.held, retained.granted) == (4, 5) and not retained.follow((5,), 70.0, 59.0)
    assert retained.follow((5,), 120.0, 61.0) and retained.held == 1
