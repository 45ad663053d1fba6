"""Where prompt tokens come from: against a cache of which everything is remembered, and source by source."""

import hashlib
import json
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

import pytest

from eviction_client.background import AtOnce
from eviction_client.observability.miss_log import log_misses
from eviction_client.observability.misses import SOURCES
from eviction_client.plugin import Plugin
from eviction_client.policy.ghosts import CHOSEN, sampled
from eviction_client.policy.rules import RULES
from eviction_client.settings import ClientSettings
from eviction_client.stores import BlockHash, MemoryStore
from eviction_client.tenants import MOST_TENANTS, OTHERS, digest_of
from eviction_client.transport.scripted_predictor import ScriptedPredictor
from tests.redis_stores import A, record

BLOCK = 4


def hashed(token_ids: Sequence[int], salt: str = "") -> list[BlockHash]:
    """Return the hashes of a prompt's full blocks, each of all tokens before its end, as engines make them."""
    ends = range(BLOCK, len(token_ids) + 1, BLOCK)
    return [BlockHash(hashlib.sha256(f"{salt}/{list(token_ids[:end])}".encode()).digest()) for end in ends]


class Engine:
    """An engine with a plug-in and an LRU cache of ``blocks`` blocks, in which each request takes no time."""

    def __init__(self, blocks: int, store: MemoryStore | None = None, settings: ClientSettings | None = None) -> None:
        self.now = 1.8e9
        self.room = blocks
        self.held: OrderedDict[BlockHash, None] = OrderedDict()
        self.plugin = Plugin(
            settings or ClientSettings(),
            capacity=blocks,
            block_tokens=BLOCK,
            predictor=ScriptedPredictor(),
            store=store,
            clock=lambda: self.now,
            background=AtOnce,
        )
        self.count = 0

    def serve(
        self, prompt: Sequence[int], reply: Sequence[int] = (), *, salt: str = "", session: str | None = None
    ) -> Counter[str]:
        """Serve a request; return what its tokens were counted as."""
        self.now += 1.0
        self.count += 1
        before = Counter(self.plugin.misses.tokens)
        blocks, chain = hashed(prompt, salt), hashed([*prompt, *reply], salt)
        found = 0
        while found < (len(prompt) - 1) // BLOCK and blocks[found] in self.held:
            found += 1
        self.plugin.started(self.count, blocks)
        self.plugin.served(self.count, found * BLOCK)
        self.plugin.finished(
            self.count,
            completed=True,
            blocks=chain,
            prompt_blocks=len(blocks),
            session=session,
            token_ids=list(prompt),
            tenant=digest_of(salt),
        )
        for block in reversed(chain):
            self.held.pop(block, None)
            self.held[block] = None
        while len(self.held) > self.room:
            self.held.popitem(last=False)
        counted = Counter(self.plugin.misses.tokens)
        counted.subtract(before)
        return +counted


def words(number: int, start: int = 0) -> list[int]:
    return list(range(start, start + number))


def test_every_token_of_a_random_trace_is_counted_as_a_memory_of_everything_would() -> None:
    engine, rng = Engine(40), random.Random(5)
    ever: set[BlockHash] = set()
    last_use: dict[BlockHash, float] = {}
    chats: list[list[int]] = [[] for _ in range(6)]
    expected: Counter[str] = Counter()
    unused: Counter[str] = Counter()
    for turn in range(400):
        chat = rng.choice(chats)
        if len(chat) > 60:
            chat.clear()
        chat.extend(rng.randrange(1_000_000) for _ in range(rng.randrange(1, 14)))
        prompt = list(chat)
        chat.extend(rng.randrange(1_000_000) for _ in range(rng.randrange(12)))
        blocks = hashed(prompt)
        full = (len(prompt) - 1) // BLOCK
        cached = 0
        while cached < full and blocks[cached] in engine.held:
            cached += 1
        for block in blocks[cached:full]:
            expected["evicted" if block in ever else "new"] += BLOCK
            if block in ever:
                age = engine.now + 1.0 - last_use[block]
                unused[next(str(bound) for bound in (10, 60, 300, 1200) if age < bound)] += BLOCK
        expected["cached"] += cached * BLOCK
        expected["short"] += len(prompt) - full * BLOCK
        engine.serve(prompt, chat[len(prompt) :])
        for block in hashed(chat):
            ever.add(block)
            last_use[block] = engine.now
        assert sum(engine.plugin.misses.tokens.values()) == sum(expected.values()), turn
    assert +Counter(engine.plugin.misses.tokens) == expected
    assert min(expected[source] for source in ("cached", "evicted", "new", "short")) > 200
    assert +Counter(engine.plugin.misses.unused) == unused
    assert engine.plugin.failures == 0


