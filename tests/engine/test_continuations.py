"""In vLLM's real block pool no block is evicted while what continues it stays cached, whatever the rule, floor or hint."""

import itertools
import random
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from eviction_client.background import AtOnce
from eviction_client.policy.rules import AUTO, RULES
from eviction_client.tenants import digest_of
from testing.bare_scheduler import BLOCK, Engine

pytestmark = pytest.mark.supports(engine="vLLM", tier="GPU pool", what="a block is evicted after what continues it")
GROUP = 4
"""Bytes of the number of the KV-cache group behind a block's hash."""
FULL = bytes(GROUP)


class Watched:
    """Counts the blocks of the first group that a pool evicts while a block that continues them is cached."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.evicted = self.early = 0
        self._continue: dict[bytes, set[bytes]] = {}
        cached = engine.pool.cached_block_hash_to_block.get_one_block

        def watch(name: Any) -> None:
            if name.endswith(FULL) and cached(name) is None:
                self.evicted += 1
                self.early += any(cached(other) is not None for other in self._continue.get(name, ()))

        engine.on_evicted.append(watch)

    def look(self, request: Any) -> None:
        """Note the chain of a request's blocks."""
        names = [bytes(name) + FULL for name in request.block_hashes]
        for name, following in itertools.pairwise(names):
            self._continue.setdefault(name, set()).add(following)


def tree(rng: random.Random) -> list[int]:
    """Return a prompt of a random path through a tree of texts: system prompts, then documents, then questions."""
    tokens: list[int] = []
    for widths in ((3, 40), (4, 90), (12, 60)):
        choice = rng.randrange(widths[0])
        text = random.Random(str((choice, len(tokens), tokens[-1:])))
        tokens += [6 + text.randrange(250) for _ in range(widths[1] + 16 * (choice % 3))]
        if rng.random() < 0.2:
            break
    return tokens


def served(
    engine: Engine, watched: Watched, seed: int, requests: int, *, hints: bool = False, salts: tuple[str, ...] = ()
) -> None:
    """Serve requests on shared prefixes, some after each other in a conversation, some aborted, several at once."""
    rng = random.Random(seed)
    known: list[list[int]] = []
    alive: dict[str, Any] = {}
    number = 0
    while number < requests or engine.scheduler.has_unfinished_requests() or engine.in_flight:
        while number < requests and len(alive) < 6 and rng.random() < 0.6:
            tokens = tree(rng)
            if known and rng.random() < 0.5:
                tokens = [*rng.choice(known)[: rng.choice((40, 400))], *tokens[-rng.randrange(20, 60) :]]
            arguments: dict[str, Any] = {"lpc_session": f"s{rng.randrange(20)}"}
            if hints and rng.random() < 0.3:
                arguments |= rng.choice(({"lpc_retain_seconds": rng.choice((2.0, 60.0, 600.0))}, {"lpc_done": True}))
            salt = rng.choice(salts) if salts else None
            name = f"r{number}"
            alive[name] = engine.add(name, tokens, rng.randrange(1, 40), arguments, salt)
            number += 1
        if rng.random() < 0.02 and alive:
            engine.scheduler.finish_requests(rng.choice(list(alive)), RequestStatus.FINISHED_ABORTED)
        engine.step()
        engine.now += rng.choice((0.0, 0.0, 0.3, 0.3, 2.0))
        for name in [name for name in alive if name not in engine.scheduler.requests]:
            request = alive.pop(name)
            watched.look(request)
            known.append(list(request.all_token_ids))
        for request in alive.values():
            watched.look(request)
    assert engine.scheduler.lpc.plugin.failures == 0


@pytest.mark.parametrize("rule", [AUTO, *RULES])
def test_under_every_rule_no_block_is_evicted_before_what_continues_it(rule: str, asynchronous: bool) -> None:
    engine = Engine(60, rule=rule, asynchronous=asynchronous, background=AtOnce)
    watched = Watched(engine)
    served(engine, watched, 1, 150)
    assert watched.evicted > 300 and watched.early == 0


@pytest.mark.parametrize("rule", ["lru", "mq", "value"])
@pytest.mark.parametrize("share", [0.2, 0.9])
def test_hints_do_not_evict_a_block_before_what_continues_it(rule: str, share: float, asynchronous: bool) -> None:
    engine = Engine(60, rule=rule, asynchronous=asynchronous, background=AtOnce, hints_share=share)
    watched = Watched(engine)
    served(engine, watched, 3, 200, hints=True)
    plugin = engine.scheduler.lpc.plugin
    assert watched.evicted > 300 and watched.early == 0
    assert plugin.hinted["retain"] > 10 and plugin.hinted["done"] > 10 and plugin.retained.granted
    assert plugin.retained.held <= plugin.retained.limit


@pytest.mark.parametrize("rule", ["lru", "ttl", "value"])
def test_floors_do_not_evict_a_block_before_what_continues_it(rule: str, asynchronous: bool) -> None:
    floors = {digest_of("a"): 0.3, digest_of("b"): 0.2}
    engine = Engine(80, rule=rule, asynchronous=asynchronous, background=AtOnce, tenant_floors=floors, hints_share=0.3)
    watched = Watched(engine)
    served(engine, watched, 5, 200, hints=True, salts=("a", "b", "c"))
    assert watched.evicted > 300 and watched.early == 0


def test_a_hybrid_models_full_attention_keeps_what_is_continued(asynchronous: bool) -> None:
    engine = Engine(120, rule="value", asynchronous=asynchronous, background=AtOnce, window=4 * BLOCK, hints_share=0.3)
    watched = Watched(engine)
    served(engine, watched, 7, 200, hints=True)
    assert watched.evicted > 300 and watched.early == 0
