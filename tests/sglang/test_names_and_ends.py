"""What callers name takes no memory in SGLang's process, and nothing stays of requests that have ended."""

import gc

import pytest

from eviction_client.observability.waiting_stats import KEPT_REQUESTS
from eviction_client.transport.scripted_predictor import ScriptedPredictor
from testing.sglang_cache import Cache
from tests.reachable import names_in, reached
from tests.sglang.test_radix_cache import shows, tokens

MEBIBYTE = 1 << 20


def cache_of(tokens_held: int = 4096) -> Cache:
    return Cache(tokens_held, predictor=ScriptedPredictor(), hints_share=0.5)


@shows("names of a megabyte and of invalid characters")
@pytest.mark.parametrize("name", ["x" * MEBIBYTE, "\ud800", "\x00\x1b[2J", "\U0010ffff" * 9000])
def test_names_take_no_memory_and_raise_nowhere(name: str) -> None:
    cache = cache_of()
    for number in range(12):
        known = {"session_id": name} if number % 2 else {"custom_params": {"session_id": name, "lpc_retain_seconds": name}}
        cache.serve(f"{number}{name}", tokens(number), cache_salt=f"{name}{number % 3}", lora_id=name, **known)
    gc.collect()
    assert cache.plugin.failures == 0
    assert not [path for path, one in reached(cache.tree.lpc) if isinstance(one, str | bytes) and len(one) > 1024]


@shows("nothing stays of requests that have ended: completed, aborted, retracted, dropped while they waited")
def test_nothing_stays_of_requests_that_have_ended() -> None:
    cache = cache_of()
    for number in range(8):
        name = f"request-{number}"
        if number % 4 == 0:
            cache.serve(name, tokens(number))
        elif number % 4 == 1:
            req = cache.arrive(name, tokens(number))
            cache.compute(req, chunk=32)
            cache.end(req, (7, 7), abort=True)
        elif number % 4 == 2:
            req = cache.arrive(name, tokens(number))
            cache.compute(req)
            cache.retract(req)
            cache.match(req)
            cache.compute(req)
            cache.end(req, (7, 7, 7))
        else:
            cache.arrive(name, tokens(number))
    del req  # the last reference
    gc.collect()
    cache.serve("last", tokens(99))
    gc.collect()
    cache.plugin.settle()
    assert cache.plugin.failures == 0
    found = names_in(cache.tree.lpc, lambda one: isinstance(one, str) and one.startswith("request-"))
    assert not found


@shows("a node that all requests wait for remembers only those that wait")
def test_a_node_that_is_always_in_use_remembers_a_bounded_number_of_requests() -> None:
    cache = cache_of()
    cache.serve("first", tokens(1))
    for number in range(5 * KEPT_REQUESTS):
        req = cache.arrive(f"{number}", [*tokens(1), 7, number])
    node = cache.tree.tree_core.node_by_id(req.last_node)
    assert 0 < len(node.lpc_waits) <= 2 * KEPT_REQUESTS
    assert cache.plugin.failures == 0
