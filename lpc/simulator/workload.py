"""What is replayed: requests with their blocks, each arriving at a given time or some time after the turn before ended."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from lpc.logs.traces import Trace, TracedRequest
from lpc.simulator.segments import Paths


@dataclass(frozen=True)
class Cost:
    """Rates of an engine.

    Attributes:
        prefill_tokens_s: tokens computed per second.
        output_token_s: seconds per output token.
        batch_tokens: of a closed loop: prompt tokens of an engine step, which also decodes a token of each reply under way
            (chunked prefill). None: prompts and replies do not slow each other down, as on separate devices.
    """

    prefill_tokens_s: float = 20_000.0
    output_token_s: float = 0.01
    batch_tokens: int | None = None

    @property
    def prompt_token_s(self) -> float:
        """Seconds per prompt token, with its share of the decoding in its step."""
        return 1 / self.prefill_tokens_s + (self.output_token_s / self.batch_tokens if self.batch_tokens else 0.0)

    @property
    def step_s(self) -> float:
        """Seconds per output token while no prompt is computed, above 0."""
        return max(self.output_token_s, 1e-9)

    @property
    def mixed_step_s(self) -> float:
        """Seconds per output token while a prompt is computed."""
        return self.step_s + (self.batch_tokens / self.prefill_tokens_s if self.batch_tokens else 0.0)


@dataclass(slots=True, eq=False)
class Turn:
    """One request. Of its attributes only the engine and the bounds look at `next`.

    Attributes:
        conversation, turn, category: whose, which (from 1), of which class.
        input_tokens, output_tokens: prompt with its history, and reply.
        contents: content ids of the full prompt blocks.
        all_contents: those and the full blocks that the reply completes, where the log shows them.
        index: its place in a trace; -1 in other workloads.
        arrival: seconds; of a closed workload set when the turn before has ended.
        gap: seconds between the end of the turn before and this one's arrival (closed workloads).
        next: the conversation's next turn, None at its end.
        probability: what a predictor said on arrival; None where none was asked.
        reply_end: how the reply ended, as an engine sees it; empty: unknown.
        priority: the lower, the sooner it is served by an engine that goes by priorities.
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
    reply_end: str = ""
    priority: int = 0
    named: bytes | None = None


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """How sessions follow one another where the load depends on the engine: so many at a time, a new one when one ends.

    Attributes:
        sessions: at a time.
        requests: the run ends when so many have been served.
        warm_up: hits are counted after so many.
    """

    sessions: int
    requests: int
    warm_up: int


@dataclass(eq=False)
class Workload:
    """Requests to replay.

    Attributes:
        name: of the data.
        block_tokens: tokens per block.
        arrivals: turns that arrive by the clock, in order. In a closed workload each conversation's first.
        closed: whether later turns follow the end of the one before by their `gap`.
        count_from, until: hits are counted for arrivals in [count_from, until); seconds. Of a closed loop both are infinite.
        seed: of what was drawn; 0 for a trace.
        think_time: mean seconds, of a closed workload.
        decodes: whether the engine that holds the cache also decodes. Mooncake's traces are of a pool that only prefills: a
            request's blocks are in use until its prompt is computed.
        trace: what the workload was made from, if that was a trace.
        loop: how sessions follow one another; None where conversations start by the clock.
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
    loop: ClosedLoop | None = None

    def turns(self) -> Iterator[Turn]:
        """Return all turns; those of a closed workload by conversation."""
        for first in self.arrivals:
            turn: Turn | None = first
            while turn is not None:
                yield turn
                turn = turn.next if self.closed else None

    @cached_property
    def paths(self) -> Paths:
        """The turns' blocks in segments; turns and their contents must not change after the first use."""
        return Paths(self.turns())

    def working_set_tokens(self) -> int:
        """Return the tokens of all different blocks that prompts of the workload have: what an infinite cache would hold."""
        return self.paths.prompt_blocks() * self.block_tokens


def from_trace(trace: Trace, *, count_from: float | None = None, decodes: bool = True) -> Workload:
    """Return a trace as a workload: requests arrive when they did.

    An engine that decodes keeps the full blocks of replies. Their ids are the trace's where it has the text. Else they are
    those of the conversation's next prompt, if that repeats this prompt and goes on: the reply is taken to stand there.

    Args:
        count_from: seconds; default: half of the trace.
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
            reply_end=request.reply_end,
            priority=request.priority,
        )
        before = latest.get(request.conversation)
        if before is not None:
            before.next = turn
        latest[request.conversation] = turn
        turns.append(turn)
    if decodes:
        for turn, request in zip(turns, trace.requests, strict=True):
            turn.all_contents = _with_reply(turn, request, trace.block_tokens)
    start = trace.duration / 2 if count_from is None else count_from
    return Workload(trace.name, trace.block_tokens, turns, False, start, float("inf"), decodes=decodes, trace=trace)


def _with_reply(turn: Turn, request: TracedRequest, block_tokens: int) -> Sequence[int]:
    """Return the content ids of the full blocks of prompt and reply, as far as the trace shows them."""
    prompt = tuple(turn.contents)
    known = request.with_reply
    if known is None and turn.next is not None and tuple(turn.next.contents[: len(prompt)]) == prompt:
        known = tuple(turn.next.contents)
    full = (turn.input_tokens + turn.output_tokens) // block_tokens
    return prompt if known is None or full <= len(prompt) else prompt + known[len(prompt) : full]
