"""The engine model: requests allocate blocks, run for a modelled time, and free them. They wait if the cache is in use.

Time of a request = uncached tokens / prefill rate + output tokens x time per output token. One prefill server computes all
prompts of an engine, first come, first served (other orders: `lpc_apps.simulator.waiting`). Decoding requests do not slow each
other down. With `Cost.batch_tokens` prompts and replies of a closed loop share the engine's steps, as in vLLM.

- In a closed loop (`Workload.loop`), and with `Queueing.in_turn`, a request allocates its blocks when its prefill starts, so
  hits depend on the queue.
- Otherwise a request allocates its blocks on arrival and holds them as long as if it were alone; only its time to
  first token includes the queue. So all policies and rates see the same order of uses, hit rates can be compared, and one
  engine can replay a trace of many.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

from lpc_apps.simulator.cache import BlockCache
from lpc_apps.simulator.policy import EvictionPolicy
from lpc_apps.simulator.replay import END, PREFILLED, Replay
from lpc_apps.simulator.result import Result, Started
from lpc_apps.simulator.segments import EDGE_ID, Path
from lpc_apps.simulator.sources import Sources
from lpc_apps.simulator.waiting import Fcfs, Queueing, SGLangs, WarmFirstOrder
from lpc_apps.simulator.workload import Cost, Turn, Workload, computed_tokens

__all__ = ["FCFS", "Engine", "PolicyFactory", "Result", "simulate"]

FCFS: Final = Queueing()

PolicyFactory = Callable[[int], EvictionPolicy[Any]]
"""Returns the policy of a cache with this number of blocks."""


@dataclass(slots=True)
class _Running:
    """A running request: its blocks, what it added to the counters, and when its first token is due."""

    path: Path
    blank: int
    started: Started
    counted: bool
    first_at: float


@dataclass(frozen=True, slots=True)
class Held:
    """A request that has its blocks.

    Attributes:
        path, blank: its blocks; ``hits``: those of its prompt that the cache serves.
        evicted: blocks that were evicted for it.
        since: seconds.
        counted: whether it is after the warm-up.
    """

    path: Path
    blank: int
    hits: int
    evicted: int
    since: float
    counted: bool


class Engine:
    """One engine: a prefix cache, a waiting queue and a prefill server.

    Args:
        replay: the run that it belongs to.
        capacity_tokens: capacity of the cache.
        policy: called once.
        queueing: order and retention of the waiting queue.
        on_evict: called with the time and the content ids of every eviction, without those of copies.
        on_start: called with every request that starts, and the tokens of its prompt in the cache.

    Attributes:
        result: counters of the requests that it has started.

    Raises:
        ValueError: the capacity is below one block.
    """

    def __init__(
        self,
        replay: Replay,
        capacity_tokens: int,
        policy: PolicyFactory,
        *,
        cost: Cost,
        queueing: Queueing = FCFS,
        on_evict: Callable[[float, Sequence[int]], None] | None = None,
        on_start: Callable[[Turn, int], None] | None = None,
    ) -> None:
        self._replay = replay
        self._workload = workload = replay.workload
        self._size = size = workload.block_tokens
        if capacity_tokens < size:
            raise ValueError(f"the cache must hold at least one block of {size} tokens")
        blocks = capacity_tokens // size
        self._cost = cost
        self._on_evict = on_evict
        self._on_start = on_start
        self._in_turn = workload.loop is not None or queueing.in_turn
        self._failed = False
        self.cache = BlockCache(blocks, policy(blocks), keep=queueing.keep)
        self.waiting = self._queue(queueing)
        self._sources = Sources(size)
        self.result = Result(self._sources.tokens, self._sources.unused)
        self.prefilled_at = 0.0
        """When the prefill server finishes the prompts that it has accepted."""
        self._running: dict[Turn, _Running] = {}
        self._steps = 0.0
        """Decoding steps until ``_steps_at``: one token of each running reply per step."""
        self._steps_at = 0.0
        self._replies: dict[Turn, float] = {}
        """``_steps`` at which each running reply ends, if requests start in turn."""

    def _queue(self, queueing: Queueing) -> Fcfs:
        size = self._size
        if queueing.schedule == "fcfs":
            return Fcfs()
        if queueing.schedule != "warm-first":
            return SGLangs(queueing.schedule, self.missing_tokens)
        return WarmFirstOrder(
            self.missing_tokens,
            self.cache.capacity * size,
            room=lambda: self.cache.room * size,
            speed=1 / self._cost.prompt_token_s,
            overtake_s=queueing.overtake_s,
        )

    def hit_tokens(self, turn: Turn) -> int:
        """Return the prompt tokens that the cache would serve if a request started now."""
        return min(self.cache.hit_blocks(self.cache.policy.path(turn)), turn.servable(self._size)) * self._size

    def missing_tokens(self, turn: Turn) -> int:
        """Return the prompt tokens that a request would compute if it started now."""
        return turn.input_tokens - self.hit_tokens(turn)

    def arrive(self, turn: Turn, now: float) -> bool:
        """Accept a request. Return whether it fits into the cache; if not, it is refused."""
        counted = self._replay.counts_arrival(turn)
        self.cache.policy.arrive(turn, now)
        if not self.fits(turn):
            self.result.refused += counted
            return False
        self.waiting.add(turn)
        self._serve(now)
        if turn in self.waiting:
            self.cache.wait(turn, self.cache.policy.path(turn), now)
            self.result.waited += counted
        return True

    def fits(self, turn: Turn) -> bool:
        """Return whether a request is not larger than the cache."""
        return self._needs(turn) <= self.cache.capacity

    def fail(self) -> list[Turn]:
        """Lose all requests and the cache; return the requests, in order of arrival. Their counts are taken back.

        The engine must not be used again, but for its counters.
        """
        self._failed = True
        for running in self._running.values():
            self._replay.not_served()
            self.result.undo(running.started, self._cost, counted=running.counted)
        return sorted((*self._running, *self.waiting), key=lambda turn: turn.arrival)

    def close(self, last: float) -> None:
        """End the run. ``last``: time of the last arrival.

        Running requests are finished as if no further prompt arrived.
        """
        if not self._in_turn or self._failed:
            return
        for turn, running in self._running.items():
            if not running.counted:
                continue
            if turn in self._replies:
                ends = self._ends(turn, self._steps_at)
            else:
                ends = running.first_at + turn.output_tokens * self._cost.output_token_s * self._workload.decodes
            self.result.latency.append(ends - turn.arrival)
        self.result.still_waiting = [last - turn.arrival for turn in self.waiting]

    def _needs(self, turn: Turn) -> int:
        """Return the blocks that a request needs."""
        tokens = computed_tokens(turn.input_tokens, turn.output_tokens if self._workload.decodes else 0)
        return -(-tokens // self._size)

    def _serve(self, now: float) -> None:
        while self.waiting and (not self._in_turn or self.prefilled_at <= now):
            turn = self.waiting.first()
            if not self._start(turn, now):
                break
            self.waiting.remove(turn)

    def _start(self, turn: Turn, now: float) -> bool:
        cache, size = self.cache, self._size
        blank = max(self._needs(turn) - len(turn.all_contents), 0)
        path = cache.policy.path(turn)
        servable = turn.servable(size)
        hits = min(cache.hit_blocks(path), servable)
        placed = cache.placed(path, servable)
        evicted = cache.allocate(placed, blank, now)
        if evicted is None:
            return False
        cache.start(turn, now)
        if evicted and self._on_evict is not None:
            self._on_evict(now, [content for content in chain.from_iterable(evicted) if content > EDGE_ID])
        counted = self._replay.counts_start(turn)
        held = Held(placed, blank, hits, sum(map(len, evicted)), now, counted=counted)
        self._admitted(turn, held, path, servable)
        if self._on_start is not None:
            self._on_start(turn, hits * size)
        return True

    def _admitted(self, turn: Turn, held: "Held", path: Path, servable: int) -> None:
        """Serve a request that has its blocks. ``servable``: blocks of its prompt that a cache may serve."""
        missed = turn.input_tokens - held.hits * self._size
        now = held.since
        self.waiting.note(missed, self._sources.start(turn, path, held.hits, servable, now, counted=held.counted))
        if not self._in_turn:
            self._end_as_if_alone(turn, held)
        self._compute(turn, held, held.hits * self._size, now)

    def _end_as_if_alone(self, turn: Turn, held: "Held") -> None:
        """Schedule the end of a request of open traffic: of its prefill, without a queue, and of its reply."""
        prefill = (turn.input_tokens - held.hits * self._size) * self._cost.prompt_token_s
        decode = turn.output_tokens * self._cost.output_token_s if self._workload.decodes else 0.0
        self._replay.add(held.since + prefill + decode, END, partial(self._end, turn))

    def _compute(self, turn: Turn, held: "Held", hit_tokens: int, now: float) -> None:
        """Compute what a request misses, after the prompts that the server has accepted."""
        prefill = (turn.input_tokens - hit_tokens) * self._cost.prompt_token_s
        if self._in_turn:
            self._decode(now)
        self.prefilled_at = max(self.prefilled_at, now) + prefill
        first = self.prefilled_at - turn.arrival
        started = Started(turn.input_tokens, hit_tokens, held.evicted, held.since - turn.arrival, first, prefill)
        self.result.add(started, self._cost, counted=held.counted)
        self._running[turn] = _Running(held.path, held.blank, started, held.counted, self.prefilled_at)
        if held.counted:
            self._replay.note_counted(now, self.prefilled_at)
        if self._in_turn:
            self._replay.add(self.prefilled_at, PREFILLED, partial(self._begin_reply, turn))
        elif held.counted:
            decode = turn.output_tokens * self._cost.output_token_s if self._workload.decodes else 0.0
            self.result.latency.append(first + decode)

    def _begin_reply(self, turn: Turn, now: float) -> None:
        if self._failed:
            return
        self._decode(now)
        self._replies[turn] = self._steps + (turn.output_tokens if self._workload.decodes else 0)
        self._replay.add(self._ends(turn, now), END, partial(self._end, turn))
        self._serve(now)

    def _end(self, turn: Turn, now: float) -> None:
        """End a reply; if requests start in turn and it does not end yet, schedule the next check."""
        if self._failed:
            return
        ends = self._ends(turn, now) if self._in_turn else now
        if ends <= now + 1e-9:
            running = self._running.pop(turn)
            if self._in_turn:
                del self._replies[turn]
                if running.counted:
                    self.result.latency.append(now - turn.arrival)
            self.cache.release(running.path, running.blank, turn, now)
            self._replay.answered(turn, now)
        else:
            self._replay.add(ends, END, partial(self._end, turn))
        self._serve(now)

    def _decode(self, now: float) -> None:
        """Advance ``_steps`` to now."""
        mixed = min(max(self.prefilled_at - self._steps_at, 0.0), now - self._steps_at)
        self._steps += mixed / self._cost.mixed_step_s + (now - self._steps_at - mixed) / self._cost.step_s
        self._steps_at = now

    def _ends(self, turn: Turn, now: float) -> float:
        """Return when a reply ends if no further prefill starts before."""
        self._decode(now)
        left = max(self._replies[turn] - self._steps, 0.0)
        mixed = min(max(self.prefilled_at - now, 0.0), left * self._cost.mixed_step_s)
        return now + mixed + max(left - mixed / self._cost.mixed_step_s, 0.0) * self._cost.step_s


def simulate(
    workload: Workload,
    capacity_tokens: int,
    policy: PolicyFactory,
    *,
    cost: Cost | None = None,
    queueing: Queueing = FCFS,
    on_evict: Callable[[float, Sequence[int]], None] | None = None,
    on_start: Callable[[Turn, int], None] | None = None,
) -> Result:
    """Replay a workload on one engine. Arguments and errors: see `Engine`."""
    replay = Replay(workload)
    engine = Engine(
        replay, capacity_tokens, policy, cost=cost or Cost(), queueing=queueing, on_evict=on_evict, on_start=on_start
    )
    replay.run(engine.arrive)
    engine.close(replay.last)
    engine.result.seconds = replay.seconds
    return engine.result