def test_a_changed_history_and_a_reply_that_was_not_sent_back_are_told_apart_by_session() -> None:
    engine = Engine(1000)
    assert engine.serve(words(40), words(20, 500), session="s") == {"new": 36, "short": 4}
    # The reply comes back without its first tokens: reasoning that the chat template leaves out.
    assert engine.serve([*words(40), *words(15, 505), *words(9, 900)], session="s") == {
        "cached": 40,
        "reply_changed": 20,
        "short": 4,
    }
    assert engine.serve([*words(8), 77, *words(31, 9)], session="s") == {"cached": 8, "changed": 28, "short": 4}
    assert engine.serve([*words(8), 78, *words(31, 9)], session="another") == {"cached": 8, "new": 28, "short": 4}
    assert +Counter(engine.plugin.misses.changed) == {("edited", "0"): 28}


def test_the_same_text_under_another_salt_is_not_new_and_each_salt_is_a_tenant() -> None:
    engine = Engine(1000)
    assert engine.serve(words(9), salt="a") == {"new": 8, "short": 1}
    assert engine.serve(words(9), salt="b") == {"other_salt": 8, "short": 1}
    assert engine.serve(words(9), salt="b") == {"cached": 8, "short": 1}
    assert engine.serve(words(9, 50), salt="b") == {"new": 8, "short": 1}
    for number in range(2 * MOST_TENANTS):
        engine.serve(words(9), salt=f"tenant {number}")
    tenants = engine.plugin.misses.tenants
    assert len(tenants) == MOST_TENANTS + 1
    assert sum(sum(tenant.tokens.values()) for tenant in tenants.values()) == 9 * (4 + 2 * MOST_TENANTS)
    assert tenants[OTHERS].tokens["other_salt"] == 8 * (2 * MOST_TENANTS + 2 - MOST_TENANTS)
    assert not any("tenant" in name for name in tenants)
    assert all(tenant.sampled for tenant in tenants.values())


def test_hits_of_ghost_caches_are_known_by_tenant() -> None:
    engine = Engine(1000)
    for number in range(100):
        engine.serve(words(41), salt="returns")
        engine.serve(words(41, 100 * number), salt="floods")
        engine.serve(words(41), salt="")
    tenants, ghosts = engine.plugin.misses.tenants, engine.plugin.policy.ghosts
    assert tenants.keys() == {digest_of("returns"), digest_of("floods")}
    returns, floods = (tenants[digest_of(salt)].sampled for salt in ("returns", "floods"))
    for rule in (*RULES, CHOSEN):
        assert returns[rule] == 99 / 100 * returns["asked"] > 0, rule
        assert floods[rule] == 0 < floods["asked"], rule
    unsalted = 100 * sum(sampled(block, ghosts.every) for block in hashed(words(41)))
    assert returns["asked"] + floods["asked"] + unsalted == ghosts.asked


def test_blocks_that_another_engine_has_used_are_not_new() -> None:
    store: MemoryStore = MemoryStore()
    record(store, A, hashed(words(40)), 10.0)
    engine = Engine(1000, store)
    assert engine.serve(words(40)) == {"other_engine": 36, "short": 4}


