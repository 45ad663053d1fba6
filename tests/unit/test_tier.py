"""A tier below the engine's pool: whose chunks go first, and who decides that."""

import hashlib
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eviction_client.credit import CreditGrid, CreditTable
from eviction_client.finished import Finished
from eviction_client.hints import NOTHING, Asked
from eviction_client.score import Keys
from eviction_client.shadow import Shadows
from eviction_client.stores import BlockHash
from eviction_client.tier import LAID_PER_STEP, Tier
from tests.unit.test_scorer import Bench, prediction

NOW = 1.8e9
GRID = CreditGrid([10.0, 1000.0])


def flat(credit: float) -> CreditTable:
    return GRID.table([credit, credit])


class Room:
    """A tier and a clock, used as an engine does: tails first."""

    def __init__(self, chunks: int = 100, *, trusting: bool = True, pools: bool = True) -> None:
        self.now = NOW
        self.tier = Tier(
            "t",
            chunks,
            blocks=chunks,
            prompts_only=True,
            guarded=False,
            pools=pools,
            hints_share=0.2,
            named=str.encode,
            clock=lambda: self.now,
        )
        self.tier.wanted = trusting
        self.tier.step()
        self.held: set[str] = set()

    def store(self, *contents: str) -> None:
        for content in contents:
            self.tier.store(content)
            self.held.add(content)

    def end(
        self,
        request: str,
        contents: Sequence[str],
        table: CreditTable | None = None,
        *,
        session: str | None = None,
        asked: Asked = NOTHING,
        awaited: bool = False,
    ) -> None:
        self.store(*(content for content in contents if content not in self.held))
        keys = Keys(self.now, self.now)
        self.tier.ended(request, Finished(session, (), 0, self.now, keys, table, awaited, asked))
        self.tier.used(request, contents[::-1])

    def order(self) -> list[object]:
        return list(self.tier.order())


def test_the_smallest_key_goes_first_and_of_a_request_its_end() -> None:
    room = Room()
    for request, credit in (("more", 50.0), ("less", -50.0), ("even", 0.0)):
        room.now += 5
        room.end(request, [f"{request}0", f"{request}1"], flat(credit))
    assert room.order() == ["less1", "less0", "even1", "even0", "more1", "more0"]


def test_the_credit_is_that_of_the_tiers_own_lifetime() -> None:
    room = Room()
    room.tier.lifetime.seconds = 1000.0
    room.end("a", ["a"], GRID.table([-500.0, 500.0]))
    room.now += 100
    room.end("b", ["b"])
    assert room.order() == ["b", "a"]


def test_without_credit_it_has_no_say_and_with_it_only_while_it_is_trusted() -> None:
    room = Room(trusting=False)
    room.end("a", ["a"])
    room.end("b", ["b"], flat(0.0))
    room.tier.wanted = True
    room.tier.step()
    assert not room.tier.decides
    room.end("c", ["c"], flat(1.0))
    assert room.tier.decides
    room.tier.wanted = False
    room.tier.step()
    assert not room.tier.decides
    assert room.order() == ["a", "b", "c"]


def test_when_what_had_credit_is_gone_it_has_no_say_any_more() -> None:
    room = Room()
    room.end("a", ["a"], flat(-9.0))
    room.end("b", ["b"])
    room.tier.evicted(["a"], by="credit")
    assert not room.tier.decides and room.order() == ["b"]


def test_what_an_application_asked_for_holds_under_either_rule() -> None:
    room = Room(trusting=False)
    room.end("kept", ["kept"], asked=Asked(600.0))
    room.now += 10
    room.end("b", ["b"], flat(100.0))
    assert room.tier.decides
    assert room.order() == ["b", "kept"]


