"""What is replayed: requests with their blocks, each arriving at a given time or some time after the turn before ended."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lpc.logs.traces import Trace
from lpc.simulator.names import Named


@dataclass(slots=True, eq=False)
class Turn:
    """One request. Of its attributes only the engine and the bounds look at `next`.

    Attributes:
        conversation, turn, category: whose, which (from 1), of which class.
        input_tokens, output_tokens: prompt with its history, and reply.
        contents: content ids of the full prompt blocks.
        all_contents: those and the full blocks that the reply completes, where a later prompt repeats them.
        index: its place in a trace; -1 in other workloads.
        arrival: seconds; of a closed workload set when the turn before has ended.
        gap: seconds between the end of the turn before and this one's arrival (closed workloads).
        next: the conversation's next turn, None at its end.
        probability: what a predictor said on arrival; None where none was asked.
        named: what a response cache calls it; None where none was asked, or the log does not tell.
    """

    conversation: str
    turn: int
    category: str
    input_tokens: int
    output_tokens: int
    contents: Sequence[int]
    all_contents: Sequence[int]
    index: int = -1
    arrival: float = 0.0
    gap: float = 0.0
    next: "Turn | None" = None
    probability: float | None = None
    named: Named | None = None


@dataclass(eq=False)
class Workload:
    """Requests to replay.

    Attributes:
        name: of the data.
        block_tokens: tokens per block.
        arrivals: turns that arrive by the clock, in order. In a closed workload each conversation's first.
        closed: whether later turns follow the end of the one before by their `gap`.
        count_from, until: hits are counted for arrivals in [count_from, until); seconds.
        seed: of what was drawn; 0 for a trace.
        think_time: mean seconds, of a closed workload.
        decodes: whether the engine that holds the cache also decodes. Mooncake's traces are of a pool that only prefills: a
            request's blocks are in use until its prompt is computed.
        trace: what the workload was made from, if that was a trace.
        history_by_turn: of other conversations of a synthetic workload: the share that goes on after turn 1, 2, ...
        history_gaps: seconds between turns, drawn like this workload's, but others.
    """

    name: str
    block_tokens: int
    arrivals: list[Turn]
    closed: bool
    count_from: float
    until: float
    seed: int = 0
    think_time: float | None = None
    decodes: bool = True
    trace: Trace | None = field(default=None, repr=False)
    history_by_turn: Sequence[float] = (0.8,)
    history_gaps: Sequence[float] = (100.0,)

    def working_set_tokens(self) -> int:
        """Return the tokens of all different blocks that prompts of the workload have: what an infinite cache would hold."""
        seen: set[int] = set()
        for first in self.arrivals:
            turn: Turn | None = first
            while turn is not None:
                seen.update(turn.contents)
                turn = turn.next if self.closed else None
        return len(seen) * self.block_tokens


def from_trace(trace: Trace, *, count_from: float | None = None, decodes: bool = True) -> Workload:
    """Return a trace as a workload: requests arrive when they did.

    The ids tell of prompts only, so a reply's blocks have no content that could be hit; the next prompt computes them.

    Args:
        count_from: seconds; default: half of the trace, so that what is learnt is learnt on the first half.
        decodes: see `Workload`.
    """
    turns: list[Turn] = []
    latest: dict[str, Turn] = {}
    for request in trace.requests:
        contents = request.blocks[: request.input_tokens // trace.block_tokens]
        turn = Turn(
            request.conversation,
            request.turn,
            request.category,
            request.input_tokens,
            request.output_tokens,
            contents,
            contents,
            len(turns),
            request.arrival,
        )
        before = latest.get(request.conversation)
        if before is not None:
            before.next = turn
        latest[request.conversation] = turn
        turns.append(turn)
    start = trace.duration / 2 if count_from is None else count_from
    return Workload(trace.name, trace.block_tokens, turns, False, start, float("inf"), decodes=decodes, trace=trace)
