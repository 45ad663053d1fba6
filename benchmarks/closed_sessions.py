"""The sessions of benchmark `engine --closed`, from a log or workload `cliff`, scaled to the tiny model."""

import random
import statistics
from dataclasses import dataclass, replace
from heapq import nlargest
from pathlib import Path
from typing import Any, Final

from benchmarks.engine_trace import coarser, rows_of
from lpc.errors import UsageError
from lpc_apps.logs.formats import open_trace
from lpc_apps.logs.traces import Trace, TracedRequest
from lpc_apps.simulator.sessions import PAUSE_S, Sessions, chain, closed_loop
from lpc_apps.simulator.workload import Turn, Workload, from_trace
from lpc_apps.simulator.workloads import WORKLOADS
from lpc_apps.tiny_llama import BLOCK

DRAWN: Final = "cliff"
MOST_TOKENS: Final = 2**18
"""Tokens of the longest prompt. Sessions with a longer one are left out."""
MOST_BLOCKS: Final = 63
"""Engine blocks of the longest prompt: 2,016 tokens. With them, a run of hundreds of requests takes minutes on a CPU."""


@dataclass(frozen=True)
class Course:
    """Sessions in the order in which they begin, enough for a run.

    Attributes:
        trace: their requests, session by session; the times of arrival have no meaning.
        gaps_s: seconds, by request, from the previous answer, or the end of the session before, to its arrival.
        left_out: number of sessions of the log with a prompt that is too long.
    """

    trace: Trace
    gaps_s: list[float]
    left_out: int

    @classmethod
    def read(cls, path: Path | None, trace_format: str, *, at_once: int, requests: int) -> "Course":
        """Return the sessions of a log, or else of workload `cliff`. If they do not suffice, they repeat with other blocks.

        The first ``at_once`` sessions start at a random request, so that contexts have their usual length from the start.

        Args:
            path, trace_format: the log.
            at_once: number of concurrent sessions.
            requests: number of answers after which a run ends.

        Raises:
            TraceError: the log cannot be read.
            UsageError: no session fits.
        """
        workload = WORKLOADS[DRAWN]() if path is None else closed_loop(from_trace(open_trace(path, trace_format)), at_once)
        fitting = [first for first in workload.arrivals if max(turn.input_tokens for turn in chain(first)) <= MOST_TOKENS]
        if not fitting:
            raise UsageError(f"every session of {workload.name} has a prompt of more than {MOST_TOKENS:,} tokens")
        sessions = _sessions(replace(workload, arrivals=fitting), at_once, requests)
        trace = Trace(workload.name, workload.block_tokens, [_request(turn) for session in sessions for turn in session])
        gaps = [turn.gap if place else PAUSE_S for session in sessions for place, turn in enumerate(session)]
        return cls(coarser(trace, MOST_BLOCKS), gaps, len(workload.arrivals) - len(fitting))

    @property
    def tokens_per_token(self) -> float:
        """Tokens of the log per token of the engine."""
        return self.trace.block_tokens / BLOCK

    def live_blocks(self, at_once: int) -> int:
        """Return the blocks of the mean prompt times the number of concurrent sessions."""
        return round(at_once * statistics.fmean(r.input_tokens for r in self.trace.requests) / self.trace.block_tokens)

    def written(self) -> dict[str, Any]:
        """Return the input of `trace_replay.Replay.read`."""
        rows = [[*row, gap] for row, gap in zip(rows_of(self.trace), self.gaps_s, strict=True)]
        return {"block_tokens": self.trace.block_tokens, "requests": rows}


def _sessions(workload: Workload, at_once: int, requests: int) -> list[list[Turn]]:
    """Return enough sessions to replace each that ends before this many requests are answered."""
    drawn, met = Sessions(workload), random.Random(workload.seed)
    first = [list(chain(drawn.start(0.0))) for _ in range(at_once)]
    later: list[list[Turn]] = []
    lengths: list[int] = []
    # When the last one begins, fewer than at_once are unfinished.
    while sum(lengths) - sum(nlargest(at_once, lengths)) < requests:
        later.append(list(chain(drawn.start(0.0))))
        lengths.append(len(later[-1]))
    return [session[met.randrange(len(session)) :] for session in first] + later


def _request(turn: Turn) -> TracedRequest:
    return TracedRequest(
        turn.arrival, turn.input_tokens, turn.output_tokens, tuple(turn.contents), turn.conversation, turn.turn, turn.category
    )