def test_hints_retain_no_more_chunks_than_their_share() -> None:
    room = Room(10)
    for number in range(8):
        room.now += 1
        room.end(f"r{number}", [f"r{number}"], asked=Asked(600.0))
    room.now += 60
    room.end("later", ["later"])
    assert room.order()[-2:] == ["r0", "r1"], "only two of ten chunks outlast what was used later"
    assert (room.tier.retained.held, room.tier.retained.refused) == (2, 6)
    room.tier.remove("r0")
    room.end("next", ["next"], asked=Asked(600.0))
    assert room.order()[-2:] == ["r1", "next"]


def test_a_retained_chunk_that_others_use_still_counts() -> None:
    room = Room(10)
    room.end("a", ["trunk", "a"], asked=Asked(600.0))
    room.end("b", ["trunk"], session="b")
    room.end("c", ["trunk"], asked=Asked(600.0, frozenset(), 1), session="c")
    assert room.tier.retained.held == 2


@pytest.mark.parametrize("pools", [True, False])
def test_a_finished_branch_does_not_take_the_trunk_of_others_along(*, pools: bool) -> None:
    room = Room(pools=pools)
    room.end("other", ["trunk", "other"], session="other")
    room.now += 5
    room.end("branch", ["trunk", "branch"], asked=Asked(own=frozenset({b"branch"}), own_from=1), session="branch")
    assert room.order() == ["branch", "other", "trunk"]


def test_chunks_of_a_request_that_runs_go_last_whatever_the_others_have() -> None:
    room = Room()
    room.end("a", ["a"], flat(500.0))
    room.now += 1
    room.store("running0", "running1")
    room.now += 1
    room.end("b", ["b"], flat(100.0))
    assert room.order() == ["b", "a", "running1", "running0"]
    assert len({chunk.block_id for chunk in room.tier._queue}) == 4


def test_chunks_that_a_running_request_meets_go_last_and_keep_their_keys() -> None:
    room = Room()
    room.end("a", ["a"], flat(-50.0))
    room.end("b", ["b"], flat(500.0))
    room.tier.touch(["a"])
    assert room.order() == ["b", "a"]
    room.end("c", ["a", "c"], flat(-90.0))
    assert room.order() == ["c", "a", "b"]


def test_a_prefix_of_many_keeps_the_highest_of_their_keys() -> None:
    room = Room()
    room.end("a", ["system", "a"], flat(300.0))
    room.end("b", ["system", "b"], flat(-300.0))
    room.end("c", ["system", "c"], flat(-200.0))
    assert room.order() == ["b", "c", "a", "system"]


def test_a_later_turn_of_the_same_conversation_replaces_its_keys() -> None:
    for sessions in ((None, None), ("s", "s")):
        room = Room()
        room.end("a", ["0", "1"], flat(300.0), session=sessions[0])
        room.end("x", ["x"], flat(0.0))
        room.end("b", ["0", "1", "2"], flat(-300.0), session=sessions[1])
        assert room.order() == ["2", "1", "0", "x"]


def test_another_session_with_the_same_chain_is_another_conversation() -> None:
    room = Room()
    room.end("a", ["0", "1"], flat(300.0), session="s")
    room.end("x", ["x"], flat(0.0))
    room.end("b", ["0", "1", "2"], flat(-300.0), session="t")
    assert room.order() == ["2", "x", "1", "0"]


def test_where_nothing_is_pooled_the_latest_keys_count() -> None:
    room = Room(pools=False)
    room.end("a", ["system", "a"], flat(300.0))
    room.end("b", ["system", "b"], flat(-300.0))
    assert room.order() == ["b", "system", "a"]


def test_credit_that_comes_late_is_laid_on_what_was_not_used_again() -> None:
    room = Room()
    room.end("a", ["0", "1"], awaited=True)
    room.end("other", ["o"])
    room.now += 1
    room.end("b", ["0"], session="b")
    room.tier.late("a", flat(-300.0))
    room.tier.late("nobody", flat(-300.0))
    room.tier.step()
    assert room.order() == ["1", "o", "0"]
    assert room.tier.decides


