"""vLLM's real scheduler, KV-cache manager and block pool without a model: the next token is a hash of the last ones.

Time is virtual, so runs can be compared block by block.
"""

import functools
import heapq
import itertools
import math
import tempfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from eviction_client.background import BackgroundThread, StartBackground
from eviction_client.engines.vllm import LearnedScheduler
from eviction_client.settings import ClientSettings
from eviction_client.transport.scripted_predictor import CONTINUES, OVER, Script, ScriptedPredictor
from lpc_apps.tiny_llama import build
from testing.engine_internals import preempt, transferred, watch_evictions

BLOCK = 16
STEP_S = 0.05


@functools.cache
def vllm_config() -> Any:
    """Return vLLM's configuration for the tiny model."""
    folder = build(Path(tempfile.mkdtemp(prefix="tiny-llama-")))
    return EngineArgs(
        model=str(folder), load_format="dummy", enforce_eager=True, max_model_len=4096, gpu_memory_utilization=0.05
    ).create_engine_config()


@dataclass
class Turn:
    """One request. When it is sent, the conversation's history is prepended."""

    text: list[int]
    reply: int
    think_s: float
    """Seconds after the end of the previous turn, or for the first turn after the start of the run."""
    arguments: dict[str, Any] | None = None


@dataclass
class Outcome:
    """Outputs and token counts of the requests, and the evicted blocks in order."""

    outputs: dict[str, list[int]] = field(default_factory=dict)
    evicted: list[int] = field(default_factory=list)
    cached: int = 0
    prompt: int = 0
    preempted: int = 0
    hits: dict[str, int] = field(default_factory=dict)
    """Cached tokens of each request when it first started."""
    course: list[tuple[int, int]] = field(default_factory=list)
    """Cached and prompt tokens so far, at each finish."""

    def hit_rate(self, since: float = 0.0) -> float:
        """Return the percentage of prompt tokens that were cached, without the first share ``since`` of the requests."""
        cached, prompt = self.course[int(since * len(self.course))] if since else (0, 0)
        return 100 * (self.cached - cached) / (self.prompt - prompt)


