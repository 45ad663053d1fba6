"""Counters of a simulated run."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from lpc_apps.simulator.workload import Cost


@dataclass(frozen=True, slots=True)
class Started:
    """What a request adds to the counters when it starts.

    Attributes:
        tokens, hits: tokens of its prompt, and those of them in the cache.
        evicted: blocks that were evicted for it.
        wait, ttft, prefill_s: seconds from its arrival to its start and to its first token, and of its prefill.
    """

    tokens: int
    hits: int
    evicted: int
    wait: float
    ttft: float
    prefill_s: float


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

    def add(self, started: Started, cost: Cost, *, counted: bool) -> None:
        """Add a request that starts. ``counted``: it is after the warm-up."""
        self._count(started, cost, 1, counted=counted)
        if counted:
            self.waits.append(started.wait)
            self.ttft.append(started.ttft)

    def undo(self, started: Started, cost: Cost, *, counted: bool) -> None:
        """Take back what :meth:`add` added, because the request's engine has failed."""
        self._count(started, cost, -1, counted=counted)
        if counted:
            self.waits.remove(started.wait)
            self.ttft.remove(started.ttft)

    def _count(self, started: Started, cost: Cost, sign: int, *, counted: bool) -> None:
        self.all_prompt_tokens += sign * started.tokens
        self.all_hit_tokens += sign * started.hits
        if counted:
            self.requests += sign
            self.prompt_tokens += sign * started.tokens
            self.hit_tokens += sign * started.hits
            self.hit_shares += sign * started.hits / max(started.tokens, 1)
            self.prompt_flops += sign * cost.compute.of(started.tokens)
            self.saved_flops += sign * cost.compute.of(started.hits)
            self.evicted += sign * started.evicted
            self.prefill_s += sign * started.prefill_s

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


def together(results: Sequence[Result]) -> Result:
    """Return the counters of several engines as those of one. ``seconds`` is that of the run, so it is not added."""
    first = results[0]
    whole = Result({**dict.fromkeys(first.sources, 0)}, {**dict.fromkeys(first.unused, 0)})
    for result in results:
        for each in fields(Result):
            mine, other = getattr(whole, each.name), getattr(result, each.name)
            if isinstance(mine, dict):
                mine.update({name: mine[name] + count for name, count in other.items()})
            elif each.name != "seconds":
                setattr(whole, each.name, mine + other)
    return whole
