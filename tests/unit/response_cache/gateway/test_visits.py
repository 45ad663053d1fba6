"""The gateway's router `cost` with its queue follows each request that an engine gets."""

import pytest

from lpc_apps.routing.prompt import Prompt, prompt_of
from lpc_apps.routing.router import Router
from response_cache.gateway.choice import ByCost, ByHash, Route
from response_cache.gateway.engines import Engines
from response_cache.gateway.metrics import Metrics
from response_cache.gateway.queue import Queue

URLS = ("http://a:1", "http://b:1")


class Gateway:
    def __init__(self) -> None:
        metrics = Metrics()
        engines = Engines(URLS, metrics)
        self.router = Router(URLS)
        self.queue = Queue(engines.all, self.router, metrics, tokens=100_000)
        self.choice = ByCost(engines, self.router, self.queue, metrics)

    async def ask(self, prompt: Prompt, *, streamed: bool, answered: bool = True) -> int:
        """Return the number of the engine that gets a request."""
        route = Route(b"key", prompt, streamed)
        engine = self.choice.ranked(route)[0]
        with self.choice.visiting(engine, route) as visit:
            await visit.turn()
            if answered:
                visit.begun()
                visit.part(b'{"usage": {"prompt_tokens": 1000, "prompt_tokens_details": {"cached_tokens": 0}}}')
        return URLS.index(engine.url)


@pytest.mark.parametrize("streamed", [True, False])
async def test_an_engine_is_believed_to_hold_what_it_was_sent_also_if_that_was_not_held(streamed: bool) -> None:
    gateway = Gateway()
    prompt = prompt_of(b"", [(b"word " * 1000, False)], b"name")
    engine = await gateway.ask(prompt, streamed=streamed)
    match = gateway.router.known.match(prompt)
    assert gateway.router.engines[engine].holds(match.conversation)
    assert gateway.router.missing(match, engine) < gateway.router.missing(match, 1 - engine)


@pytest.mark.parametrize("streamed", [True, False])
async def test_nothing_is_kept_of_requests_that_have_ended_without_an_answer(streamed: bool) -> None:
    gateway = Gateway()
    for number in range(20):
        await gateway.ask(prompt_of(b"", [(b"word %d" % number, False)]), streamed=streamed, answered=False)
    held = [held for held in gateway.queue._held if held is not None]
    assert len(held) == 2
    assert [len(one._believed) for one in held] == [0, 0]
    assert sum(len(one._handed) for one in held) <= 2


def test_following_requests_changes_no_order_of_the_hash() -> None:
    metrics = Metrics()
    engines = Engines([f"http://engine-{number}:1" for number in range(5)], metrics)
    choice = ByHash(engines, Router([engine.url for engine in engines.all]), None, metrics)
    for number in range(100):
        key = b"%d" % (number % 30)
        route = Route(key, prompt_of(b"", [(b"word %d" % number * 500, False)], key), stays=number % 3 == 0)
        expected = engines.ranked(key)
        assert choice.ranked(route) == expected
        with choice.visiting(expected[number % 2], route) as visit:
            visit.begun()