@pytest.mark.parametrize(("credit", "order"), [(-300.0, ["b", "x", "a", "system"]), (300.0, ["x", "a", "b", "system"])])
def test_credit_that_comes_late_only_raises_what_others_hold_too(credit: float, order: list[str]) -> None:
    room = Room()
    room.end("a", ["system", "a"], flat(100.0))
    room.end("b", ["system", "b"], awaited=True)
    room.end("x", ["x"], flat(50.0))
    room.tier.late("b", flat(credit))
    room.tier.step()
    assert room.order() == order


def test_credit_that_comes_before_the_tier_hears_of_the_end_is_in_time() -> None:
    room = Room()
    room.store("a")
    room.tier.ended("a", Finished(None, (), 0, room.now, Keys(room.now, room.now), None, awaited=True))
    room.tier.late("a", flat(-60.0))
    room.tier.used("a", ["a"])
    room.end("b", ["b"])
    assert room.tier.decides and room.order() == ["a", "b"]


def test_late_credit_is_laid_in_bounded_steps() -> None:
    room = Room(3 * LAID_PER_STEP)
    chain = [str(n) for n in range(2 * LAID_PER_STEP + 1)]
    room.end("b", ["b"])
    room.end("a", chain, awaited=True)
    room.tier.late("a", flat(-60.0))
    for left in (LAID_PER_STEP + 1, 1, 0):
        room.tier.step()
        assert len(chain) - room.order().index("b") == left


def test_the_lifetime_is_how_long_chunks_lived() -> None:
    room = Room(10)
    for number in range(400):
        room.now += 2
        if len(room.tier) == 10:
            room.tier.evicted(room.order()[:1], by="lru")
        room.end(str(number), [str(number)])
    assert room.tier.lifetime.seconds == pytest.approx(20.0, abs=0.5)
    assert room.tier.evictions == {"credit": 0, "lru": 390}


@settings(deadline=None)
@given(st.data())
def test_no_chunk_is_lost_doubled_or_out_of_order(data: st.DataObject) -> None:
    room = Room(trusting=data.draw(st.booleans()))
    key: dict[object, float] = {}
    for number in range(data.draw(st.integers(1, 25))):
        room.now += 3
        kind = data.draw(st.sampled_from(("end", "end", "end", "evict", "remove", "clear")))
        if kind == "end":
            chain = [f"c{n}" for n in data.draw(st.lists(st.integers(0, 15), min_size=1, max_size=6, unique=True))]
            credit = data.draw(st.integers(-4, 4)) * 60.0
            room.end(str(number), chain, flat(credit), session=str(number))
            trusting = room.tier.trusting
            for content in chain:
                new = room.now + credit * trusting
                key[content] = max(key[content], new) if trusting and content in key else new
        elif kind == "evict" and room.held:
            gone = room.order()[: data.draw(st.integers(1, 4))]
            assert [key[content] for content in gone] == sorted(key.values())[: len(gone)]
            room.tier.evicted(gone, by="credit")
            for content in gone:
                room.held.discard(str(content))
                del key[content]
        elif kind == "remove" and room.held:
            content = data.draw(st.sampled_from(sorted(room.held)))
            room.tier.remove(content)
            room.held.discard(content)
            del key[content]
        elif kind == "clear" and number % 5 == 0:
            room.tier.clear()
            room.held.clear()
            key.clear()
        order = room.order()
        assert sorted(map(str, order)) == sorted(room.held) and len(room.tier) == len(order)
        assert [key[content] for content in order] == sorted(key.values())


def chain(name: str, length: int) -> list[BlockHash]:
    return [BlockHash(hashlib.sha256(f"{name}/{n}".encode()).digest()) for n in range(length)]


def ended(blocks: list[BlockHash], at: float, table: CreditTable) -> Finished:
    return Finished(None, blocks, len(blocks), at, Keys(at, at), table)


def traffic(requests: int, credit: float, *, first: int = 0, blocks: int = 20) -> list[Finished]:
    """One request in four is of a conversation that returns; these get this credit, the others its opposite."""
    made = []
    for number in range(first, first + requests):
        name, seconds = (f"returns{number // 4 % 3}", credit) if number % 4 == 0 else (f"once{number}", -credit)
        made.append(ended(chain(name, blocks), NOW + 10 * number, flat(seconds)))
    return made


