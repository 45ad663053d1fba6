"""How a generated workload is laid out: texts that share prefixes, and the requests that ask about them.

All generated workloads arrive by the clock. A user's next request comes a gap after the end of the one before, and that end is
calculated at nominal cost: nothing cached, and no waiting. So every policy and capacity sees the very same requests, hit rates
can be compared to a tenth of a point, and Belady's rule is exact. What is lost: a cache that hits more would see its users
back some tenths of a second earlier.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

import numpy as np

from lpc.logs.traces import Trace, TracedRequest
from lpc.simulator.workload import Cost, Turn, Workload

WARM_UP_REQUESTS: Final = 500
"""Hits are counted from the request after these."""


class Prefix:
    """A text that grows, as content ids: equal ids mean equal text up to and with that block."""

    def __init__(self, fresh: Iterator[int], block_tokens: int, after: "Prefix | None" = None, tokens: int = 0) -> None:
        """Begin a text.

        Args:
            fresh: content ids that no other text has.
            after, tokens: the text that it continues, and after how many of its tokens: whole blocks of these are shared.
        """
        self._fresh = fresh
        self._block_tokens = block_tokens
        self._ids = [] if after is None else list(after.blocks(tokens))

    def blocks(self, tokens: int) -> tuple[int, ...]:
        """Return the ids of the full blocks of the first ``tokens`` tokens."""
        full = tokens // self._block_tokens
        while len(self._ids) < full:
            self._ids.append(next(self._fresh))
        return tuple(self._ids[:full])


@dataclass(frozen=True, slots=True)
class _Request:
    arrival: float
    user: str
    turn: int
    category: str
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    linked: bool
    reply_end: str


class Timeline:
    """The requests of a workload while they are drawn, in any order.

    Attributes:
        random: what everything is drawn from.
        block_tokens: tokens per block.
    """

    def __init__(self, seed: int, block_tokens: int) -> None:
        self.random: Final = np.random.default_rng(seed)
        self.block_tokens: Final = block_tokens
        self._seed = seed
        self._fresh = count()
        self._requests: list[_Request] = []
        self._users = 0
        self._cost = Cost()

    def text(self, after: Prefix | None = None, tokens: int = 0) -> Prefix:
        """Return a new text, which continues the first ``tokens`` tokens of another one."""
        return Prefix(self._fresh, self.block_tokens, after, tokens)

    def user(self) -> str:
        """Return the name of a new conversation."""
        self._users += 1
        return f"u{self._users}"

    def ask(
        self,
        at: float,
        user: str,
        turn: int,
        text: Prefix,
        input_tokens: int,
        output_tokens: int,
        *,
        category: str = "",
        linked: bool = True,
        reply_end: str = "",
    ) -> float:
        """Add a request; return when it ends at nominal cost, seconds.

        Args:
            at: its arrival, seconds.
            user: whose conversation it belongs to.
            turn: its place there, from 1.
            text: the prompt is its first ``input_tokens`` tokens, the reply the ``output_tokens`` after these.
            category: the request's class, where the caller's system would send one.
            linked: whether those who serve it can tell whose it is. If not (plain prompts without an id), it looks like the
                only request of its conversation; the bounds still know what follows.
            reply_end: how its reply ends, as an engine sees it.
        """
        blocks = text.blocks(input_tokens + output_tokens)
        self._requests.append(_Request(at, user, turn, category, input_tokens, output_tokens, blocks, linked, reply_end))
        return at + input_tokens / self._cost.prefill_tokens_s + output_tokens * self._cost.output_token_s

    def converse(
        self,
        at: float,
        prompts: Sequence[int],
        replies: Sequence[int],
        gaps: Sequence[float],
        *,
        after: Prefix | None = None,
        tokens: int = 0,
        category: str = "",
        linked: bool = True,
        most_tokens: int = 16_384,
    ) -> float:
        """Add a conversation whose every prompt repeats its history; return when it ends, seconds.

        Args:
            at: arrival of its first turn, seconds.
            prompts, replies: new tokens of each turn.
            gaps: seconds from the end of each turn to the next; that of the last is not used.
            after, tokens: what stands before it, such as a system prompt, and how long that is.
            category, linked: as of `ask`.
            most_tokens: it ends where its context would be longer.
        """
        text, user = self.text(after, tokens), self.user()
        context, end = tokens, at
        for turn, (prompt, reply, gap) in enumerate(zip(prompts, replies, gaps, strict=True), 1):
            if context + prompt + reply > most_tokens:
                break
            context += prompt
            end = self.ask(at, user, turn, text, context, reply, category=category, linked=linked)
            context += reply
            at = end + gap
        return end

    def workload(self, name: str, requests: int) -> Workload:
        """Return the first ``requests`` requests as a workload that starts at 0 seconds.

        Raises:
            ValueError: fewer were drawn: the generator's parameters do not fit.
        """
        if len(self._requests) < requests:
            raise ValueError(f"{name}: {len(self._requests)} requests were drawn where {requests} are needed")
        drawn = sorted(self._requests, key=lambda request: request.arrival)[:requests]
        start = drawn[0].arrival
        turns: list[Turn] = []
        traced: list[TracedRequest] = []
        latest: dict[str, Turn] = {}
        for index, request in enumerate(drawn):
            # A name that occurs once: what has no name cannot be recognised, and no policy may recognise it by ours.
            conversation = request.user if request.linked else f"{request.user}?{index}"
            number = request.turn if request.linked else 1
            contents = request.blocks[: request.input_tokens // self.block_tokens]
            turn = Turn(
                conversation,
                number,
                request.category,
                request.input_tokens,
                request.output_tokens,
                contents,
                request.blocks,
                index,
                request.arrival - start,
                reply_end=request.reply_end,
            )
            before = latest.get(request.user)
            if before is not None:
                before.next = turn
            latest[request.user] = turn
            turns.append(turn)
            traced.append(
                TracedRequest(
                    turn.arrival,
                    turn.input_tokens,
                    turn.output_tokens,
                    contents,
                    conversation,
                    number,
                    request.category,
                    request.linked,
                    reply_end=request.reply_end,
                )
            )
        return Workload(
            name,
            self.block_tokens,
            turns,
            closed=False,
            count_from=turns[min(WARM_UP_REQUESTS, len(turns) - 1)].arrival,
            until=float("inf"),
            seed=self._seed,
            trace=Trace(name, self.block_tokens, traced),
        )
