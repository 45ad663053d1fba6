"""Figures 4, 5 and 9 of the paper: hit rates by cache size and by think time, in the simulator."""

import json
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks.paper.data import Data
from benchmarks.paper.tables import PROMPTS, pooled
from benchmarks.paper.texts import embed_texts
from benchmarks.rules.runs import rows_of
from lpc.model.conversation import UserTurns, is_user_turn
from lpc_apps.logs.datasets.conversation import Conversation, conversation_key, split_of
from lpc_apps.simulator.conversation_log import read_conversations
from lpc_apps.simulator.conversations import save_sample
from lpc_apps.simulator.run import SimulationRun, WorkloadSpec
from lpc_apps.training.head import Head

THINK_TIMES_S: Final = (50.0, 100.0, 200.0)
AT: Final = 160_000
"""Tokens of the cache, by think time: the paper's 40 GB."""
POLICIES: Final = ("lru", "lpc", "plugin", "plugin-sidecar", "oracle")

Rows = list[dict[str, Any]]


class WindowScorer:
    """Predicts with a head on pooled embeddings. ``window``: number of the last user prompts that it reads."""

    window = PROMPTS.window

    def __init__(self, head: Head, artifact: Path, stored: Path) -> None:
        self._head, self._artifact, self._stored = head, artifact, stored

    def probabilities(self, turns: Sequence[UserTurns]) -> list[float]:
        """Return the probability that another user turn follows, for each request."""
        vectors = embed_texts({text for turn in turns for text in turn.prompts}, self._artifact, self._stored)
        embedding = np.stack([pooled(turn.prompts, vectors) for turn in turns])
        counts = np.array([[turn.turn_count] for turn in turns], np.float32)
        with torch.inference_mode():
            found: list[float] = torch.sigmoid(self._head(torch.from_numpy(embedding), torch.from_numpy(counts))).tolist()
        return found


def held_out(data: Data) -> list[Conversation]:
    """Return the conversations of the evaluation half of seed 0."""
    return [
        one
        for one in data.conversations
        if split_of(conversation_key(next((m.content for m in one.messages if is_user_turn(m)), ""))) == "evaluation"
    ]


def prepare(data: Data, scorer: WindowScorer, folder: Path) -> Path:
    """Return a file in ``folder`` with the tokens of the held-out conversations and the head's probabilities."""
    text = "".join(
        json.dumps({"id": one.id, "messages": [message._asdict() for message in one.messages]}) + "\n" for one in held_out(data)
    )
    log = folder / f"{data.name}.jsonl"
    log.write_text(text, "utf-8")
    read = read_conversations(log, scorer)
    digest = blake2b(repr([(one.prompts, one.replies, one.probability) for one in read.found]).encode(), digest_size=6)
    found = folder / f"{data.name}-{digest.hexdigest()}.json.gz"
    if not found.exists():
        save_sample(replace(read, reading=(read.reading or {}) | {"file": data.name}), found)
    return found


def runs_of(conversations: Sequence[Path], sizes: Sequence[int], seeds: Sequence[int]) -> list[SimulationRun]:
    """Return the runs: all sizes, in tokens, at the usual think time, and all think times at one size; seed by seed."""
    found = []
    for seed in seeds:
        for file in conversations:
            for think_time in THINK_TIMES_S:
                spec = WorkloadSpec(conversations=file, think_time=think_time, seed=seed)
                at = sizes if think_time == WorkloadSpec.think_time else (AT,)
                found += [SimulationRun(spec, policy, size) for size in at for policy in POLICIES]
    return found


def simulate(conversations: Sequence[Path], sizes: Sequence[int], seeds: Sequence[int], stored: Path, jobs: int) -> Rows:
    """Return the rows of all data sets; finished runs in ``stored`` are not repeated."""
    rows = rows_of(runs_of(conversations, sizes, seeds), stored, jobs=jobs)
    return [{key: value for key, value in row.items() if key != "log"} | {"by_fraction": False} for row in rows]