def guarded(chunks: int) -> Tier:
    return Tier("t", chunks, blocks=chunks, prompts_only=True, guarded=True, pools=True, clock=lambda: NOW)


def test_the_guard_trusts_credit_that_pays_in_the_tier_and_none_that_is_turned_round() -> None:
    pool = Shadows(8).holding(trusting=False)
    right, wrong = guarded(100), guarded(100)
    for request in traffic(400, 200.0):
        right.learn(request, None, pool)
    for request in traffic(400, -200.0):
        wrong.learn(request, None, pool)
    assert right.wanted and not wrong.wanted


def test_credit_goes_when_predictions_turn_round() -> None:
    pool, tier = Shadows(8).holding(trusting=False), guarded(100)
    for request in traffic(400, 200.0):
        tier.learn(request, None, pool)
    assert tier.wanted
    # Now least recent use would hit them.
    for request in traffic(1000, -200.0, first=400, blocks=6):
        tier.learn(request, None, pool)
    assert not tier.wanted


def test_what_the_pool_holds_is_no_merit_of_the_tier() -> None:
    pool, tier, alone = Shadows(100_000), guarded(400), guarded(400)
    for request in traffic(400, 200.0, blocks=80):
        alone.learn(request, None, Shadows(8).holding(trusting=False))
        tier.learn(request, None, pool.holding(trusting=False))
        pool.observe(request)
    assert alone.wanted
    assert not tier.wanted and tier.switches == 0


def test_replies_that_the_tier_does_not_store_take_no_room_in_its_shadows() -> None:
    rng = random.Random(5)
    prompts_only, all_blocks = Shadows(64, prompts_only=True), Shadows(64)
    hits = []
    for shadows in (prompts_only, all_blocks):
        rng.seed(5)
        for number in range(200):
            blocks = chain(f"c{rng.randrange(6)}", 10) + chain(f"reply{number}", 40)
            shadows.observe(Finished(None, blocks, 10, NOW + number, Keys(NOW + number, NOW + number), None))
        hits.append(shadows.counters.lru_hits)
    assert hits[0] > hits[1]


def test_the_scorer_gives_a_tier_what_it_gives_the_pool_at_the_tiers_lifetime() -> None:
    bench = Bench()
    tier = bench.scorer.add_tier("cpu", 10, blocks=10, prompts_only=True)
    tier.lifetime.seconds = 5000.0
    tier.step()
    for request in ("a", "b"):
        tier.store(request)
    keys = bench.finish("a", prediction(-500.0, 500.0))
    tier.used("a", ["a"])
    bench.now += 100
    bench.finish("b")
    tier.used("b", ["b"])
    assert keys.key < keys.t_last
    assert list(tier.order()) == ["b", "a"]
    bench.answers.late = [("b", prediction(0.0, 4000.0))]
    bench.scorer.late()
    tier.step()
    assert list(tier.order()) == ["a", "b"]


@pytest.mark.parametrize("late", [False, True])
def test_what_the_pool_keeps_goes_first_in_a_tier_that_has_little_more_time_for_it(late: bool) -> None:
    bench = Bench(guard=False)
    for name, lifetime, expected in (("small", 300.0, ["kept", "even"]), ("large", 3000.0, ["even", "kept"])):
        tier = bench.scorer.add_tier(name, 10, blocks=10, prompts_only=True)
        tier.lifetime.seconds, bench.scorer.lifetime.seconds = lifetime, 200.0
        tier.step()
        for request, credit in (("kept", 100.0), ("even", 0.0)):
            tier.store(request)
            if late:
                bench.finish(request)
            else:
                bench.finish(request, prediction(credit, credit))
            tier.used(request, [request])
            if late:
                bench.answers.late = [(request, prediction(credit, credit))]
                bench.scorer.late()
                tier.step()
        assert list(tier.order()) == expected
        bench.scorer.drop_tier(tier)
