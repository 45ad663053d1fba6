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

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Final

import numpy as np

from lpc_apps.simulator.cache import BlockCache
from lpc_apps.simulator.policy import Policy
from lpc_apps.simulator.segments import EDGE_ID, Path
from lpc_apps.simulator.sessions import PAUSE_S, Sessions
from lpc_apps.simulator.sources import Sources
from lpc_apps.simulator.waiting import Fcfs, Queueing, SGLangs, WarmFirst
from lpc_apps.simulator.workload import Cost, Turn, Workload, computed_tokens


@dataclass
class Result:
    """Counters of a run after the warm-up.

    Attributes:
        requests, prompt_tokens, hit_tokens: requests served, the tokens of their prompts, and those of them in the cache.
        hit_shares: sum of the requests' shares of prompt tokens in the cache.
        prompt_flops, saved_flops: operations to compute their prompts, and those that hits saved (`Cost.compute`).
        evicted: evicted blocks.
        waited: requests that waited for blocks.
        refused: requests larger than the whole cache; no other counter includes them.
        ttft, latency: seconds from arrival to the first and to the last token, one per request.
        prefill_s: seconds that the server spent on prompts.
        all_prompt_tokens, all_hit_tokens: prompt_tokens and hit_tokens including the warm-up.
        waits: seconds from arrival to the allocation of blocks, one per request.
        still_waiting: closed loop: seconds since arrival of the requests that wait at the end.
        seconds: duration after the warm-up; closed loop: from the start of the first counted request to the end of the last
            counted prefill.
        sources: prompt_tokens by source.
        unused: evicted ones of them by the time since their last use (`eviction_client.observability.misses.UNUSED`).
    """

    sources: dict[str, int]
    unused: dict[str, int]

    requests: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    hit_shares: float = 0.0
    prompt_flops: float = 0.0
    saved_flops: float = 0.0
    evicted: int = 0
    waited: int = 0
    refused: int = 0
    ttft: list[float] = field(default_factory=list, repr=False)
    latency: list[float] = field(default_factory=list, repr=False)
    prefill_s: float = 0.0
    all_prompt_tokens: int = 0
    all_hit_tokens: int = 0
    waits: list[float] = field(default_factory=list, repr=False)
    still_waiting: list[float] = field(default_factory=list, repr=False)
    seconds: float = 0.0

    @property
    def hit_rate(self) -> float:
        """Prompt tokens served from the cache / prompt tokens."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def throughput(self) -> float:
        """Prompt tokens served per second."""
        return self.prompt_tokens / self.seconds if self.seconds > 0 else 0.0

    def figures(self) -> dict[str, Any]:
        """Return the metrics as plain numbers: tokens, rates, seconds.

        `compute_saved` is the share of the prompts' operations that hits saved. `whole_hit_rate` includes the warm-up.
        `request_hit_rate` is the mean of the requests' hit rates: the hit ratio of Learned Prefix Caching (NeurIPS 2025).
        `prefill_load` is the utilization of the prefill server: above 1 its queue grows without bound.
        """
        times = np.array(self.ttft) if self.ttft else np.zeros(1)
        latency = np.array(self.latency) if self.latency else np.zeros(1)
        waits = np.array(self.waits) if self.waits else np.zeros(1)
        return {
            "hit_rate": self.hit_rate,
            "request_hit_rate": self.hit_shares / self.requests if self.requests else 0.0,
            "whole_hit_rate": self.all_hit_tokens / max(self.all_prompt_tokens, 1),
            "compute_saved": self.saved_flops / self.prompt_flops if self.prompt_flops else 0.0,
            "prompt_flops": self.prompt_flops,
            "saved_tokens": self.hit_tokens,
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "evicted_blocks": self.evicted,
            "waited": self.waited,
            "refused": self.refused,
            "ttft_mean_s": float(times.mean()),
            "ttft_p50_s": float(np.quantile(times, 0.5)),
            "ttft_p99_s": float(np.quantile(times, 0.99)),
            "latency_mean_s": float(latency.mean()),
            "latency_p99_s": float(np.quantile(latency, 0.99)),
            "wait_mean_s": float(waits.mean()),
            "wait_p99_s": float(np.quantile(waits, 0.99)),
            "wait_longest_s": float(max((*self.waits, *self.still_waiting), default=0.0)),
            "throughput_tokens_s": self.throughput,
            "prefill_throughput_tokens_s": self.prompt_tokens / self.prefill_s if self.prefill_s else 0.0,
            "prefill_load": self.prefill_s / self.seconds if self.seconds > 0 else 0.0,
            "sources": self.sources,
            "unused": self.unused,
        }


END: Final = 0
PREFILLED: Final = 1
ARRIVE: Final = 2
"""Order of simultaneous events: ends precede arrivals, so that a request can use blocks freed at that instant."""

FCFS: Final = Queueing()

PolicyFactory = Callable[[int], Policy[Any]]
"""Returns the policy of a cache with this number of blocks."""


@dataclass(eq=False)
class _Engine:
    cache: BlockCache[Any]
    waiting: Fcfs = field(default_factory=Fcfs)
    prefilled_at: float = 0.0
    """When the prefill server finishes the prompts that it has accepted."""
    steps: float = 0.0
    """Decoding steps until ``steps_at``: one token of each running reply per step."""
    steps_at: float = 0.0
    replies: dict[Turn, float] = field(default_factory=dict)
    """Closed loop: ``steps`` at which each running reply ends."""

    def decode(self, now: float, cost: Cost) -> None:
        """Advance ``steps`` to now."""
        mixed = min(max(self.prefilled_at - self.steps_at, 0.0), now - self.steps_at)
        self.steps += mixed / cost.mixed_step_s + (now - self.steps_at - mixed) / cost.step_s
        self.steps_at = now

    def ends(self, turn: Turn, now: float, cost: Cost) -> float:
        """Return when a reply ends if no further prefill starts before."""
        self.decode(now, cost)
        left = max(self.replies[turn] - self.steps, 0.0)
        mixed = min(max(self.prefilled_at - now, 0.0), left * cost.mixed_step_s)
        return now + mixed + max(left - mixed / cost.mixed_step_s, 0.0) * cost.step_s


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
    """Replay a workload.

    Args:
        capacity_tokens: capacity of the cache.
        policy: called once.
        queueing: order and retention of the waiting queue.
        on_evict: called with the time and the content ids of every eviction, without those of copies.
        on_start: called with every request that starts, and the tokens of its prompt in the cache.

    Raises:
        ValueError: the capacity is below one block.
    """
    cost = cost or Cost()
    size = workload.block_tokens
    if capacity_tokens < size:
        raise ValueError(f"the cache must hold at least one block of {size} tokens")
    blocks = capacity_tokens // size
    engine = _Engine(BlockCache(blocks, policy(blocks), keep=queueing.keep))
    missing = partial(_missing_tokens, engine.cache, size)
    if queueing.schedule == "warm-first":
        engine.waiting = WarmFirst(
            missing,
            blocks * size,
            room=lambda: engine.cache.room * size,
            speed=1 / cost.prompt_token_s,
            overtake_s=queueing.overtake_s,
        )
    elif queueing.schedule != "fcfs":
        engine.waiting = SGLangs(queueing.schedule, missing)
    sources = Sources(size)
    result = Result(sources.tokens, sources.unused)
    events: list[tuple[float, int, int, Turn, Path, int]] = []
    sequence = 0
    last = 0.0
    loop = workload.loop
    in_turn = loop is not None or queueing.in_turn
    sessions = None if loop is None else Sessions(workload)
    counted_replies: set[Turn] = set()
    served = refused = 0
    counted_from: float | None = None
    counted_until = 0.0
    upcoming = iter(workload.arrivals if sessions is None else sessions.first())
    following = next(upcoming, None)

    def needs(turn: Turn) -> int:
        """Return the blocks that a request needs."""
        tokens = computed_tokens(turn.input_tokens, turn.output_tokens if workload.decodes else 0)
        return -(-tokens // size)

    def start(turn: Turn, now: float) -> bool:
        nonlocal sequence, served, counted_from, counted_until
        blank = max(needs(turn) - len(turn.all_contents), 0)
        path = engine.cache.policy.path(turn)
        servable = turn.servable(size)
        hits = min(engine.cache.hit_blocks(path), servable)
        placed = engine.cache.placed(path, servable)
        evicted = engine.cache.allocate(placed, blank, now)
        if evicted is None:
            return False
        engine.cache.start(turn, now)
        if evicted and on_evict is not None:
            on_evict(now, [content for content in chain.from_iterable(evicted) if content > EDGE_ID])
        if on_start is not None:
            on_start(turn, hits * size)
        served += 1
        counted = workload.count_from <= turn.arrival < workload.until if loop is None else served > loop.warm_up
        missed = turn.input_tokens - hits * size
        engine.waiting.note(missed, sources.start(turn, path, hits, servable, now, counted=counted))
        prefill = missed * cost.prompt_token_s
        decode = turn.output_tokens * cost.output_token_s if workload.decodes else 0.0
        if in_turn:
            engine.decode(now, cost)
        engine.prefilled_at = max(engine.prefilled_at, now) + prefill
        first = engine.prefilled_at - turn.arrival
        result.all_prompt_tokens += turn.input_tokens
        result.all_hit_tokens += hits * size
        if counted:
            result.requests += 1
            result.prompt_tokens += turn.input_tokens
            result.hit_tokens += hits * size
            result.hit_shares += hits * size / max(turn.input_tokens, 1)
            result.prompt_flops += cost.compute.of(turn.input_tokens)
            result.saved_flops += cost.compute.of(hits * size)
            result.evicted += sum(map(len, evicted))
            result.waits.append(now - turn.arrival)
            result.ttft.append(first)
            if in_turn:
                counted_replies.add(turn)
            else:
                result.latency.append(first + decode)
            result.prefill_s += prefill
            counted_from = now if counted_from is None else counted_from
            counted_until = max(counted_until, engine.prefilled_at)
        sequence += 1
        due, kind = (engine.prefilled_at, PREFILLED) if in_turn else (now + prefill + decode, END)
        heapq.heappush(events, (due, kind, sequence, turn, placed, blank))
        return True

    def begin_reply(turn: Turn, path: Path, blank: int, now: float) -> None:
        nonlocal sequence
        engine.decode(now, cost)
        engine.replies[turn] = engine.steps + (turn.output_tokens if workload.decodes else 0)
        sequence += 1
        heapq.heappush(events, (engine.ends(turn, now, cost), END, sequence, turn, path, blank))

    def end_reply(turn: Turn, path: Path, blank: int, now: float) -> bool:
        """Return whether a reply ends now, if requests start in turn; if not, schedule the next check."""
        nonlocal sequence
        ends = engine.ends(turn, now, cost)
        if ends <= now + 1e-9:
            del engine.replies[turn]
            if turn in counted_replies:
                result.latency.append(now - turn.arrival)
            return True
        sequence += 1
        heapq.heappush(events, (ends, END, sequence, turn, path, blank))
        return False

    def serve(now: float) -> None:
        while engine.waiting and (not in_turn or engine.prefilled_at <= now):
            turn = engine.waiting.first()
            if not start(turn, now):
                break
            engine.waiting.remove(turn)

    def schedule_next(turn: Turn, now: float) -> None:
        """Schedule the user's next request after an answer."""
        if workload.closed and turn.next is not None:
            turn.next.arrival = now + turn.next.gap
            schedule(turn.next)
        elif sessions is not None:
            schedule(sessions.start(now + PAUSE_S))

    def schedule(turn: Turn) -> None:
        nonlocal sequence
        if turn.arrival < workload.until:
            sequence += 1
            heapq.heappush(events, (turn.arrival, ARRIVE, sequence, turn, (), 0))

    while (following is not None or events) and (loop is None or served + refused < loop.requests):
        if following is not None and (not events or (following.arrival, ARRIVE) < events[0][:2]):
            now, turn = following.arrival, following
            following = next(upcoming, None)
        else:
            now, kind, _, turn, path, blank = heapq.heappop(events)
            if kind != ARRIVE:
                if kind == PREFILLED:
                    begin_reply(turn, path, blank, now)
                elif not in_turn or end_reply(turn, path, blank, now):
                    engine.cache.release(path, blank, turn, now)
                    schedule_next(turn, now)
                serve(now)
                continue
        if now >= workload.until:
            continue
        last = now
        counted = workload.count_from <= turn.arrival if loop is None else served >= loop.warm_up
        engine.cache.policy.arrive(turn, now)
        if needs(turn) > engine.cache.capacity:
            refused += 1
            result.refused += counted
            if sessions is not None:
                schedule(sessions.start(now + PAUSE_S))  # a session cannot continue without an answer
            continue
        engine.waiting.add(turn)
        serve(now)
        if turn in engine.waiting:
            engine.cache.wait(turn, engine.cache.policy.path(turn), now)
            result.waited += counted
    for at, kind, _, turn, *_ in events if in_turn else ():
        if kind != ARRIVE and turn in counted_replies:
            # Still running: finish it as if no further prompt arrived.
            if kind == END:
                at = engine.ends(turn, engine.steps_at, cost)
            elif workload.decodes:
                at += turn.output_tokens * cost.output_token_s
            result.latency.append(at - turn.arrival)
    if in_turn:
        result.still_waiting = [last - turn.arrival for turn in engine.waiting]
    result.seconds = min(workload.until, last) - workload.count_from if loop is None else counted_until - (counted_from or 0.0)
    return result


def _missing_tokens(cache: BlockCache[Any], size: int, turn: Turn) -> int:
    """Return the prompt tokens that a request would compute if it started now."""
    return turn.input_tokens - _hit_tokens(cache, size, turn)


def _hit_tokens(cache: BlockCache[Any], size: int, turn: Turn) -> int:
    return min(cache.hit_blocks(cache.policy.path(turn)), turn.servable(size)) * size
