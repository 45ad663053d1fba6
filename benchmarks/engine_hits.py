"""Hits of benchmark `engine`: the same conversations on real vLLM with stock, a constant prior, an oracle and the sidecar.

Time is virtual: a step takes STEP_S, think times pass at once. So all sides see the same arrivals, whatever the machine does.
"""

import heapq
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from vllm import SamplingParams
from vllm.inputs import TokensPrompt

from benchmarks.tiny_engine import TinyEngine
from benchmarks.tiny_llama import SPECIAL
from benchmarks.told import CONTINUES, OVER, Told
from eviction_client.background import AtOnce
from eviction_client.messages import Prediction
from eviction_client.offer import TokenizerState
from eviction_client.plugin import MOST_FAILURES, Predictor
from eviction_client.predictor_client import PredictorClient
from eviction_client.prior import ReuseCurves
from eviction_client.settings import ClientSettings

STEP_S: Final = 0.05
REPLY: Final = 24
"""Tokens of a reply."""
THINK_S: Final = 100.0
BUSY_S: Final = 1.0
"""Mean think time, seconds, of the run in which requests are so many at a time that some are preempted."""
ACTIVE: Final = 48
"""Conversations that are under way at a time."""
ANSWER_WITHIN_S: Final = 30.0
"""Real time that a virtual request waits for the sidecar at its end: in virtual time requests take milliseconds."""


class Patient:
    """The real sidecar's answers, waited for: what they are worth, not how fast they come."""

    def __init__(self, client: PredictorClient) -> None:
        self._client = client
        self.told: dict[Hashable, float] = {}
        self.ask = client.ask
        self.forget = client.forget
        self.close = client.close

    def take(self, request_id: Hashable) -> Prediction | None:
        """Wait for the answer."""
        until = time.monotonic() + ANSWER_WITHIN_S
        while (answer := self._client.take(request_id)) is None and self._client.waiting and time.monotonic() < until:
            if not self._client.healthy:
                raise SystemExit("the sidecar went away")
            time.sleep(0.002)
        if answer is not None:
            self.told[request_id] = answer.probability
        return answer

    @property
    def reuse_curves(self) -> ReuseCurves | None:
        """The client's."""
        return self._client.reuse_curves

    @property
    def healthy(self) -> bool:
        """The client's."""
        return self._client.healthy

    @property
    def counters(self) -> Any:
        """The client's."""
        return self._client.counters

    @property
    def tokenizer_state(self) -> TokenizerState:
        """The client's."""
        return self._client.tokenizer_state


@dataclass
class Served:
    """What one engine did with the workload."""

    outputs: dict[str, list[int]] = field(default_factory=dict)
    evicted: list[int] = field(default_factory=list)
    tier_evicted: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    prompt_tokens: int = 0
    preemptions: int = 0
    seconds: float = 0.0
    counters: dict[str, float] = field(default_factory=dict)


def serve(
    model: Path,
    texts: dict[str, list[list[int]]],
    blocks: int,
    *,
    predictor: Predictor | None = None,
    learned: bool = True,
    think_s: float = THINK_S,
    connector: dict[str, Any] | None = None,
    learns: bool = True,
    **settings: Any,
) -> Served:
    """Serve conversations (token ids of each user turn) on real vLLM with so many blocks.

    Args:
        connector: configuration of a KV connector, as of vLLM's ``--kv-transfer-config``.
        learns: else least recent use stays in force, and nothing is kept: the order is stock's.
        settings: of the plug-in.
    """
    now = [1e9]
    attributes = {
        "settings": ClientSettings(**{"pooling": "off", "keep_waiting": learns, **settings}),
        "clock": staticmethod(lambda: now[0]),
        "background": AtOnce,
        "open_predictor": staticmethod(lambda *_: predictor or Told(lambda _: None)),
    }
    options = {"max_model_len": 7168, "max_num_seqs": 16, **({"kv_transfer_config": connector} if connector else {})}
    tiny = TinyEngine(model, blocks, learned=attributes if learned else None, **options)
    engine, scheduler = tiny.engine, tiny.scheduler
    if learned and not learns:
        scheduler.lpc.plugin.guard_failures = MOST_FAILURES
    served = Served(evicted=tiny.evicted, tier_evicted=tiny.tier_evicted)
    stock_preempt = scheduler._preempt_request

    def preempt(*args: Any, **kwargs: Any) -> None:
        served.preemptions += 1
        stock_preempt(*args, **kwargs)

    scheduler._preempt_request = preempt
    # A special token in a reply would look like the start of a message to whoever reads the token ids.
    plain = dict.fromkeys(range(len(SPECIAL)), -100.0)
    parameters = SamplingParams(temperature=0, max_tokens=REPLY, ignore_eos=True, detokenize=False, logit_bias=plain)
    history: dict[str, list[int]] = {name: [] for name in texts}
    rng = random.Random(3)
    waits = {name: [rng.expovariate(1 / think_s) for _ in turns] for name, turns in texts.items()}
    queue, numbers = list(texts), itertools.count()
    arrivals: list[tuple[float, int, str, int]] = []

    def begin() -> None:
        if queue:
            name = queue.pop(0)
            heapq.heappush(arrivals, (now[0] + waits[name][0], next(numbers), name, 0))

    for _ in range(ACTIVE):
        begin()
    started = time.perf_counter()
    while arrivals or engine.has_unfinished_requests():
        if not engine.has_unfinished_requests():
            now[0] = max(now[0], arrivals[0][0])
        while arrivals and arrivals[0][0] <= now[0]:
            _, _, name, i = heapq.heappop(arrivals)
            history[name] += texts[name][i]
            engine.add_request(f"{name}/{i}", TokensPrompt(prompt_token_ids=list(history[name])), parameters)
        now[0] += STEP_S
        for output in engine.step():
            if not output.finished:
                continue
            # vLLM may append a random part to the id; ours has a slash before the turn.
            name, _, i = output.request_id.partition("-")[0].rpartition("/")
            tokens = list(output.outputs[0].token_ids)
            served.outputs[f"{name}/{i}"] = tokens
            served.cached_tokens += output.num_cached_tokens or 0
            served.prompt_tokens += len(output.prompt_token_ids)
            history[name] += tokens
            if int(i) + 1 < len(texts[name]):
                heapq.heappush(arrivals, (now[0] + waits[name][int(i) + 1], next(numbers), name, int(i) + 1))
            else:
                begin()
    served.seconds = time.perf_counter() - started
    if learned:
        served.counters = tiny.counters()
    del engine, scheduler
    tiny.close()
    return served


