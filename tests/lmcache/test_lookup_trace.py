"""A real node's token trace, through a collector's file: `lpc simulate` reads the tokens. Runs before its stack is killed."""

from pathlib import Path

import pytest

from lpc_apps.logs.log import open_log
from lpc_apps.logs.traces import Trace
from tests.eventually import until
from tests.lmcache.conftest import Stack
from tests.lmcache.test_mp_mode import ids, text

pytestmark = pytest.mark.supports(engine="LMCache", tier="MP mode", what="token trace of the node")


def trace(stack: Stack) -> Trace:
    with open_log(stack.spans) as log:
        assert log.format == "lmcache"
        return log.trace()


def test_a_nodes_token_trace_has_the_tokens_that_the_engine_computed(stack: Stack) -> None:
    if stack.spans == Path():
        pytest.skip("this LMCache has no token trace")
    short, first = text(90, 200), text(91, 1400)
    prompts = [first, first + text(92, 300), text(93, 900), short]
    for prompt in prompts:
        stack.engine.complete(prompt)
    lengths = [len(ids(stack, prompt)) for prompt in prompts]

    def of_ours() -> list[int]:
        return [at for at, request in enumerate(trace(stack).requests) if request.input_tokens in lengths]

    until(lambda: stack.spans.exists() and stack.spans.read_text().endswith("\n") and len(of_ours()) == 3)
    read = trace(stack)
    one, two, three = (read.requests[at] for at in of_ours())
    assert [one.input_tokens, two.input_tokens, three.input_tokens] == lengths[:3], "but not the one shorter than a chunk"
    assert one.conversation == two.conversation != three.conversation
    assert two.blocks[: len(one.blocks)] == one.blocks
    assert not {*three.blocks} & {*two.blocks}
