"""The plug-in's counts of prompt tokens by source, in vLLM's real scheduler."""

import pytest

from benchmarks.bare_scheduler import BLOCK, Engine, conversations
from eviction_client.background import AtOnce
from eviction_client.engines.vllm.metrics import values_of

pytestmark = pytest.mark.supports(engine="vLLM", tier="GPU pool", what="why prompt tokens were not cached")


@pytest.mark.parametrize(("asynchronous", "window"), [(False, None), (True, 64)], ids=["sync, full", "async, hybrid"])
def test_each_prompt_token_is_counted_once_and_vllms_hits_as_cached(asynchronous: bool, window: int | None) -> None:
    made = conversations(3, 200)
    engine = Engine(260 if window else 130, asynchronous=asynchronous, window=window, background=AtOnce)
    ours = engine.run(made)
    hooks = engine.scheduler.lpc
    tokens = {source: count for (name, source), count in values_of(hooks).items() if name == "lpc_prompt_tokens"}
    assert tokens["cached"] == ours.cached
    assert sum(tokens.values()) == ours.prompt
    assert tokens["evicted"] > 50 * BLOCK and tokens["new"] > 50 * BLOCK
    assert tokens["other_salt"] == tokens["changed"] == tokens["other_engine"] == 0
    assert hooks.plugin.failures == 0