@pytest.mark.parametrize(
    ("between", "had"), [(100, {"2", "4", "8"}), (220, {"4", "8"}), (500, {"8"}), (50, {"1", "2", "4", "8"})]
)
def test_it_is_known_which_sizes_of_the_cache_would_have_had_a_prompt(between: int, had: set[str]) -> None:
    engine = Engine(80)
    engine.serve(words(61))
    for number in range(between):
        engine.serve(words(5, 1000 + 10 * number))
    before = dict(engine.plugin.misses.sizes.missed)
    assert engine.serve(words(61)) == ({"cached": 60, "short": 1} if "1" in had else {"evicted": 60, "short": 1})
    misses = engine.plugin.misses
    assert {size: blocks - before[size] for size, blocks in misses.sizes.missed.items()} == {
        "asked": 15,
        **{size: 0 if size in had else 15 for size in ("0.5", "1", "2", "4", "8")},
    }
    if "1" not in had:
        assert misses.followed["all"] == 15 >= max(misses.followed[rule] for rule in RULES)


def test_a_request_that_was_never_served_is_not_counted() -> None:
    engine = Engine(100)
    engine.plugin.started("a", hashed(words(40)))
    engine.plugin.finished("a", completed=False, blocks=(), prompt_blocks=0, token_ids=words(40))
    engine.plugin.finished("b", completed=True, blocks=hashed(words(40)), prompt_blocks=10, token_ids=words(40))
    assert not any(engine.plugin.misses.tokens.values())
    assert set(engine.plugin.misses.tokens) == set(SOURCES)


def text(rng: random.Random, number: int) -> list[int]:
    return [rng.randrange(50_000) for _ in range(number)]


Change = Callable[[random.Random, int, list[int]], list[int]]


def chats(
    change: Change, *, session: bool, seed: int = 0, conversations: int = 12, turns: int = 4
) -> tuple[Engine, Counter[str], int]:
    """Serve conversations with a system prompt of 600 tokens, changed in every request.

    Returns:
        The engine, its counts, and the tokens of prompts that the unchanged conversations would have found cached.
    """
    rng = random.Random(seed)
    engine, plain = Engine(100_000), Engine(100_000)
    system = text(rng, 600)
    histories = [[*system, *text(rng, 200)] for _ in range(conversations)]
    for turn in range(turns):
        for number, history in enumerate(histories):
            reply = text(rng, 200)
            changed = change(rng, turn * conversations + number, history)
            engine.serve(changed, reply, session=f"s{number}" if session else None)
            plain.serve(history, reply)
            history += [*reply, *text(rng, 200)]
    return engine, Counter(engine.plugin.misses.tokens), plain.plugin.misses.tokens["cached"]


def stamped(rng: random.Random, number: int, prompt: list[int]) -> list[int]:
    return [*prompt[:9], *text(rng, 7), *prompt[9:]]


@pytest.mark.parametrize("session", [False, True])
def test_the_cost_of_a_time_stamp_is_counted_with_and_without_sessions(session: bool) -> None:
    engine, counted, could = chats(stamped, session=session)
    lost = could - counted["cached"]
    assert lost > 50_000
    # Without a session a reply counts once an earlier prompt had it: 36 replies of 200 tokens did not.
    assert counted["changed"] == pytest.approx(lost if session else lost - 36 * 200, rel=0.03)
    assert {change for (change, _), tokens in engine.plugin.misses.changed.items() if tokens} == {"value"}
    assert sum(engine.plugin.misses.changed.values()) == counted["changed"]


@pytest.mark.parametrize("session", [None, "s"])
@pytest.mark.parametrize("change", ["inserted", "order"])
def test_tools_that_are_added_or_in_another_order_are_told_apart(change: str, session: str | None) -> None:
    engine, rng = Engine(100_000), random.Random(2)
    tools, history = [text(rng, 300) for _ in range(4)], text(rng, 500)
    other = [tools[2], tools[0], tools[3], tools[1]] if change == "order" else [tools[0], text(rng, 300), *tools[1:]]
    engine.serve([token for tool in tools for token in tool] + history, session=session)
    engine.serve([token for tool in other for token in tool] + history + text(rng, 60), session=session)
    misses = engine.plugin.misses
    assert {each for (each, _), tokens in misses.changed.items() if tokens} == {change}
    known = 1_700 if change == "order" else 1_400
    assert misses.tokens["changed"] == pytest.approx(known, abs=200 + 300 * (session is not None))


