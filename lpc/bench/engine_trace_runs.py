"""One run of `lpc bench engine --trace`, where vLLM is installed: `python -m lpc.bench.engine_trace_runs`.

Real vLLM serves the requests of a trace, model and all. Each block of the trace is one block of the engine, whose tokens are
drawn by the block's content id; a partial last block keeps its share. A reply is one token, as in an engine that only prefills.

Time is virtual: a request arrives when the trace says, a step takes STEP_S. The sidecar reads the same clock, and the clock
stands while it is asked, so that answers do not depend on how busy the machine is.

The sidecar is told what it would be told of the real traffic, but its text: the conversation's name (as `session_id`), and the
prompt's token ids at the length that the trace has, with the markup of the earlier turns, from which it knows their number and
the last reply's length. The engine holds only BLOCK tokens of each block because more would cost hours on a CPU.
"""

import argparse
import hashlib
import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Hashable, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
# Two layers of 64 are nothing to share out, and threads that wait for each other at every layer stop where cores are busy.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt

from eviction_client.background import AtOnce
from eviction_client.engines.vllm import LearnedScheduler
from eviction_client.engines.vllm.metrics import values_of
from eviction_client.predictor_client import PredictorClient
from eviction_client.scorer import Predictor
from eviction_client.settings import ClientSettings
from lpc.bench.bare_scheduler import ENDED_S, Told
from lpc.bench.tiny_llama import SPECIAL
from lpc.bench.virtual_clock import VirtualClock

BLOCK: Final = 32
"""Tokens of the engine's blocks: the fewest that vLLM takes on a CPU."""
STEP_S: Final = 0.05
BATCH_TOKENS: Final = 8192
"""Tokens that a step computes at most: of the longest prompt that the tiny model takes."""
TOGETHER: Final = 64
"""Requests that run at a time."""
PRINTABLE: Final = range(len(SPECIAL), len(SPECIAL) + 94)
"""Token ids of the printable ASCII characters in the tiny model's vocabulary: what the sidecar decodes is text."""
USER, ASSISTANT, END = (SPECIAL.index(marker) for marker in ("<|user|>", "<|assistant|>", "<|end|>"))
SHORTEST: Final = 4
"""Tokens of a user turn with its markup, at least."""
SERVED: Final = "tiny"
ANSWER_WITHIN_S: Final = 60.0
"""Real time that the sidecar has for an answer."""


class Request(NamedTuple):
    """One request of the trace, as the other process wrote it (`engine_trace.run`)."""

    arrival: float
    conversation: str
    turn: int
    category: str
    input_tokens: int
    output_tokens: int
    blocks: list[int]


@lru_cache(maxsize=2**18)
def content(block: int) -> tuple[int, ...]:
    """Return the tokens of a block by its content id."""
    return tuple(random.Random(block).choices(PRINTABLE, k=BLOCK))


