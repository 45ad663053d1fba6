"""Serves conversations on real vLLM, stock or with the plug-in. Call `testing.vllm_settings.settle` before the import.

Time is virtual: a step takes STEP_S, and think times pass at once. So arrivals are the same on all sides and machines.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from vllm import SamplingParams
from vllm.inputs import TokensPrompt

from eviction_client.background import AtOnce
from eviction_client.settings import ClientSettings
from eviction_client.transport.predictor import Predictor
from eviction_client.transport.scripted_predictor import CONTINUES, OVER, ScriptedPredictor
from lpc_apps.tiny_llama import SPECIAL
from testing.engine_internals import watch_preemptions
from testing.tiny_engine import TinyEngine

STEP_S: Final = 0.05
REPLY: Final = 24
"""Tokens of a reply."""
THINK_S: Final = 100.0
"""Mean think time, seconds."""
ACTIVE: Final = 48
"""Concurrent conversations."""


@dataclass
class Served:
    """Results of one engine."""

    outputs: dict[str, list[int]] = field(default_factory=dict)
    evicted: list[int] = field(default_factory=list)
    tier_evicted: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    prompt_tokens: int = 0
    preemptions: int = 0
    counters: dict[str, float] = field(default_factory=dict)


def serve(
    model: Path,
    texts: dict[str, list[list[int]]],
    blocks: int,
    *,
    predictor: Predictor | None = None,
    learned: bool = True,
    think_s: float = THINK_S,
    reply: int = REPLY,
    connector: dict[str, Any] | None = None,
    **settings: Any,
) -> Served:
    """Serve conversations (token ids of each user turn) on real vLLM with so many blocks.

    Args:
        reply: tokens of a reply.
        connector: configuration of a KV connector, vLLM's ``--kv-transfer-config``.
        settings: of the plug-in.
    """
    now = [1e9]
    attributes = {
        "settings": ClientSettings(**{"pooling": "off", **settings}),
        "clock": staticmethod(lambda: now[0]),
        "background": AtOnce,
        "open_predictor": staticmethod(lambda *_: predictor or ScriptedPredictor()),
    }
    options = {"max_model_len": 7168, "max_num_seqs": 16, **({"kv_transfer_config": connector} if connector else {})}
    tiny = TinyEngine(model, blocks, learned=attributes if learned else None, **options)
    engine, scheduler = tiny.engine, tiny.scheduler
    served = Served(evicted=tiny.evicted, tier_evicted=tiny.tier_evicted)

    def note() -> None:
        served.preemptions += 1

    watch_preemptions(scheduler, note)
    # A parser of the token ids would take a special token in a reply for the start of a message.
    plain = dict.fromkeys(range(len(SPECIAL)), -100.0)
    parameters = SamplingParams(temperature=0, max_tokens=reply, ignore_eos=True, detokenize=False, logit_bias=plain)
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
    if learned:
        served.counters = tiny.counters()
    del engine, scheduler
    tiny.close()
    return served


def oracle(texts: dict[str, list[list[int]]]) -> Callable[[str], int]:
    """Return a function from a request's id to its group, which depends on whether the conversation continues."""

    def group(request: str) -> int:
        name, _, i = request.partition("-")[0].rpartition("/")
        return CONTINUES if int(i) + 1 < len(texts[name]) else OVER

    return group


def drawn(conversations: int) -> dict[str, list[list[int]]]:
    """Return token ids of the user turns of conversations with one system prompt. Half of them have one turn."""
    rng = random.Random(8)
    system = [rng.randrange(6, 250) for _ in range(64)]
    texts = {}
    for n in range(conversations):
        turns = 1 if rng.random() < 0.5 else rng.randint(2, 4)
        text = [[rng.randrange(6, 250) for _ in range(rng.randint(60, 200))] for _ in range(turns)]
        texts[f"c{n}"] = [system + text[0], *text[1:]]
    return texts
