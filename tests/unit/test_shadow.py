"""Two shadow caches, and what they make of a request's end."""

import hashlib

from eviction_client.credit import CreditGrid, CreditTable
from eviction_client.finished import Finished
from eviction_client.score import Keys
from eviction_client.shadow import GhostCache, Shadows
from eviction_client.stores import BlockHash, ConversationId

NOW = 1.8e9
GRID = CreditGrid([1.0, 3600.0])


def flat(credit: float) -> CreditTable:
    return GRID.table([credit, credit])


def chain(name: str, length: int) -> list[BlockHash]:
    return [BlockHash(hashlib.sha256(f"{name}/{n}".encode()).digest()) for n in range(length)]


def ended(blocks: list[BlockHash], at: float, table: CreditTable | None = None) -> Finished:
    return Finished(None, blocks, len(blocks), at, Keys(at, at), table)


def test_credit_is_counted_against_lru_in_the_same_traffic() -> None:
    """One conversation of two returns, the other never: credit keeps the right one."""
    shadows, now = Shadows(100), NOW
    for number in range(400):
        now += 10
        # What returned four requests ago comes again; between lie three that never will.
        name, credit = (f"returns{number // 4 % 3}", 200.0) if number % 4 == 0 else (f"once{number}", -200.0)
        shadows.observe(ended(chain(name, 20), now, flat(credit)))
    assert shadows.counters.credit_hits > shadows.counters.lru_hits + 100
    assert shadows.guard.trusting
    assert shadows.guard.regret < 0


def test_without_credit_the_shadows_are_one() -> None:
    shadows, now = Shadows(100), NOW
    for number in range(300):
        now += 10
        shadows.observe(ended(chain(f"c{number * number % 12}", 20), now))
    assert shadows.counters.credit_hits == shadows.counters.lru_hits > 0
    assert not shadows.guard.trusting


def test_the_shadow_with_credit_measures_its_own_lifetime() -> None:
    shadows, now = Shadows(100), NOW
    for number in range(300):
        now += 10
        shadows.observe(ended(chain(f"once{number}", 20), now))
    assert 20 < shadows.lifetime < 60  # five chains live in it, ten seconds apart


def test_late_credit_is_laid_on_what_was_not_used_since() -> None:
    ghost = GhostCache(8)
    first, second = ended(chain("a", 4), NOW), ended(chain("b", 4), NOW + 10)
    ghost.use(first.blocks, NOW, first)
    ghost.use(second.blocks, NOW + 10, second)
    again = ended(chain("a", 2), NOW + 20)
    ghost.use(again.blocks, NOW + 20, again)
    ghost.lay(first.blocks, NOW + 100, first)
    third = ended(chain("c", 5), NOW + 30)
    ghost.use(third.blocks, NOW + 30, third)
    # Gone: all of b, and of a what was used again, which had the lowest key then.
    assert ghost.hits(second.blocks) == 0
    assert [ghost.hits([block]) for block in first.blocks] == [1, 0, 1, 1]


def test_a_prefix_that_others_hold_keeps_the_highest_of_their_keys() -> None:
    ghost = GhostCache(6)
    shared = chain("system", 2)
    kept, over = ended([*shared, *chain("a", 1)], NOW), ended([*shared, *chain("b", 1)], NOW + 10)
    ghost.use(kept.blocks, NOW + 500, kept, ConversationId("a"))
    ghost.use(over.blocks, NOW - 500, over, ConversationId("b"))
    other = ended(chain("c", 3), NOW + 20)
    ghost.use(other.blocks, NOW + 20, other, ConversationId("c"))
    assert ghost.hits(shared) == 2 and ghost.hits(chain("b", 1)) == 0
