"""V0's real scheduler and block manager without a model: the next token is a hash of the last ones; time is virtual."""

import heapq
import inspect
import itertools
import time as real_time
import zlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import vllm.core.scheduler
from vllm.config import CacheConfig, SchedulerConfig
from vllm.sampling_params import SamplingParams
from vllm.sequence import Logprob, Sequence, SequenceGroup, SequenceStatus

from eviction_client.background import AtOnce
from eviction_client.engines.vllm_v0.hooks import Hooks, gpu_allocator
from eviction_client.messages import Prediction
from eviction_client.offer import TokenizerState
from eviction_client.plugin import Plugin
from eviction_client.predictor_client import PredictorCounters
from eviction_client.prior import ReuseCurves
from eviction_client.settings import ClientSettings
from eviction_client.stores import MemoryStore

BLOCK = 16
STEP_S = 0.05
START_S = 1.8e9


class Told:
    """Answers with the group that a function returns for a request's id; None: no answer."""

    def __init__(self, tell: Callable[[str], int | None]) -> None:
        self.tell = tell
        self.counters = PredictorCounters()
        self.healthy = True
        self.reuse_curves: ReuseCurves | None = None
        self.tokenizer_state: TokenizerState = "unknown"

    def ask(self, request_id: Hashable, **_: Any) -> None: ...

    def take(self, request_id: Hashable) -> Prediction | None:
        group = self.tell(str(request_id))
        return None if group is None else Prediction(0.5, "told", 1, group=group)

    def forget(self, request_id: Hashable) -> None: ...

    def close(self) -> None: ...


@dataclass
class Turn:
    """One request; the conversation's history is prepended. ``think_s``: seconds after the end of the previous turn."""

    text: list[int]
    reply: int
    think_s: float


@dataclass
class Outcome:
    """Replies by request; evicted blocks in order; prompt tokens and cached ones; V0's own hit rate."""

    outputs: dict[str, list[int]] = field(default_factory=dict)
    evicted: list[int] = field(default_factory=list)
    asked: int = 0
    cached: int = 0
    hit_rate: float = 0.0


class Engine:
    """A V0 scheduler, with our hooks or stock. ``now``: virtual seconds since the epoch."""

    def __init__(
        self,
        blocks: int,
        *,
        tell: Callable[[str], int | None] | None = None,
        learned: bool = True,
        **settings: Any,
    ) -> None:
        self.now = START_S
        vllm.core.scheduler.time = SimpleNamespace(time=lambda: self.now, perf_counter=real_time.perf_counter)
        known = inspect.signature(SchedulerConfig).parameters
        wanted = {"max_num_batched_tokens": 4096, "max_num_seqs": 16, "max_model_len": 4096}
        wanted |= {"runner_type": "generate"} if "runner_type" in known else {"task": "generate"} if "task" in known else {}
        wanted |= {"use_v2_block_manager": True} if "use_v2_block_manager" in known else {}
        cache = CacheConfig(BLOCK, 0.9, 1, "auto")
        cache.enable_prefix_caching, cache.num_gpu_blocks, cache.num_cpu_blocks = True, blocks, 0
        cache.sliding_window = None
        self.scheduler = vllm.core.scheduler.Scheduler(SchedulerConfig(**wanted), cache, None)
        self.allocator = gpu_allocator(self.scheduler.block_manager)
        self.outcome = Outcome()
        self.predictor = Told(tell or (lambda _: None))
        self.hooks: Hooks | None = None
        if learned:
            plugin = Plugin(
                ClientSettings(**{"guard": False, "pooling": "off", **settings}),
                capacity=blocks,
                block_tokens=BLOCK,
                predictor=self.predictor,
                store=MemoryStore() if settings.get("pooling") == "shared" else None,
                clock=lambda: self.now,
                background=AtOnce,
            )
            self.hooks = Hooks(self.scheduler, plugin, adopt=not settings.get("shadow"))
        self._ids = itertools.count()
        self._outputs: dict[str, int] = {}
        self._log_evictions()

    def _log_evictions(self) -> None:
        stock = self.allocator._maybe_allocate_evicted_block_id

        def evict() -> int | None:
            block = stock()
            if block is not None:
                self.outcome.evicted.append(block)
            return block

        self.allocator._maybe_allocate_evicted_block_id = evict

    def send(self, request_id: str, prompt: list[int], reply: int, arguments: dict[str, Any] | None = None) -> SequenceGroup:
        """Add a request, like LLMEngine."""
        try:
            from vllm.inputs import token_inputs

            inputs: Any = token_inputs(prompt)
        except ImportError:
            inputs = {"type": "token", "prompt_token_ids": prompt, "prompt": None}
        sequence = Sequence(next(self._ids), inputs, BLOCK)
        sampling = SamplingParams(max_tokens=reply)
        if arguments is not None:
            sampling.extra_args = arguments
        group = SequenceGroup(request_id=request_id, seqs=[sequence], arrival_time=self.now, sampling_params=sampling)
        self.scheduler.add_seq_group(group)
        self._outputs[request_id] = reply
        return group

    def step(self) -> list[SequenceGroup]:
        """Schedule, "run the model", and free the finished requests; return them."""
        self.now += STEP_S
        metadata, outputs, *_ = self.scheduler.schedule()
        done = []
        for scheduled, told in zip(outputs.scheduled_seq_groups, metadata, strict=True):
            group = scheduled.seq_group
            (sequence,) = group.get_seqs()
            if told.is_prompt and sequence.data.get_num_computed_tokens() == 0:
                self.outcome.asked += sequence.get_len()
                self.outcome.cached += len(told.computed_block_nums or ()) * BLOCK
            group.update_num_computed_tokens(scheduled.token_chunk_size)
            if group.is_prefill():
                continue
            token = zlib.crc32(str(sequence.get_token_ids()[-8:]).encode()) % 1000
            sequence.append_token_id(token, {token: Logprob(0.0)})
            if sequence.get_output_len() >= self._outputs[group.request_id]:
                sequence.status = SequenceStatus.FINISHED_LENGTH_CAPPED
                self.outcome.outputs[group.request_id] = list(sequence.get_output_token_ids())
                done.append(group)
        self.scheduler.free_finished_seq_groups()
        return done

    def run(self, conversations: list[list[Turn]]) -> Outcome:
        """Serve all conversations."""
        waiting = [(START_S + turns[0].think_s, number, 0) for number, turns in enumerate(conversations)]
        heapq.heapify(waiting)
        history: list[list[int]] = [[] for _ in conversations]
        while waiting or self.scheduler.has_unfinished_seqs():
            if not self.scheduler.has_unfinished_seqs():
                self.now = max(self.now, waiting[0][0])
            while waiting and waiting[0][0] <= self.now:
                _, number, turn = heapq.heappop(waiting)
                history[number] = history[number] + conversations[number][turn].text
                self.send(f"{number}/{turn}", history[number], conversations[number][turn].reply)
            for group in self.step():
                number, turn = map(int, group.request_id.split("/"))
                history[number] = history[number] + self.outcome.outputs[group.request_id]
                if turn + 1 < len(conversations[number]):
                    heapq.heappush(waiting, (self.now + conversations[number][turn + 1].think_s, number, turn + 1))
        self.outcome.hit_rate = self.allocator.get_prefix_cache_hit_rate() if hasattr(self.allocator, "metric_data") else 0.0
        return self.outcome
