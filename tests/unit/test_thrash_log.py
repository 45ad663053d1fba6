"""The log of a thrashing cache: one line when it begins, and never many."""

import logging
import random

import pytest

from eviction_client.observability.thrash_log import EVERY_S, OVER, ThrashLog
from eviction_client.schedule.warm_first import REPEATED
from tests.unit.test_misses import BLOCK, Engine, words


@pytest.fixture(autouse=True)
def at_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "eviction_client.observability.thrash_log")


def test_the_beginning_is_logged_once_and_again_after_an_end(caplog: pytest.LogCaptureFixture) -> None:
    log = ThrashLog()
    for second, share in enumerate([0.0, REPEATED - 0.01, 0.62, 0.9, REPEATED - 0.1, OVER, 0.8]):
        log.update(share, float(second))
    assert caplog.messages == [
        "learned prefix cache: 62% of the latest prefill computed what was evicted: the contexts in use exceed the cache. "
        "A larger cache or fewer requests at a time helps; `lpc report` says how requests wait"
    ]
    log.update(0.0, EVERY_S)
    log.update(0.7, EVERY_S + 2.0)
    assert len(caplog.messages) == 2


def test_a_share_that_jumps_is_at_most_one_line_in_its_time(caplog: pytest.LogCaptureFixture) -> None:
    log, rng = ThrashLog(), random.Random(1)
    for second in range(0, int(10 * EVERY_S), 3):
        log.update(rng.random(), float(second))
    assert 9 <= len(caplog.messages) <= 10


def test_the_plug_in_says_it_of_a_cache_that_is_too_small(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(blocks=20)
    prompts = [words(12 * BLOCK, 1000 * user) for user in range(6)]
    for _ in range(8):
        for prompt in prompts:
            engine.serve(prompt)
    assert [message for message in caplog.messages if "exceed the cache" in message]