def goes_on(texts: dict[str, list[list[int]]], request: str) -> bool:
    """Return whether the conversation of a request has a further turn."""
    # vLLM may append a random part to the id; ours has a slash before the turn.
    name, _, i = request.partition("-")[0].rpartition("/")
    return int(i) + 1 < len(texts[name])


def oracle(texts: dict[str, list[list[int]]]) -> Callable[[str], int]:
    """Return the group that a predictor would give that knows whether a request's conversation goes on."""
    return lambda request: CONTINUES if goes_on(texts, request) else OVER


def hit_runs(
    model: Path, texts: dict[str, list[list[int]]], capacities: Sequence[int], address: str | None, *, busy: bool
) -> dict[str, Any]:
    """Serve the same conversations with stock vLLM, a constant prior, an oracle and the sidecar, at several capacities.

    Args:
        busy: first with the fewest blocks and hardly any think time, for the preemptions that this brings.
    """
    rows = []
    identical, same_order = True, True
    for blocks, think_s in [*([(capacities[0], BUSY_S)] if busy else []), *((blocks, THINK_S) for blocks in capacities)]:
        stock = serve(model, texts, blocks, learned=False, think_s=think_s)
        constant = serve(model, texts, blocks, think_s=think_s, learns=False)
        told = serve(model, texts, blocks, predictor=Told(oracle(texts)), think_s=think_s, guard=False)
        sides = {"stock": stock, "constant_prior": constant, "oracle": told}
        row: dict[str, Any] = {"blocks": blocks, "think_s": think_s, "requests": len(stock.outputs)}
        row |= {"prompt_tokens": stock.prompt_tokens, "evictions": len(stock.evicted), "preemptions": stock.preemptions}
        if address is not None:
            client = PredictorClient(address, served_model="tiny", timeout_s=120)
            patient = Patient(client)
            while not client.healthy:
                time.sleep(0.1)
            sides["predictor"] = serve(model, texts, blocks, predictor=patient, think_s=think_s)
            row["predictor_auc"] = _auc(patient.told, lambda request: goes_on(texts, request))
            row["counters"] = sides["predictor"].counters
        identical = identical and all(side.outputs == stock.outputs for side in sides.values())
        same_order = same_order and constant.evicted == stock.evicted
        row["cached_tokens"] = {name: side.cached_tokens for name, side in sides.items()}
        row["seconds"] = {name: round(side.seconds, 1) for name, side in sides.items()}
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return {"tokens_identical": identical, "eviction_order_identical": same_order, "rows": rows}


def _auc(told: dict[Hashable, float], truth: Callable[[str], bool]) -> float:
    """Return how often a turn that has a successor was given a higher probability than one that has none; ties half."""
    on, over = (np.array([p for name, p in told.items() if truth(str(name)) == kind]) for kind in (True, False))
    above = (on[:, None] > over[None, :]).mean() + (on[:, None] == over[None, :]).mean() / 2
    return round(float(above), 3)
