"""The side of benchmark `costs` in vLLM's environment: times of prompts whose beginning is cached, and is not."""

import random
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from lpc_apps.tiny_llama import BLOCK

LETTERS: Final = range(20, 200)
WARM_TOKENS: Final = 512


def costs(
    *,
    model: str,
    contexts: Sequence[int],
    prompts: Sequence[int],
    rounds: int,
    shares: Sequence[float],
    length: int,
    requests: int,
    seats: int,
) -> dict[str, Any]:
    """Return seconds to the first token by context and prompt, and prompt tokens/s by share of cached tokens.

    Args:
        contexts: tokens of the conversation before the prompt, cached (``hit``) or not (``miss``).
        prompts: new tokens.
        shares: of a prompt's ``length`` tokens that are cached; ``requests`` of each share, ``seats`` at a time.
    """
    from vllm import LLM

    most = max(max(contexts) + max(prompts), length) + BLOCK
    llm = LLM(
        model,
        enforce_eager=True,
        block_size=BLOCK,
        max_model_len=most,
        max_num_seqs=seats,
        max_num_batched_tokens=2048,
        kv_cache_memory_bytes=2**31,
        enable_prefix_caching=True,
        dtype="float32",
    )
    draws = random.Random(0)
    _served(llm, [_text(draws, WARM_TOKENS)])
    first = []
    for context in contexts:
        for prompt in prompts:
            times: dict[str, list[float]] = {"miss": [], "hit": []}
            for _ in range(rounds):
                history = _text(draws, context)
                for side in times:  # what the miss computes the hit finds
                    times[side].append(_served(llm, [history + _text(draws, prompt)])[0])
            first.append({"context": context, "prompt": prompt, **{side: median(took) for side, took in times.items()}})
    rates = []
    for share in shares:
        runs = []
        for _ in range(rounds):
            cached = int(share * length) // BLOCK * BLOCK
            head = _text(draws, cached)
            if head:
                _served(llm, [head + _text(draws, BLOCK)])
            sent = [head + _text(draws, length - cached) for _ in range(requests)]
            took, hits = _served(llm, sent)
            runs.append((requests * length / took, hits / (requests * length)))
        rates.append({"share": share, "hit_rate": median(hit for _, hit in runs), "tokens_s": median(rate for rate, _ in runs)})
    return {"first": first, "rates": rates}


def _text(draws: random.Random, tokens: int) -> list[int]:
    return draws.choices(LETTERS, k=tokens)


def _served(llm: Any, prompts: list[list[int]]) -> tuple[float, int]:
    """Return the seconds until all prompts have one token, and their cached tokens."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    asked = [TokensPrompt(prompt_token_ids=ids) for ids in prompts]
    began = time.perf_counter()
    outputs = llm.generate(asked, SamplingParams(temperature=0, max_tokens=1, detokenize=False), use_tqdm=False)
    return time.perf_counter() - began, sum(output.num_cached_tokens or 0 for output in outputs)


def build(*, folder: str, shape: dict[str, Any]) -> dict[str, Any]:
    """Write a Llama of this shape with random weights; return its folder."""
    from lpc_apps.tiny_llama import build as build_model

    return {"model": str(build_model(Path(folder), weights=True, shape=shape))}