class Engine:
    """One scheduler and the loop around it.

    Args:
        full_attention: have a group of layers with full attention.
        window: tokens of the sliding window of a second group of layers; None: there is none. ``window_block``: of its blocks.
        retention: vLLM's ``--prefix-cache-retention-interval`` for it; None: all its blocks are cached.
        speculative: vLLM's configuration of a draft model, which drafts nothing here.
    """

    def __init__(
        self,
        blocks: int,
        *,
        learned: bool = True,
        script: Script = lambda _: None,
        asynchronous: bool = False,
        window: int | None = None,
        window_block: int = BLOCK,
        full_attention: bool = True,
        retention: int | None = None,
        speculative: Any = None,
        max_seqs: int = 8,
        background: StartBackground = BackgroundThread,
        scheduler_cls: Any = None,
        **settings: Any,
    ) -> None:
        config = vllm_config()
        config.scheduler_config.max_num_seqs = max_seqs
        config.scheduler_config.async_scheduling = asynchronous
        config.cache_config.num_gpu_blocks = blocks
        config.cache_config.enable_prefix_caching = True
        object.__setattr__(config, "speculative_config", speculative)
        self.now = 1e9
        self.predictor = ScriptedPredictor(script)
        self.asynchronous = asynchronous
        shape: dict[str, Any] = {"block_size": BLOCK, "num_kv_heads": 2, "head_size": 32, "dtype": torch.float32}
        groups = [KVCacheGroupSpec(["layer"], FullAttentionSpec(**shape))] if full_attention else []
        if window:
            groups.append(
                KVCacheGroupSpec(["window"], SlidingWindowSpec(**shape | {"block_size": window_block}, sliding_window=window))
            )
        cls: Any = scheduler_cls or (AsyncScheduler if asynchronous else Scheduler)
        if learned:
            cls = type(
                "Injected",
                (LearnedScheduler,),
                {
                    "settings": ClientSettings(**{"pooling": "off", "rule": "value", **settings}),
                    "clock": staticmethod(functools.partial(getattr, self, "now")),  # no frame, as `time.time`
                    "open_predictor": staticmethod(lambda *_: self.predictor),
                    "background": staticmethod(background),
                },
            )
        self.scheduler: Any = cls(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=blocks,
                kv_cache_tensors=[],
                kv_cache_groups=groups,
                **({} if retention is None else {"prefix_cache_retention_interval": retention}),
            ),
            structured_output_manager=StructuredOutputManager(config),
            block_size=math.lcm(BLOCK, window_block) if window else BLOCK,
            hash_block_size=BLOCK,
            log_stats=True,
        )
        init_none_hash(sha256_cbor)
        lookahead = getattr(self.scheduler, "num_hash_lookahead_tokens", 0)  # since vLLM 0.33
        self._hasher = get_request_block_hasher(BLOCK, sha256_cbor, *([lookahead] if lookahead else []))
        self.outcome = Outcome()
        self.in_flight: deque[Any] = deque()
        self.on_evicted: list[Callable[[bytes], None]] = []
        """Called with the hash of each evicted block, after it."""
        self.pool = self.scheduler.kv_cache_manager.block_pool

        def note(number: int, name: bytes) -> None:
            self.outcome.evicted.append(number)
            for watch in self.on_evicted:
                watch(name)

        watch_evictions(self.pool, note)

    def add(
        self,
        name: str,
        tokens: Sequence[int],
        reply: int,
        arguments: dict[str, Any] | None = None,
        salt: str | None = None,
        **fields: Any,
    ) -> Request:
        """Admit a request.

        Args:
            arguments: its session and hints.
            salt: its cache salt.
            fields: further arguments of vLLM's ``Request``.
        """
        parameters = SamplingParams(max_tokens=reply, ignore_eos=True, extra_args=arguments)
        request = Request(
            request_id=name,
            sampling_params=parameters,
            pooling_params=None,
            cache_salt=salt,
            block_hasher=self._hasher,
            **{"prompt_token_ids": list(tokens), **fields},
        )
        self.scheduler.add_request(request)
        self.outcome.prompt += len(tokens)
        return request

    def preempt(self, request: Request, **how: Any) -> None:
        """Let vLLM preempt a running request."""
        self.scheduler.running.remove(request)
        preempt(self.scheduler, request, self.now, **how)

    def transferred(self, *, received: Iterable[str] = (), sent: Iterable[str] = ()) -> None:
        """Report transfers of a KV connector, by the requests' ids."""
        output = KVConnectorOutput(finished_recving=set(received) or None, finished_sending=set(sent) or None)
        transferred(self.scheduler, output)

    def step(self) -> list[str]:
        """Schedule once, and pass on the model's output (one step later if asynchronous); return the finished requests."""
        self.now += STEP_S
        scheduler = self.scheduler
        running = dict(scheduler.requests)
        planned = scheduler.schedule()
        for request in planned.scheduled_new_reqs:
            self.outcome.cached += request.num_computed_tokens
            self.outcome.hits.setdefault(request.req_id, request.num_computed_tokens)
        idle = not planned.total_num_scheduled_tokens
        if not idle:
            self.in_flight.append(planned)
        if not self.in_flight or (self.asynchronous and not idle and len(self.in_flight) == 1):
            return [name for name in running if name not in scheduler.requests]
        done = self.in_flight.popleft()
        ids = list(done.num_scheduled_tokens)
        tokens = []
        for name in ids:
            request = running.get(name)
            complete = request is not None and not self._partial(request, done)
            tokens.append([self.next_token(request)] if complete else [])
        scheduler.update_from_output(
            done, ModelRunnerOutput(req_ids=ids, req_id_to_index={n: i for i, n in enumerate(ids)}, sampled_token_ids=tokens)
        )
        finished = [name for name in running if name not in scheduler.requests]
        for name in finished:
            self.outcome.outputs[name] = list(running[name].output_token_ids)
            self.outcome.preempted += running[name].num_preemptions
        return finished

    @staticmethod
    def _partial(request: Any, planned: Any) -> bool:
        new = {r.req_id: r.num_computed_tokens for r in planned.scheduled_new_reqs}
        cached = planned.scheduled_cached_reqs
        new.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        return bool(new[request.request_id] + planned.num_scheduled_tokens[request.request_id] < request.num_tokens)

    @staticmethod
    def next_token(request: Any) -> int:
        """Return the next token of a reply, by the latest sixteen."""
        return 6 + zlib.crc32(bytes(t % 256 for t in request.all_token_ids[-16:])) % 250

    def run(self, conversations: dict[str, list[Turn]]) -> Outcome:
        """Serve the conversations, each turn ``think_s`` after the previous reply."""
        for _ in self.steps(conversations):
            pass
        return self.outcome

    def steps(self, conversations: dict[str, list[Turn]]) -> Iterator[None]:
        """Like :meth:`run`, but yield after each step."""
        start = self.now
        numbers = itertools.count()
        arrivals = [(start + turns[0].think_s, next(numbers), name, 0) for name, turns in conversations.items()]
        heapq.heapify(arrivals)
        history: dict[str, list[int]] = {name: [] for name in conversations}
        while arrivals or self.scheduler.has_unfinished_requests() or self.in_flight:
            if arrivals and not (self.scheduler.has_unfinished_requests() or self.in_flight):
                self.now = max(self.now, arrivals[0][0])
            while arrivals and arrivals[0][0] <= self.now:
                _, _, name, i = heapq.heappop(arrivals)
                turn = conversations[name][i]
                history[name] += turn.text
                self.add(f"{name}/{i}", history[name], turn.reply, turn.arguments)
            for request in self.step():
                self.outcome.course.append((self.outcome.cached, self.outcome.prompt))
                name, _, number = request.rpartition("/")
                history[name] += self.outcome.outputs[request]
                following = int(number) + 1
                if following < len(conversations[name]):
                    later = self.now + conversations[name][following].think_s
                    heapq.heappush(arrivals, (later, next(numbers), name, following))
            yield


def conversations(
    seed: int, count: int, *, turns: int = 5, shared: int = 48, spread_s: float = 600.0, reply: tuple[int, int] = (5, 40)
) -> dict[str, list[Turn]]:
    """Return conversations with one system prompt: half of them end after one turn. ``reply``: bounds of its tokens."""
    import random

    rng = random.Random(seed)
    system = [rng.randrange(6, 256) for _ in range(shared)]
    made = {}
    for n in range(count):
        length = 1 if rng.random() < 0.5 else rng.randint(2, turns)
        made[f"c{n}"] = [
            Turn(
                (system if i == 0 else []) + [rng.randrange(6, 256) for _ in range(rng.randint(20, 120))],
                rng.randint(*reply),
                rng.uniform(0, spread_s) if i == 0 else rng.expovariate(1 / 30),
            )
            for i in range(length)
        ]
    return made


def oracle(made: dict[str, list[Turn]]) -> Callable[[str], int]:
    """Return a function from a request's id to its group, which depends on whether the conversation continues."""

    def tell(request: str) -> int:
        name, _, i = request.rpartition("/")
        return CONTINUES if int(i) + 1 < len(made[name]) else OVER

    return tell
