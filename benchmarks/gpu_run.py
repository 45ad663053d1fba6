"""One step of benchmark `gpu`: `python -m benchmarks.gpu_run JOB`. The last line of its output is the figures, as JSON.

A step runs in the environment that has its libraries: ONNX Runtime with CUDA, or vLLM. JOB is a JSON object with the name of a
function in `RUNS` (``run``) and the function's arguments.
"""

import asyncio
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

WORDS: Final = 700
"""Words of a prompt, which the model shortens to its 512 tokens."""
PROMPTS: Final = 256
"""Different prompts of the measured batches."""
MEASURED_S: Final = 10.0
SERVED: Final = 2_000
"""Most predictions that the service is asked for; a tenth on a CPU."""
REPLY: Final = 16
ROUNDS: Final = 12
RETURNS: Final = 0.7
"""Probability that a conversation of the last round has another turn in the next one."""


def memory_mib(device: str) -> float:
    """Return the memory in use on the first GPU by all processes, or of this process on a CPU, MiB."""
    if device == "cuda":
        asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return float(subprocess.run(asked, capture_output=True, text=True, check=True, timeout=20).stdout.split()[0])
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def prompts(count: int, seed: int = 0) -> list[str]:
    """Return texts of WORDS random words."""
    draws = random.Random(seed)
    words = ["".join(draws.choices("etaoinshrdlu", k=draws.randint(2, 8))) for _ in range(2_000)]
    return [" ".join(draws.choices(words, k=WORDS)) for _ in range(count)]


def predictions(*, device: Literal["cpu", "cuda"], artefact: str) -> dict[str, Any]:
    """Return predictions/s of the bare session at the model's token limit, tokenised in advance, and its memory."""
    from lpc.model.conversation import UserTurns
    from lpc.model.inference import Model
    from lpc.model.session import InferenceSettings
    from predictor_service.batching.budget import BATCH_TOKENS

    before = memory_mib(device)
    model = Model(Path(artefact), InferenceSettings(device))
    features = [model.encode(UserTurns((prompt,), 1)) for prompt in prompts(PROMPTS)]
    tokens = max(len(one.input_ids) for one in features)
    size = max(BATCH_TOKENS[model.provider] // tokens, 1)
    batches = [features[at : at + size] for at in range(0, len(features), size)]
    model.run(batches[0])
    done, number, began = 0, 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < MEASURED_S:
        batch = batches[number % len(batches)]
        model.run(batch)
        done, number = done + len(batch), number + 1
    return {
        "provider": model.provider,
        "precision": model.manifest.precision,
        "tokens": tokens,
        "batch": size,
        "predictions_per_second": round(done / spent, 1),
        "memory_mib": round(memory_mib(device) - before),
    }


def service(*, device: Literal["cpu", "cuda"], models: str, model: str) -> dict[str, Any]:
    """Return predictions/s of the sidecar over gRPC with prompts of the model's token limit, tokenised by it."""
    from benchmarks.predict import service_saturated
    from lpc.v1 import predictor_pb2 as pb
    from testing.processes import Sidecar

    before = memory_mib(device)
    count = SERVED if device == "cuda" else SERVED // 10
    asked = []
    for prompt in prompts(count, seed=1):
        chat = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content=prompt)])
        asked.append(pb.PredictRequest(conversation=pb.Conversation(chat=chat)))
    with (
        tempfile.TemporaryDirectory(prefix="lpc-") as folder,
        Sidecar(Path(folder), Path(models), model, provider=device) as sidecar,
    ):
        asyncio.run(service_saturated(sidecar.address, asked[: count // 10]))
        took = asyncio.run(service_saturated(sidecar.address, asked))
        used = memory_mib(device) - before if device == "cuda" else sidecar.rss_mib
    return {"predictions_per_second": round(count / took, 1), "memory_mib": round(used)}


def build_model(*, folder: str, shape: Mapping[str, Any]) -> dict[str, Any]:
    """Write a Llama with random weights; return its folder."""
    from lpc_apps.tiny_llama import build

    return {"model": str(build(Path(folder), weights=True, shape=shape))}


def traffic(*, conversations: int, opening: int, further: int, vocabulary: int, seed: int = 0) -> list[list[list[int]]]:
    """Return rounds of prompts, as token ids.

    In each round, so many conversations send a prompt. RETURNS of them send a longer one in the next round; strangers take the
    places of the others. The replies in the prompts are made up, so all engines get the same prompts.
    """
    draws = random.Random(seed)

    def text(tokens: int) -> list[int]:
        return [draws.randrange(10, vocabulary) for _ in range(tokens)]

    live = [text(opening) for _ in range(conversations)]
    rounds = []
    for _ in range(ROUNDS):
        rounds.append([list(prompt) for prompt in live])
        live = [prompt + text(further) if draws.random() < RETURNS else text(opening) for prompt in live]
        draws.shuffle(live)
    return rounds


def engine(
    *, model: str, learned: bool, conversations: int, opening: int, further: int, blocks: int, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Serve :func:`traffic` with vLLM, stock or with the plug-in as an operator configures it.

    Return seconds after the first round, prompt tokens, those from the cache, and a digest of each request's tokens.
    """
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    named = {"scheduler_cls": "eviction_client.engines.vllm.LearnedScheduler"} if learned else {}
    llm = LLM(
        model,
        num_gpu_blocks_override=blocks,
        max_model_len=opening + (ROUNDS - 1) * further + REPLY,
        enable_prefix_caching=True,
        seed=0,
        **named,
        **options,
    )
    vocabulary = min(llm.get_tokenizer().vocab_size, 30_000)
    parameters = SamplingParams(temperature=0, max_tokens=REPLY, ignore_eos=True, detokenize=False)
    sent = traffic(conversations=conversations, opening=opening, further=further, vocabulary=vocabulary)
    digests: list[str] = []
    cached = prompt_tokens = 0
    began = time.perf_counter()
    for number, asked in enumerate(sent):
        if number == 1:
            began = time.perf_counter()
        outputs = llm.generate([TokensPrompt(prompt_token_ids=ids) for ids in asked], parameters, use_tqdm=False)
        for output in outputs:
            digests.append(hashlib.blake2b(repr(list(output.outputs[0].token_ids)).encode(), digest_size=6).hexdigest())
            if number:
                cached += output.num_cached_tokens or 0
                prompt_tokens += len(output.prompt_token_ids or ())
    return {
        "seconds": round(time.perf_counter() - began, 2),
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached,
        "digests": digests,
    }


RUNS: Final[Mapping[str, Callable[..., dict[str, Any]]]] = {
    "predictions": predictions,
    "service": service,
    "build_model": build_model,
    "engine": engine,
}


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    print(json.dumps(RUNS[job.pop("run")](**job)))
