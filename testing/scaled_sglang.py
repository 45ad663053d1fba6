"""An HTTP server with OpenAI's chat API on SGLang's real radix cache and waiting order, without a model and in scaled time.

Requests, pools, tree and the order of those that wait are SGLang's own; time and batches are not. Prompts are computed at
`--prefill-rate` words per second, one after the other, and a request decodes a word each `--output-token-ms`. As in the
simulator, prompts and replies do not slow each other down. A prompt starts if it fits with all replies that have begun.

Run it in SGLang's environment: `.venv-sglang/bin/python -m testing.scaled_sglang --port 8000 --blocks 4096 ...`.
"""

import asyncio
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from testing.scaled_api import LONGEST, Job, options, serve, word_id
from testing.sglang_settle import settle

MOST_REQUESTS: Final = 512
"""Requests that run at a time."""


class ScaledSglang:
    """A radix cache, SGLang's order of those that wait, and the time that prompts and replies take: a `ServingEngine`.

    Args:
        tokens: capacity of the cache, words.
        schedule: SGLang's ``--schedule-policy``.
        prefill_rate: words per second.
        output_token_s: seconds per word of a reply.
    """

    version = ""

    def __init__(self, tokens: int, schedule: str, prefill_rate: float, output_token_s: float) -> None:
        from sglang.srt.managers.schedule_policy import SchedulePolicy

        from testing.sglang_cache import Cache

        self.cache = Cache(tokens, policy="lru", longest=LONGEST, slots=MOST_REQUESTS)
        self._order = SchedulePolicy(schedule, self.cache.tree, False, False, False)
        self._rate, self._word_s = prefill_rate, output_token_s
        self.jobs: dict[str, Job] = {}
        self._waiting: list[Any] = []
        self._replies: dict[str, asyncio.Task[None]] = {}
        self._computes = False
        """Whether a prompt is in prefill, which may be of a request that has been dropped."""
        self._names = map(str, itertools.count())
        self._wake = asyncio.Event()
        self.size: Mapping[str, str] = {"/server_info": json.dumps({"max_total_num_tokens": tokens})}

    def admit(self, words: Sequence[str], reply: int, arguments: dict[str, Any] | None = None) -> Job:
        """Add a request."""
        del arguments
        job = Job(next(self._names), [word_id(word) for word in words], reply)
        job.request = self.cache.arrive(job.name, job.ids)
        self.jobs[job.name] = job
        self._waiting.append(job.request)
        self._wake.set()
        return job

    def drop(self, job: Job) -> None:
        """Abort a request if it has not ended."""
        if self.jobs.pop(job.name, None) is None:
            return
        if job.request in self._waiting:
            self._waiting.remove(job.request)
        elif (replying := self._replies.pop(job.name, None)) is not None:
            replying.cancel()
            self._release(job, abort=True)
        # Else its prefill ends first.

    def reset(self) -> bool:
        """Forget what is cached; return whether that is possible, since nothing runs."""
        if self.jobs or self._replies or self._computes:
            return False
        self.cache.clear()
        return True

    async def serve(self) -> None:
        """Compute one prompt after the other, and wait for some.

        Each event has the time at which it should be, also if this process gets a processor later.
        """
        now = asyncio.get_running_loop().time
        at = now()
        async with asyncio.TaskGroup() as replies:  # so an error in one ends the engine
            while True:
                self._wake.clear()
                if (job := self._next()) is None:
                    await self._wake.wait()
                    at = max(at, now())
                    continue
                job.cached, self._computes = job.request.prefix_len, True
                self.cache.compute(job.request)
                at += max(len(job.ids) - job.cached, 1) / self._rate
                await asyncio.sleep(max(at - now(), 0.0))
                job.due, self._computes = at, False
                if job.name in self.jobs:
                    self._replies[job.name] = replies.create_task(self._reply(job))
                else:
                    self._release(job, abort=True)

    def _next(self) -> Job | None:
        """Take the first of those that wait by SGLang's order, if it fits."""
        if not self._waiting:
            return None
        self._order.calc_priority(self._waiting)
        job = self.jobs[self._waiting[0].rid]
        self.cache.match(job.request)
        if self._replies and len(job.ids) + job.reply > self._free():
            return None
        del self._waiting[0]
        return job

    def _free(self) -> int:
        """Return the words that are free or may be evicted and that no reply needs which has begun."""
        needed = sum(self.jobs[name].reply for name in self._replies)
        return int(self.cache.pool.available_size() + self.cache.tree.evictable_size()) - needed

    async def _reply(self, job: Job) -> None:
        now = asyncio.get_running_loop().time
        while True:
            job.give()
            if job.given == job.reply:
                break
            job.due += self._word_s
            await asyncio.sleep(max(job.due - now(), 0.0))
        del self.jobs[job.name], self._replies[job.name]
        self._release(job)
        job.words.put_nowait(None)

    def _release(self, job: Job, *, abort: bool = False) -> None:
        self.cache.end(job.request, [word_id(job.word(place)) for place in range(max(job.given, 1))], abort=abort)
        self._wake.set()


def main() -> None:
    """Read the options, and serve."""
    settle()
    program = "python -m testing.scaled_sglang"
    given = options(program, (__doc__ or "").splitlines()[0], ("fcfs", "lpm")).parse_args()
    tokens = given.blocks * 16
    engine = ScaledSglang(tokens, given.schedule, given.prefill_rate, given.output_token_ms / 1000)
    asyncio.run(serve(engine, given.port, tokens))


if __name__ == "__main__":
    main()
