"""What benchmark `engine --trace` makes of a trace, and the clock that its processes share."""

from pathlib import Path

from benchmarks.engine_trace import QUICK_REQUESTS, Opened, coarser
from benchmarks.tiers import POOL
from benchmarks.virtual_clock import EPOCH_S, VirtualClock
from lpc.logs.traces import Trace, TracedRequest


def request(tokens: int, *blocks: int) -> TracedRequest:
    return TracedRequest(0.0, tokens, 1, blocks, "c", 1, "")


def test_a_trace_whose_prompts_fit_stays_as_it_is() -> None:
    trace = Trace("t", 16, [request(48, 0, 1, 2)])
    assert coarser(trace, 3) is trace


def test_where_prompts_are_too_long_several_blocks_become_one() -> None:
    prompts = [request(16 * 7 + 5, *range(8)), request(16 * 7, *range(6), 9), request(16 * 2, 0, 1), request(5, 20)]
    trace = coarser(Trace("t", 16, prompts), 4)
    assert trace.block_tokens == 32
    assert [r.blocks for r in trace.requests] == [(1, 3, 5, 7), (1, 3, 5, 9), (1,), (20,)]
    assert [r.input_tokens for r in trace.requests] == [r.input_tokens for r in prompts]


def test_prompts_share_the_coarser_blocks_that_they_share_wholly() -> None:
    fork = coarser(Trace("t", 16, [request(64, 0, 1, 2, 3), request(64, 0, 1, 2, 4), request(64, 0, 5, 6, 7)]), 2)
    first, second, third = (set(r.blocks) for r in fork.requests)
    assert first & second == {1}
    assert not first & third


def test_all_who_map_a_virtual_clock_see_the_time_that_one_sets(tmp_path: Path) -> None:
    engine = VirtualClock(tmp_path / "clock")
    sidecar = VirtualClock(tmp_path / "clock")
    assert engine() == sidecar() == EPOCH_S
    engine.set(EPOCH_S + 0.25)
    assert sidecar() == EPOCH_S + 0.25
    assert VirtualClock(tmp_path / "clock")() == EPOCH_S + 0.25


def test_without_a_log_there_is_one_that_fits_the_smallest_pool() -> None:
    opened = Opened.read(None, "mooncake", POOL, None)
    assert len(opened.trace.requests) > QUICK_REQUESTS
    conversations = {request.conversation for request in opened.trace.requests}
    assert len(conversations) < 0.7 * len(opened.trace.requests)
