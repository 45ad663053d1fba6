"""Builds generated workloads: texts that share prefixes, and the requests for them.

Arrival times are fixed. A user's next request follows a gap after the end of the previous one, and that end is calculated at
nominal cost: nothing cached, no waiting. So all policies and capacities see the same requests, hit rates can be compared to a
tenth of a point, and Belady's rule is exact. The simplification: with a better cache users would return some tenths of a
second earlier.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from operator import add
from typing import Final

import numpy as np

from lpc_apps.logs.traces import Trace, TracedRequest
from lpc_apps.simulator.workload import Cost, Turn, Workload, computed_tokens

WARM_UP_REQUESTS: Final = 500
"""Hits are counted after this number of requests."""


class Prefix:
    """A growing text as content ids of blocks: equal ids mean equal text up to the end of that block."""

    def __init__(self, fresh: Iterator[int], block_tokens: int, after: "Prefix | None" = None, tokens: int = 0) -> None:
        """Begin a text.

        Args:
            fresh: yields unused content ids.
            after, tokens: the text continues the first ``tokens`` tokens of ``after`` and shares the full blocks of these.
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
    conversation: str
    turn: int
    category: str
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    linked: bool
    reply_end: str
    user: str
    tenant: str
    probability: float | None


class Timeline:
    """Collects the requests of a workload, in any order.

    Attributes:
        random: the generator for all random numbers of the workload.
        block_tokens: tokens per block.
    """

    def __init__(self, seed: int, block_tokens: int) -> None:
        self.random: Final = np.random.default_rng(seed)
        self.block_tokens: Final = block_tokens
        self._seed = seed
        self._fresh = count()
        self._requests: list[_Request] = []
        self._conversations = 0
        self._cost = Cost()

    def text(self, after: Prefix | None = None, tokens: int = 0) -> Prefix:
        """Return a new text that continues the first ``tokens`` tokens of ``after``."""
        return Prefix(self._fresh, self.block_tokens, after, tokens)

    def conversation(self) -> str:
        """Return the name of a new conversation."""
        self._conversations += 1
        return f"c{self._conversations}"

    def ask(
        self,
        at: float,
        conversation: str,
        turn: int,
        text: Prefix,
        input_tokens: int,
        output_tokens: int,
        *,
        category: str = "",
        linked: bool = True,
        reply_end: str = "",
        user: str = "",
        tenant: str = "",
        probability: float | None = None,
    ) -> float:
        """Add a request; return the time when it ends at nominal cost, seconds.

        Args:
            at: arrival, seconds.
            conversation: conversation of the request.
            turn: number of the turn in the conversation, from 1.
            text: the prompt is its first ``input_tokens`` tokens, the reply the next ``output_tokens``.
            category: category that the client sends.
            linked: whether the request carries the conversation's name. If not, it looks like the only request of its
                conversation; only the bounds know the next one.
            reply_end: how the reply ends, as an engine sees it.
            user: who asks; empty: unknown.
            tenant: identifies the cache salt; empty without one.
            probability: predicted that the conversation continues; None without a prediction.
        """
        blocks = text.blocks(computed_tokens(input_tokens, output_tokens))
        self._requests.append(
            _Request(
                arrival=at,
                conversation=conversation,
                turn=turn,
                category=category,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                blocks=blocks,
                linked=linked,
                reply_end=reply_end,
                user=user,
                tenant=tenant,
                probability=probability,
            )
        )
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
        linked: bool = True,
        max_tokens: int = 16_384,
        category: str = "",
        user: str = "",
        tenant: str = "",
        predicted: Callable[[bool], float] | None = None,
    ) -> None:
        """Add a conversation in which every prompt repeats the history.

        Args:
            at: arrival of the first turn, seconds.
            prompts, replies: new tokens of each turn.
            gaps: seconds from the end of each turn to the next; the last one is unused.
            after, tokens: text before the conversation, such as a system prompt, and its length.
            linked, category, user, tenant: see `ask`.
            max_tokens: the conversation ends before its context exceeds this.
            predicted: returns the predicted probability of a turn that another one follows, or not; None: no predictions.
        """
        text, conversation = self.text(after, tokens), self.conversation()
        turns = sum(tokens + own <= max_tokens for own in accumulate(map(add, prompts, replies)))
        context = tokens
        for turn, (prompt, reply, gap) in enumerate(zip(prompts[:turns], replies[:turns], gaps[:turns], strict=True), 1):
            context += prompt
            end = self.ask(
                at,
                conversation,
                turn,
                text,
                context,
                reply,
                linked=linked,
                category=category,
                user=user,
                tenant=tenant,
                probability=None if predicted is None else predicted(turn < turns),
            )
            at = end + gap
            context += reply

    def workload(self, name: str, requests: int) -> Workload:
        """Return the first ``requests`` requests as a workload that starts at 0 seconds.

        Raises:
            ValueError: the generator's parameters yield fewer requests.
        """
        if len(self._requests) < requests:
            raise ValueError(f"{name}: drew {len(self._requests)} requests, needs {requests}")
        drawn = sorted(self._requests, key=lambda request: request.arrival)[:requests]
        start = drawn[0].arrival
        turns: list[Turn] = []
        traced: list[TracedRequest] = []
        latest: dict[str, Turn] = {}
        for index, request in enumerate(drawn):
            # An unlinked request gets a unique name, so that no policy can recognise its conversation.
            conversation = request.conversation if request.linked else f"{request.conversation}?{index}"
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
                user=request.user,
                tenant=request.tenant,
                probability=request.probability,
            )
            before = latest.get(request.conversation)
            if before is not None:
                before.next = turn
            latest[request.conversation] = turn
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
                    user=request.user,
                    tenant=request.tenant,
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
