"""An HTTP server with OpenAI's chat API on vLLM's real scheduler and block pool, without a model and in scaled time.

Prompts are computed at `--prefill-rate` words per second, one step after the other. A request decodes a word each
`--output-token-ms`. As in the simulator, prompts and replies do not slow each other down: the outputs of a step's decodes
reach the scheduler when they are due, as those of steps in flight do with pipeline parallelism.

Run it in vLLM's environment: `.venv-engine/bin/python -m testing.scaled_engine --port 8000 --blocks 4096 ...`.
"""

import asyncio
import contextlib
import dataclasses
import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from testing.scaled_api import LONGEST, Job, options, serve, word_id
from testing.vllm_settings import settle

SLACK: Final = 0.125
"""Words that are due within this share of a word's time are decoded together, which saves steps."""
MOST_SEQS: Final = 256
EPOCH_S: Final = 1e9


class ScaledEngine:
    """A scheduler, and the time that its steps take: a `ServingEngine`.

    Args:
        engine: a `testing.bare_scheduler.Engine`.
        prefill_rate: words per second.
        output_token_s: seconds per word of a reply.
        time_scale: seconds per second of the scheduler's own clock.
    """

    def __init__(self, engine: Any, prefill_rate: float, output_token_s: float, time_scale: float = 1.0) -> None:
        from vllm.v1.outputs import ModelRunnerOutput
        from vllm.v1.request import RequestStatus

        self._output, self._aborted = ModelRunnerOutput, RequestStatus.FINISHED_ABORTED
        self.engine, self.scheduler = engine, engine.scheduler
        self._rate, self._word_s, self._scale = prefill_rate, output_token_s, time_scale
        self.jobs: dict[str, Job] = {}
        blocks = self.scheduler.kv_cache_config.num_blocks - 1  # vLLM reserves one
        info = f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}"}} 1.0\n'
        self.size: Mapping[str, str] = {"/metrics": info}
        self.version = "0.32.0"
        self._names = map(str, itertools.count())
        self._wake = asyncio.Event()
        self._due: list[tuple[float, str]] = []
        """Heap of the words in flight: when each is due, and its request."""

    def admit(self, words: Sequence[str], reply: int, arguments: dict[str, Any] | None = None) -> Job:
        """Add a request. ``arguments``: its session and hints."""
        job = Job(next(self._names), [word_id(word) for word in words], reply)
        self.jobs[job.name] = job
        job.request = self.engine.add(job.name, job.ids, reply, arguments)
        self._wake.set()
        return job

    def drop(self, job: Job) -> None:
        """Abort a request if it has not ended."""
        if self.jobs.pop(job.name, None) is not None:
            self.scheduler.finish_requests(job.name, self._aborted)
            self._wake.set()

    def reset(self) -> bool:
        """Forget what is cached; return whether that is possible, since nothing runs."""
        return bool(self.scheduler.reset_prefix_cache())

    async def serve(self) -> None:
        """Schedule as long as there are requests, and wait for some.

        Each event has the time at which it should be, also if this process gets a processor later. So engines are not slower
        on a busy machine; only their answers are late.
        """
        now = asyncio.get_running_loop().time
        at = now()
        while True:
            self._wake.clear()
            self.engine.now = EPOCH_S + at / self._scale
            prefill = self._begin(self.scheduler.schedule(), at)
            ends = at + sum(prefill.values()) / self._rate if prefill else math.inf
            while True:
                following = min(ends, self._due[0][0] if self._due else math.inf)
                if prefill:
                    await asyncio.sleep(max(following - now(), 0.0))
                elif await self._woken(following - now()):
                    at = max(at, min(now(), following))
                    break
                at = following
                self._decode(at)
                if at >= ends:
                    self._update(prefill, at)
                if at >= ends or not prefill:
                    break

    async def _woken(self, within_s: float) -> bool:
        """Wait for a request or for this time; return whether there is one."""
        if within_s <= 0:
            await asyncio.sleep(0)
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), None if within_s == math.inf else within_s)
        return self._wake.is_set()

    def _begin(self, planned: Any, now: float) -> dict[str, int]:
        """Return the tokens of a step that are prefill, by request; put the words that it decodes in flight."""
        self._planned = planned
        prefill = {}
        for name, tokens in planned.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            if tokens == 1 and request.num_output_tokens and request.num_computed_tokens == request.num_tokens:
                job = self.jobs[name]
                job.due = max(job.due + self._word_s, now)
                heapq.heappush(self._due, (job.due, name))
            else:
                prefill[name] = tokens
        return prefill

    def _decode(self, now: float) -> None:
        """Pass on the words that are due."""
        if not self._due or self._due[0][0] > now:
            return
        words: dict[str, int] = {}
        while self._due and self._due[0][0] <= now + SLACK * self._word_s:
            words[heapq.heappop(self._due)[1]] = 1
        self._update(words, now)

    def _update(self, tokens: dict[str, int], now: float) -> None:
        """Give the scheduler the outputs of these requests, and clients their words."""
        sampled: list[list[int]] = []
        before: dict[str, int] = {}
        for name in tokens:
            request = self.scheduler.requests.get(name)
            complete = request is not None and request.num_computed_tokens >= request.num_tokens
            job = self.jobs.get(name)
            if request is None or job is None or not complete:
                sampled.append([])
                continue
            before[name] = request.num_output_tokens
            if not before[name]:
                job.due = now
            sampled.append([word_id(job.word(before[name]))])
        self.engine.now = EPOCH_S + now / self._scale
        outputs = self.scheduler.update_from_output(
            dataclasses.replace(self._planned, num_scheduled_tokens=tokens),
            self._output(req_ids=list(tokens), req_id_to_index={n: i for i, n in enumerate(tokens)}, sampled_token_ids=sampled),
        )
        for output in itertools.chain.from_iterable(each.outputs for each in outputs.values()):
            if output.prefill_stats is not None:
                self.jobs[output.request_id].cached = output.prefill_stats.num_cached_tokens
        for name, place in before.items():
            job = self.jobs[name]
            if job.request.num_output_tokens > place:
                job.give()
            if job.request.is_finished():
                del self.jobs[name]
                job.words.put_nowait(None)


