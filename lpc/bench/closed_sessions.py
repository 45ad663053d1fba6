"""The sessions of `lpc bench engine --closed`: recorded coding agents, or drawn ones, made fit for the tiny model.

Drawn sessions have the sizes that `lpc.simulator.workloads.agents` gives for its recorded ones, not cut to a third as there:
prompts of 64K tokens at the median, bursts of tool calls some seconds apart, minutes until a human answers, and compaction.
"""

import random
import statistics
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np

from lpc.bench.engine_trace import coarser, rows_of
from lpc.bench.tiny_llama import BLOCK
from lpc.errors import UsageError
from lpc.logs.traces import Trace, TracedRequest, open_trace
from lpc.simulator.workloads.lengths import lognormal
from lpc.simulator.workloads.timeline import Prefix

FORMAT: Final = "agents"
"""The only format of logs with whole sessions and the time that tools and users took."""
MOST_TOKENS: Final = 2**18
"""Tokens of the longest prompt; sessions with a longer one are left out."""
MOST_BLOCKS: Final = 223
"""Engine blocks of the longest prompt: 7,136 tokens, so that a reply of 1,024 fits into the 8,192 of the tiny model."""
GAP_S: Final = (0.2, 3600.0)
"""The shortest and the longest gap, virtual seconds: a session that sleeps overnight keeps its place no longer than an hour."""
BETWEEN_S: Final = 1.0
"""Virtual seconds from the end of a session to the first request of the one that takes its place."""

BLOCK_TOKENS: Final = 128
MEAN_CALLS: Final = 24.0
MOST_DRAWN: Final = 40_000
HUMAN_SHARE: Final = 0.05


@dataclass(frozen=True)
class Sessions:
    """Sessions one after the other, in the order in which they begin.

    Attributes:
        trace: their requests, those of a session in a row.
        left_out: sessions with a prompt that is too long.
    """

    trace: Trace
    left_out: int

    @classmethod
    def read(cls, path: Path | None, trace_format: str, *, at_once: int, count: int) -> "Sessions":
        """Return the sessions of a log, or ``count`` drawn ones.

        The first ``at_once`` of them are met on their way, each at a request that is drawn: so contexts have their usual length
        from the start.

        Raises:
            TraceError: the log cannot be read.
            UsageError: its format has no sessions, or no prompt fits.
        """
        if path is None:
            whole = drawn(0, count)
        elif trace_format == FORMAT:
            whole = open_trace(path, trace_format)
        else:
            raise UsageError(f"a log of format {trace_format} has no sessions with gaps: use --format {FORMAT} with --closed")
        sessions: dict[str, list[TracedRequest]] = {}
        for request in whole.requests:
            sessions.setdefault(request.conversation, []).append(request)
        fitting = [rows for rows in sessions.values() if max(row.input_tokens for row in rows) <= MOST_TOKENS]
        if not fitting:
            raise UsageError(f"every session of {whole.name} has a prompt of more than {MOST_TOKENS:,} tokens")
        met = random.Random(0)
        for place, rows in enumerate(fitting[:at_once]):
            fitting[place] = rows[met.randrange(len(rows)) :]
        requests = [
            replace(row, gap=float(np.clip(row.gap, *GAP_S)) if place else BETWEEN_S)
            for rows in fitting
            for place, row in enumerate(rows)
        ]
        trace = coarser(Trace(whole.name, whole.block_tokens, requests, whole.start), MOST_BLOCKS)
        return cls(trace, len(sessions) - len(fitting))

    @property
    def count(self) -> int:
        """How many."""
        return len({request.conversation for request in self.trace.requests})

    @property
    def tokens_per_token(self) -> float:
        """Tokens of the log for each token of the engine."""
        return self.trace.block_tokens / BLOCK

    def live_blocks(self, at_once: int) -> int:
        """Return the blocks of the mean prompt times the sessions at a time."""
        return round(at_once * statistics.fmean(r.input_tokens for r in self.trace.requests) / self.trace.block_tokens)

    def written(self) -> dict[str, Any]:
        """Return what `trace_replay.Replay.read` takes."""
        gaps = (request.gap for request in self.trace.requests)
        rows = [[*row, gap] for row, gap in zip(rows_of(self.trace), gaps, strict=True)]
        return {"block_tokens": self.trace.block_tokens, "requests": rows}


def drawn(seed: int, sessions: int) -> Trace:
    """Return so many sessions, one after the other; times of arrival are of no meaning."""
    generator = np.random.default_rng(seed)
    fresh = count()
    requests: list[TracedRequest] = []
    for number in range(sessions):
        requests += _session(generator, f"s{number}", float(number), Prefix(fresh, BLOCK_TOKENS))
    return Trace("cliff", BLOCK_TOKENS, requests)


def _session(generator: np.random.Generator, name: str, at: float, text: Prefix) -> list[TracedRequest]:
    calls = int(generator.geometric(1 / MEAN_CALLS))
    new = np.minimum(lognormal(generator, 200, 1.2, calls), 8_000).astype(int) + 1
    new[0] = int(np.clip(lognormal(generator, 6_000, 0.5, 1)[0], 2_000, 14_000))
    replies = np.clip(lognormal(generator, 230, 0.9, calls), 20, 4_000).astype(int)
    human = generator.random(calls) < HUMAN_SHARE
    tool_s = np.clip(lognormal(generator, 6.0, 0.6, calls), 1.0, 60.0)
    pauses = np.where(human, np.clip(lognormal(generator, 90.0, 0.8, calls), 10.0, 1_800.0), tool_s).tolist()
    requests: list[TracedRequest] = []
    context, gap = 0, 0.0
    for prompt, reply, waits, pause in zip(new.tolist(), replies.tolist(), human.tolist(), pauses, strict=True):
        if context + prompt + reply > MOST_DRAWN:
            break
        context += prompt
        kind = "turn" if waits else "tool"
        requests.append(TracedRequest(at, context, reply, text.blocks(context), name, len(requests) + 1, kind, gap=gap))
        context, gap = context + reply, pause
    return requests