class Replay:
    """A trace, and what its requests look like to engine and sidecar. ``block_tokens``: of a full block of the trace."""

    def __init__(self, block_tokens: int, requests: Sequence[Request]) -> None:
        self.block_tokens = block_tokens
        self.requests = requests

    @classmethod
    def read(cls, file: Path) -> "Replay":
        """Read what `engine_trace.run` wrote."""
        written = json.loads(file.read_text())
        return cls(written["block_tokens"], [Request(*row) for row in written["requests"]])

    def prompt(self, number: int) -> list[int]:
        """Return the token ids that the engine is given; at least one."""
        request = self.requests[number]
        full, rest = divmod(request.input_tokens, self.block_tokens)
        ids = list(chain.from_iterable(map(content, request.blocks[:full])))
        if rest:
            # Less than a whole block, since vLLM would keep that.
            ids += self._last(number, full)[: min(-(-rest * BLOCK // self.block_tokens), BLOCK - 1)]
        return ids

    def told(self, number: int) -> list[int]:
        """Return the token ids that the sidecar is asked about: the same blocks at their length in the trace, with markup."""
        request = self.requests[number]
        times = -(-self.block_tokens // BLOCK)
        full = request.input_tokens // self.block_tokens
        tokens = [(content(block) * times)[: self.block_tokens] for block in request.blocks[:full]]
        ids = list(chain(*tokens, self._last(number, full) * times))[: request.input_tokens]
        if len(ids) < SHORTEST:
            return ids
        ids[0] = USER
        for prompt, reply in self._before[number]:
            ids[prompt - 2 : prompt] = END, ASSISTANT
            ids[prompt + reply : prompt + reply + 2] = END, USER
        ids[-2:] = END, ASSISTANT
        return ids

    @cached_property
    def _before(self) -> list[list[tuple[int, int]]]:
        """Tokens of prompt and reply of each turn before a request in its conversation, as far as its prompt has room."""
        turns: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        before = []
        for request in self.requests:
            earlier, end = [], 0
            for prompt, reply in turns[request.conversation]:
                if end + SHORTEST <= prompt and prompt + reply + SHORTEST <= request.input_tokens:
                    earlier.append((prompt, reply))
                    end = prompt + reply
            before.append(earlier)
            turns[request.conversation].append((request.input_tokens, request.output_tokens))
        return before

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest prompt that the engine is given."""
        return max(-(-request.input_tokens * BLOCK // self.block_tokens) for request in self.requests)

    @cached_property
    def goes_on(self) -> list[bool]:
        """Whether the conversation of each request has a later one."""
        seen: set[str] = set()
        later = []
        for request in reversed(self.requests):
            later.append(request.conversation in seen)
            seen.add(request.conversation)
        return later[::-1]

    def _last(self, number: int, full: int) -> tuple[int, ...]:
        blocks = self.requests[number].blocks
        return content(blocks[full] if len(blocks) > full else -1 - number)


def number_of(request_id: Hashable) -> int:
    """Return a request's place in the trace; vLLM may append a random part to the id that it was given."""
    return int(str(request_id).partition("-")[0])


class Asked(PredictorClient):
    """The plug-in's own client, which waits for each answer while the virtual clock stands."""

    def __init__(self, address: str, replay: Replay) -> None:
        super().__init__(address, served_model=SERVED, timeout_s=ANSWER_WITHIN_S)
        self._replay = replay
        until = time.monotonic() + ANSWER_WITHIN_S
        while not self.healthy and time.monotonic() < until:
            time.sleep(0.05)

    def ask(self, request_id: Hashable, **known: Any) -> None:
        """As the plug-in asks, and until the answer is there."""
        known["token_ids"] = self._replay.told(number_of(request_id))
        super().ask(request_id, **known)
        until = time.monotonic() + ANSWER_WITHIN_S
        while self.waiting and time.monotonic() < until:
            if not self.healthy:
                raise SystemExit("the sidecar went away")
            time.sleep(0.0002)


def serve(
    model: Path,
    replay: Replay,
    blocks: int,
    clock: VirtualClock,
    *,
    count_from: float,
    predictor: Predictor | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Serve a trace on real vLLM with so many blocks; return figures, and digests of all tokens and evictions in order.

    Args:
        count_from: cached and prompt tokens are counted for requests that arrive from this second on.
        predictor: for our scheduler; None: stock vLLM.
        settings: of the plug-in.
    """
    scheduler_cls = type(
        "Injected",
        (LearnedScheduler,),
        {
            "settings": ClientSettings(**settings),
            "clock": staticmethod(clock),
            "background": AtOnce,
            "open_predictor": staticmethod(lambda *_: predictor),
        },
    )
    llm = LLM(
        str(model),
        enforce_eager=True,
        block_size=BLOCK,
        num_gpu_blocks_override=blocks + 1,  # vLLM keeps one for itself
        max_model_len=replay.longest + 1,
        max_num_seqs=TOGETHER,
        max_num_batched_tokens=BATCH_TOKENS,
        dtype="float32",
        kv_cache_memory_bytes=2**28,
        enable_prefix_caching=True,
        disable_log_stats=True,
        **({"scheduler_cls": scheduler_cls} if predictor is not None else {}),
    )
    engine: Any = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    evictions = Evictions(scheduler.kv_cache_manager.block_pool)
    outputs: dict[int, list[int]] = {}
    counts = {"cached_tokens": 0, "prompt_tokens": 0, "cached_tokens_in_all": 0, "prompt_tokens_in_all": 0}
    start = now = clock()
    upcoming = iter(enumerate(replay.requests))
    following = next(upcoming, None)
    started = time.perf_counter()
    while following is not None or engine.has_unfinished_requests():
        if following is not None and not engine.has_unfinished_requests():
            now = max(now, start + following[1].arrival)
        clock.set(now)
        while following is not None and start + following[1].arrival <= now:
            number, request = following
            _admit(engine, number, request, replay.prompt(number))
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
        "evictions": evictions.count,
        "tokens_sha256": hashlib.sha256(json.dumps(sorted(outputs.items())).encode()).hexdigest(),
        "evictions_sha256": evictions.digest.hexdigest(),
        "seconds": round(time.perf_counter() - started, 1),
    }
    if predictor is not None:
        scorer = scheduler.lpc.scorer
        scorer.settle()
        figures["answered_share"] = scorer.scored["prediction"] / max(len(outputs), 1)
        figures["counters"] = {
            f"{name}:{label}" if label else name: value for (name, label), value in values_of(scheduler.lpc).items()
        }
    engine.engine_core.shutdown()
    return figures


def _admit(engine: Any, number: int, request: Request, prompt: list[int]) -> None:
    parameters = SamplingParams(
        temperature=0,
        max_tokens=1,
        ignore_eos=True,
        detokenize=False,
        extra_args={"session_id": request.conversation},
    )
    engine.add_request(str(number), TokensPrompt(prompt_token_ids=prompt), parameters)


class Evictions:
    """Counts the blocks that a pool evicts, and digests their ids in order."""

    def __init__(self, pool: Any) -> None:
        self.count = 0
        self.digest = hashlib.sha256()
        self._stock = pool._maybe_evict_cached_block
        pool._maybe_evict_cached_block = self._evict

    def _evict(self, block: Any) -> bool:
        if block.block_hash is not None:
            self.count += 1
            self.digest.update(block.block_id.to_bytes(4, "little"))
        result: bool = self._stock(block)
        return result


def predictor_of(side: str, replay: Replay, address: str | None) -> Predictor | None:
    """Return what a side asks: stock nothing, even one who says the same of all, oracle the trace, plugin a sidecar."""
    if side == "stock":
        return None
    if side == "even":
        return Told(lambda _: 0.0)
    if side == "oracle":
        return Told(lambda request: 0.0 if replay.goes_on[number_of(request)] else ENDED_S)
    assert address is not None
    return Asked(address, replay)


def main() -> None:
    """Run one side at one capacity; print its figures as one JSON object on the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--requests", type=Path, required=True)
    parser.add_argument("--clock", type=Path, required=True)
    parser.add_argument("--side", choices=("stock", "even", "oracle", "plugin"), required=True)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--count-from", type=float, required=True)
    parser.add_argument("--predictor")
    options = parser.parse_args()
    replay = Replay.read(options.requests)
    predictor = predictor_of(options.side, replay, options.predictor)
    guard = options.side == "plugin"
    clock = VirtualClock(options.clock)
    figures = serve(
        options.model, replay, options.blocks, clock, count_from=options.count_from, predictor=predictor, guard=guard
    )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