def made(blocks: int, schedule: str, step_tokens: int, events_port: int | None = None) -> Any:
    """Return a scheduler with this many usable blocks.

    Args:
        schedule: stock: vLLM's own; learned: ours, warm first and with keep, evicting as vLLM does.
        step_tokens: most tokens of a step.
        events_port: port on which it publishes its KV events; None: it publishes none.
    """
    from vllm.config.kv_events import KVEventsConfig

    from testing.bare_scheduler import Engine, vllm_config

    config = vllm_config()
    config.model_config.max_model_len = LONGEST
    config.scheduler_config.max_num_batched_tokens = step_tokens
    learned = schedule == "learned"
    settings: dict[str, Any] = {"rule": "lru", "schedule": "warm-first", "keep_waiting": True} if learned else {}
    before = config.kv_events_config  # the configuration is that of all engines of the process
    if events_port is not None:
        # vLLM binds only an endpoint with an asterisk, and connects to any other.
        config.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, endpoint=f"tcp://*:{events_port}")
    try:
        return Engine(blocks + 1, learned=learned, max_seqs=MOST_SEQS, **settings)  # vLLM reserves one
    finally:
        config.kv_events_config = before


def main() -> None:
    """Read the options, and serve."""
    settle()
    given = options("python -m testing.scaled_engine", (__doc__ or "").splitlines()[0], ("stock", "learned")).parse_args()
    bare = made(given.blocks, given.schedule, given.step_tokens, given.events_port)
    engine = ScaledEngine(bare, given.prefill_rate, given.output_token_ms / 1000, given.time_scale)
    asyncio.run(serve(engine, given.port, given.blocks * 16))


if __name__ == "__main__":
    main()
