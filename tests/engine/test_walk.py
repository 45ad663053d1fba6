"""The architecture page's walk from a free to an eviction, through vLLM's scheduler. The others are in tests/integration."""

import re
from typing import Final

from eviction_client.background import AtOnce, BackgroundThread, StartBackground
from eviction_client.transport.scripted_predictor import CONTINUES
from testing.bare_scheduler import Engine
from tests.walks import Walk, compare, following, paths_of, section

WAITS: Final = dict.fromkeys(
    (
        *("eviction_client.engines.vllm.waiting", "eviction_client.engines.vllm.waiting_prefixes"),
        *("eviction_client.schedule.*", "eviction_client.engines.vllm_cpu.*", "eviction_client.engines.vllm.scheduler"),
    ),
    "concerns waiting requests and tiers, of which there are none",
)
OTHERS: Final = dict.fromkeys(
    (f"eviction_client.policy.rules.{name}" for name in ("lru", "mq", "ttl", "wa", "lpc")), "another rule"
)
COUNTED: Final = {"UnderLru": "counts", "SidecarPrediction": "comes from a double of the sidecar"}
DOUBLE: Final = {"eviction_client.transport.scripted_predictor": "stands for the sidecar"}


def served(background: StartBackground) -> Engine:
    """Return an engine with a full cache, whose blocks were all used."""
    engine = Engine(60, script=lambda _: CONTINUES, background=background, rule="value")
    for number in range(8):
        serve(engine, number)
    return engine


def serve(engine: Engine, number: int) -> None:
    engine.add(f"request {number}", [6 + (7 * number + place) % 250 for place in range(160)], 20)
    while not engine.step():
        pass


def test_a_freed_block_is_evicted_as_the_page_shows() -> None:
    walk = Walk({**WAITS, **OTHERS, **DOUBLE}, COUNTED)
    engine = served(AtOnce)
    with following(walk):
        walk.begin()
        before = len(engine.outcome.evicted)
        for number in range(8):
            if number == 4:
                engine.now += 61  # a fit is due
            serve(engine, number)
        walk.end()
    assert len(engine.outcome.evicted) > before
    assert not compare(2, walk)


def test_the_engine_waits_for_the_files_that_the_page_names() -> None:
    walk = Walk({**WAITS, **OTHERS, **DOUBLE}, COUNTED)
    engine = served(BackgroundThread)
    with following(walk):  # not the background, which started before
        walk.begin()
        for number in range(8):
            serve(engine, number)
        walk.end()
    ((stated, names),) = re.findall(r"^The engine waits for \*\*(\d+)\*\* of these files: (.*)$", section(2), re.MULTILINE)
    assert paths_of(names) == walk.files()
    assert int(stated) == len(walk.files())
    engine.scheduler.shutdown()
