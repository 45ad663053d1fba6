"""One side of benchmarks `engine --trace` and `tiers`: real vLLM with a model serves the requests of a trace.

A reply is one token, as in an engine that only prefills. Time is virtual: requests arrive by the trace; a step takes STEP_S.
The sidecar reads the same clock, which stops during calls, so that answers do not depend on the machine's load. The engine gets
only BLOCK tokens of each block of the trace: more would take hours on a CPU.
"""

import hashlib
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from vllm import SamplingParams
from vllm.inputs import TokensPrompt

from benchmarks.trace_replay import Replay, number_of
from benchmarks.virtual_clock import VirtualClock
from eviction_client.background import AtOnce
from eviction_client.settings import ClientSettings
from eviction_client.transport.predictor import Predictor
from testing.tiny_engine import TinyEngine

STEP_S: Final = 0.05
BATCH_TOKENS: Final = 8192
"""Most tokens that a step computes: those of the tiny model's longest prompt."""
TOGETHER: Final = 64
"""Requests that run at a time."""


def serve(
    model: Path,
    replay: Replay,
    blocks: int,
    clock: VirtualClock,
    *,
    count_from: float,
    predictor: Predictor | None = None,
    connector: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Serve a trace on real vLLM; return the figures, and digests of all tokens and evictions in order.

    Args:
        blocks: capacity of the engine.
        count_from: second from which on arriving requests count.
        predictor: of our scheduler; None: stock vLLM.
        connector: vLLM's ``--kv-transfer-config`` for a tier below the blocks (`cpu_tier.connector`).
        settings: of the plug-in.
    """
    tier: dict[str, Any] = {"kv_transfer_config": connector} if connector else {}
    tiny = clocked_engine(
        *(model, replay, blocks, clock, predictor, settings),
        max_model_len=replay.longest + 1,
        max_num_seqs=TOGETHER,
        max_num_batched_tokens=BATCH_TOKENS,
        **tier,
    )
    engine = tiny.engine
    outputs: dict[int, list[int]] = {}
    counts = {"cached_tokens": 0, "prompt_tokens": 0, "cached_tokens_in_all": 0, "prompt_tokens_in_all": 0}
    start = now = clock()
    upcoming = iter(enumerate(replay.requests))
    following = next(upcoming, None)
    started = time.perf_counter()
    while (busy := engine.has_unfinished_requests()) or following is not None:
        if following is not None and not busy:
            now = max(now, start + following[1].arrival)
        clock.set(now)
        while following is not None and start + following[1].arrival <= now:
            number, request = following
            admit(engine, number, request.conversation, replay.prompt(number), reply=1)
            following = next(upcoming, None)
        now += STEP_S
        clock.set(now)
        for output in engine.step():
            if not output.finished:
                continue
            number = number_of(output.request_id)
            outputs[number] = list(output.outputs[0].token_ids)
            cached, prompt = output.num_cached_tokens or 0, len(output.prompt_token_ids)
            counts["cached_tokens_in_all"] += cached
            counts["prompt_tokens_in_all"] += prompt
            if replay.requests[number].arrival >= count_from:
                counts["cached_tokens"] += cached
                counts["prompt_tokens"] += prompt
    figures: dict[str, Any] = {
        **counts,
        "requests": len(outputs),
        "evictions": len(tiny.evicted),
        "tokens_sha256": hashlib.sha256(json.dumps(sorted(outputs.items())).encode()).hexdigest(),
        "evictions_sha256": _digest(tiny.evicted),
        "tier_evictions": len(tiny.tier_evicted),
        "tier_evictions_sha256": _digest(tiny.tier_evicted),
        "seconds": round(time.perf_counter() - started, 1),
    }
    if predictor is not None:
        plugin = tiny.scheduler.lpc.plugin
        curves = plugin.predictor.reuse_curves
        figures |= {
            "counters": tiny.counters(),
            "answered_share": plugin.ended["prediction"] / max(len(outputs), 1),
            "predicted_groups": 0 if curves is None else len(curves.hazards),
        }
    tiny.close()
    return figures


def clocked_engine(
    model: Path,
    replay: Replay,
    blocks: int,
    clock: VirtualClock,
    predictor: Predictor | None,
    settings: dict[str, Any],
    **options: Any,
) -> TinyEngine:
    """Return real vLLM with this many blocks for a trace's requests, on a virtual clock.

    Args:
        predictor: of our scheduler; None: stock vLLM.
        settings: of the plug-in.
        options: of vLLM.
    """
    attributes = {
        "settings": ClientSettings(**settings),
        "clock": staticmethod(clock),
        "background": AtOnce,
        "open_predictor": staticmethod(lambda *_: predictor),
    }
    # vLLM reserves one block.
    tiny = TinyEngine(model, blocks + 1, learned=attributes if predictor is not None else None, **options)
    if predictor is not None:
        # Classes depend on new tokens, of which the engine has BLOCK per block of the trace.
        tiny.scheduler.lpc.plugin.policy.block_tokens = replay.block_tokens
    return tiny


def admit(engine: Any, number: int, conversation: str, prompt: list[int], *, reply: int) -> None:
    """Add a request with a reply of exactly this many tokens."""
    parameters = SamplingParams(
        temperature=0, max_tokens=reply, ignore_eos=True, detokenize=False, extra_args={"session_id": conversation}
    )
    engine.add_request(str(number), TokensPrompt(prompt_token_ids=prompt), parameters)


def _digest(numbers: Iterable[int]) -> str:
    return hashlib.sha256(b"".join(number.to_bytes(4, "little") for number in numbers)).hexdigest()