@pytest.mark.parametrize("session", [False, True])
def test_conversations_that_only_append_have_no_changed_tokens(session: bool) -> None:
    engine, counted, could = chats(lambda rng, number, prompt: prompt, session=session)
    assert counted["changed"] == counted["reply_changed"] == 0
    assert counted["cached"] == could > 40_000
    assert not any(engine.plugin.misses.changed.values())


@pytest.mark.parametrize("session", [None, "s"])
def test_a_history_without_its_oldest_messages_is_truncated(session: str | None) -> None:
    engine, rng = Engine(100_000), random.Random(1)
    system, history = text(rng, 40), text(rng, 2_000)
    engine.serve([*system, *history], session=session)
    engine.serve([*system, *history[600:], *text(rng, 80)], session=session)
    assert {change for (change, _), tokens in engine.plugin.misses.changed.items() if tokens} == {"truncated"}
    assert engine.plugin.misses.tokens["changed"] == pytest.approx(1_400, abs=120)


def test_the_same_tokens_with_another_image_are_told_apart_from_new_text() -> None:
    engine, rng = Engine(1000), random.Random(1)
    prompt = text(rng, 200)
    engine.serve(prompt)
    engine.plugin.started("x", blocks := [*hashed(prompt[:40]), *hashed(prompt, "other image")[10:]])
    engine.plugin.served("x", 40)
    engine.plugin.finished("x", completed=True, blocks=blocks, prompt_blocks=50, token_ids=prompt)
    assert engine.plugin.misses.changed["media", "0"] == 156


def test_text_that_an_agent_reads_again_is_new() -> None:
    engine, rng = Engine(100_000), random.Random(1)
    system, file = text(rng, 200), text(rng, 600)
    engine.serve([*system, *text(rng, 50), *file])
    # In another conversation, behind other text, and in one conversation twice.
    first = [*system, *text(rng, 400), *file, *text(rng, 20)]
    engine.serve(first)
    engine.serve([*first, *text(rng, 20), *file])
    assert engine.plugin.misses.tokens["changed"] == 0


def test_blocks_that_only_the_history_of_uses_has_forgotten_are_not_changed() -> None:
    engine, rng = Engine(20), random.Random(1)
    prompt = text(rng, 200)
    engine.serve(prompt)
    for _ in range(40):
        engine.serve(text(rng, 100))
    assert engine.serve(prompt) == {"new": 196, "short": 4}


def test_each_request_is_logged_with_its_sources_if_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "eviction_client.observability.miss_log")
    prompts = [list(range(100 * number, 100 * number + 41)) for number in range(2)]
    silent, engine = Engine(12), Engine(12, settings=ClientSettings(log_misses=True))
    expected = []
    for prompt in (prompts[0], prompts[0], prompts[1], [*prompts[1][:21], *range(900, 920)], prompts[0]):
        silent.serve(prompt)
        expected.append({source: tokens for source, tokens in engine.serve(prompt).items() if tokens})
    lines = [record.getMessage() for record in caplog.records if record.name.endswith("miss_log")]
    heads, figures = zip(*map(_parts, lines), strict=True)
    assert list(figures) == expected and {source for one in expected for source in one} >= {"cached", "evicted", "new", "short"}
    assert list(heads) == [f'learned prefix cache: prompt tokens of "{number}"' for number in range(1, 6)]
    log_misses("x\n" * 300, {"cached": 0, "new": 5})
    assert len(caplog.records[-1].getMessage()) < 700 and "\n" not in caplog.records[-1].getMessage()


def _parts(line: str) -> tuple[str, dict[str, int]]:
    head, _, figures = line.partition(": {")
    return head, json.loads("{" + figures)
