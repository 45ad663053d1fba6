"""Workloads: requests with their blocks. A request arrives at a fixed time, or some time after the previous turn's end."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, islice
from typing import Any, Final

from lpc_apps.logs.traces import Trace, TracedRequest
from lpc_apps.simulator.compute import DEFAULT, Compute
from lpc_apps.simulator.segments import Paths

UNKNOWN_FROM: Final = 1 << 47
"""Content ids of blocks whose text a trace lacks: above those of traces, and below `lpc_apps.simulator.sessions.ROUND`."""


@dataclass(frozen=True)
class Cost:
    """Rates of an engine.

    Attributes:
        prefill_tokens_s: tokens computed per second.
        output_token_s: seconds per output token.
        compute: operations of a prompt's prefill, of which hits save a share; times do not depend on it.
        batch_tokens: closed loop: prompt tokens per engine step, which also decodes a token of each running reply (chunked
            prefill). None: prompts and replies do not slow each other down, as on separate devices.
    """

    prefill_tokens_s: float = 20_000.0
    output_token_s: float = 0.01
    batch_tokens: int | None = None
    compute: Compute = DEFAULT

    @property
    def prompt_token_s(self) -> float:
        """Seconds per prompt token, including its share of the decoding in its step."""
        return 1 / self.prefill_tokens_s + (self.output_token_s / self.batch_tokens if self.batch_tokens else 0.0)

    @property
    def step_s(self) -> float:
        """Seconds per output token while no prompt is computed; positive."""
        return max(self.output_token_s, 1e-9)

    @property
    def mixed_step_s(self) -> float:
        """Seconds per output token while a prompt is computed."""
        return self.step_s + (self.batch_tokens / self.prefill_tokens_s if self.batch_tokens else 0.0)


def computed_tokens(input_tokens: int, output_tokens: int) -> int:
    """Return the tokens of prompt and reply that an engine computes and can cache: all but the reply's last one.

    That token is sampled and sent, but the model never reads it (vLLM's ``Request.num_computed_tokens`` at the end).
    """
    return input_tokens + max(output_tokens - 1, 0)


@dataclass(slots=True, eq=False)
class Turn:
    """One request. Only the engine and the bounds may read `next`.

    Attributes:
        conversation, turn, category: name of the conversation, number of the turn from 1, and category.
        input_tokens, output_tokens: tokens of the prompt including history, and of the reply.
        contents: content ids of the full prompt blocks.
        all_contents: content ids of all full blocks that an engine computes (`computed_tokens`): of the prompt and, if it
            decodes, of the reply. Blocks whose text the log lacks have ids of their own.
        index: index in a trace; -1 in other workloads.
        arrival: seconds; in a closed workload set at the end of the previous turn.
        gap: seconds from the end of the previous turn to this arrival (closed workloads).
        next: the conversation's next turn; None at its end.
        probability: continuation probability predicted on arrival; None without a prediction.
        reply_end: kind of the reply's end as an engine sees it; empty: unknown.
        user: name of the user; empty: unknown.
        tenant: identifies the cache salt; empty without one.
        text_blocks: content ids of blocks of the messages' text alone (`TracedRequest`); empty: not read.
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
    user: str = ""
    tenant: str = ""
    text_blocks: Sequence[int] = ()

    def servable(self, block_tokens: int) -> int:
        """Return how many of the prompt's blocks a cache may serve. As in vLLM, at least one prompt token is computed."""
        return min((self.input_tokens - 1) // block_tokens, len(self.contents))


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """A closed loop: a fixed number of concurrent sessions; a new one starts when one ends.

    Attributes:
        sessions: number of concurrent sessions.
        requests: number of served requests after which the run ends.
        warm_up: number of requests after which hits are counted.
    """

    sessions: int
    requests: int
    warm_up: int


@dataclass(eq=False)
class Workload:
    """Requests to replay.

    Attributes:
        name: name of the data.
        block_tokens: tokens per block.
        arrivals: turns with fixed arrival times, in order. In a closed workload the first turn of each conversation.
        closed: whether later turns arrive their `gap` after the end of the previous turn.
        count_from, until: hits are counted for arrivals in [count_from, until); seconds. In a closed loop both are infinite.
        seed: seed of the random numbers; 0 for a trace.
        think_time: mean seconds, in a closed workload.
        decodes: whether the engine also decodes. Mooncake's traces come from a pool that only prefills: a request's blocks are
            in use until its prompt is computed.
        trace: the trace of the workload, if there is one.
        loop: the closed loop; None if conversations start at fixed times.
        reading: counts of what was read of a user's file, as JSON; None for other workloads.
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
    reading: dict[str, Any] | None = field(default=None, repr=False)

    def turns(self) -> Iterator[Turn]:
        """Yield all turns; in a closed workload by conversation."""
        for first in self.arrivals:
            turn: Turn | None = first
            while turn is not None:
                yield turn
                turn = turn.next if self.closed else None

    @cached_property
    def paths(self) -> Paths:
        """The turns' blocks as segments. Turns and their contents must not change after the first use."""
        return Paths(self.turns(), self.block_tokens, chained=self.trace is not None)

    def working_set_tokens(self) -> int:
        """Return the tokens of all distinct prompt blocks, which an infinite cache would contain."""
        return self.paths.prompt_blocks() * self.block_tokens


def from_trace(trace: Trace, *, count_from: float | None = None, decodes: bool = True) -> Workload:
    """Return a trace as a workload with the trace's arrival times.

    An engine that decodes caches the full blocks of replies. Their ids come from the trace if it has the text; else from the
    conversation's next prompt, if that continues this prompt and is long enough to hold the reply, which is assumed to follow
    the prompt there. All other blocks of a reply get ids that no prompt has: they take room, and nothing hits them.

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
            user=request.user,
            tenant=request.tenant,
            text_blocks=request.text_blocks,
        )
        before = latest.get(request.conversation)
        if before is not None:
            before.next = turn
        latest[request.conversation] = turn
        turns.append(turn)
    if decodes:
        unknown = count(UNKNOWN_FROM)
        for turn, request in zip(turns, trace.requests, strict=True):
            turn.all_contents = _with_reply(turn, request, trace.block_tokens, unknown)
    start = trace.duration / 2 if count_from is None else count_from
    return Workload(
        trace.name,
        trace.block_tokens,
        turns,
        False,
        start,
        float("inf"),
        decodes=decodes,
        trace=trace,
        reading=trace.reading(),
    )


def _with_reply(turn: Turn, request: TracedRequest, block_tokens: int, unknown: Iterator[int]) -> Sequence[int]:
    """Return the content ids of the full blocks of prompt and reply. ``unknown``: yields those of blocks without text."""
    prompt = tuple(turn.contents)
    full = computed_tokens(turn.input_tokens, turn.output_tokens) // block_tokens
    if full <= len(prompt):
        return turn.contents
    known = request.with_reply or ()
    following = turn.next
    if (
        request.with_reply is None
        and following is not None
        and following.input_tokens >= turn.input_tokens + turn.output_tokens
        and following.contents[len(prompt) - 1 : len(prompt)] == turn.contents[-1:]  # ids are chained
    ):
        known = tuple(following.contents)
    found = prompt + known[len(prompt) : full]
    return (*found, *islice(unknown, full - len(found)))
