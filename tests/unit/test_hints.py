"""What hints may decide: within a share of the cache, and of a request that is done only what it alone has used."""

from typing import Any

import pytest

from eviction_client.hints import NO_HINTS, Hints, Owners
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
def test_what_cannot_be_read_is_not_a_hint(arguments: dict[str, Any] | None, hints: Hints) -> None:
    assert Hints.of(arguments) == hints


def chain(*names: str) -> list[BlockHash]:
    return [BlockHash(name.encode()) for name in names]


def test_a_conversation_owns_the_blocks_of_all_its_turns_until_another_uses_them() -> None:
    owners = Owners(100)
    assert owners.used("a", chain("system", "a1")) == 0
    assert owners.used("a", chain("system", "a1", "a2")) == 0
    assert owners.used("b", chain("system", "b1")) == 1
    assert owners.used("a", chain("system", "a1", "a2")) == 1


def test_a_prompt_that_somebody_repeats_belongs_to_nobody() -> None:
    owners = Owners(100)
    owners.used("victim", chain("system", "question"))
    assert owners.used("attacker", chain("system", "question")) == 2


def test_owners_of_blocks_in_use_are_remembered_and_the_memory_is_bounded() -> None:
    owners = Owners(10)
    for number in range(1000):
        owners.used(f"s{number}", chain("system", f"s{number}"))
        assert len(owners._users) + len(owners._earlier) <= 24
    assert owners.used("s1", chain("system", "new")) == 1
