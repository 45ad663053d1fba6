"""Chooses the engine of a request: the fewest seconds of waiting prefill, plus W times the seconds of prefill that it misses.

A missing token is weighed more than a waiting one because a copy of a conversation evicts another one, whose next request then
misses as well. Without this, a fleet near the end of its caches moves conversations about, and all engines thrash. NVIDIA
Dynamo's router has the same cost, with W = 1 by default (``--router-prefill-load-scale``).

A router knows what it has sent, which of it has had its first token, and what answers report: tokens of the prompt, and how
many of them were cached. An engine that evicts what the router believes in has more work than the router knows, so the share
of the believed tokens that were not cached corrects the prefill that waits. It does not correct what a request would miss: then
an engine that evicts much would lose its conversations, and they would be computed elsewhere. For the same reason one that it
is believed to have evicted counts there as cached in part (`EVICTED`), and a speed is learned only from requests whose cached
tokens are reported: from beliefs an engine that evicts much would seem slow.

Engines of equal cost are ranked by a hash of the conversation, so that two routers without shared state agree. The first of
them gets the request that has at most `FULLER` times its share of the conversations.

A conversation whose engine was down goes back when that is up again and has room for it, because its cache is empty: a copy
there evicts nothing. It may wait up to `RETURN_S` longer for it.
"""

import heapq
import math
from collections.abc import Container, Sequence
from hashlib import blake2b
from typing import Final

from eviction_client.schedule.prefill import PrefillSpeed
from lpc_apps.routing.known import Conversation, Known, Match, Move
from lpc_apps.routing.prompt import Prompt

WEIGHT: Final = 11.0
"""W: the best one, or near it, on recorded agents and on open traffic (docs/how-to/simulate-a-fleet.md)."""
EQUAL_S: Final = 0.05
"""Seconds by which costs may differ and count as equal."""
FULLER: Final = 1.1
"""Conversations of an engine over its share up to which a new one may go there."""
EVICTED: Final = 0.3
"""Part of a conversation that counts as cached where it is believed to be evicted, as beliefs may be wrong. At 0 and 0.1 many
move and lose hits near saturation (docs/benchmarks/fleet.md); at 1 an overfull engine keeps them all."""
KNOWN_S: Final = 10.0
"""Seconds of an engine's prefill after which its own speed counts. Until then it is taken to be as fast as all together."""
DIFFERS: Final = 0.2
"""Share by which an engine's speed must differ from that of all together to count. Engines of one kind are measured 2 to 3%
apart. With W and a long prompt that gave one of four equal engines a third of its share of the conversations."""
COUNTED_S: Final = 1.0
"""Seconds of a prefill from which a speed is learned if its end is counted, not seen: that is up to a quarter of it late."""
LIVE_S: Final = 600.0
"""Seconds after its last request for which a conversation counts."""
RETURN_S: Final = 5.0
"""Seconds by which a request may wait longer at its conversation's engine that is up again."""
STEP: Final = 0.05
"""Weight of the latest answer in an engine's average."""
_MASK: Final = 2**64 - 1


class Sending:
    """A request that an engine was sent and has not answered.

    Attributes:
        engine: number of the engine.
        tokens: of the prompt, estimated.
        known: tokens of its beginning that were sent before, to any engine.
        believed: tokens of the prompt that the engine was believed to hold.
        expected: those of them that it is believed not to have evicted.
        shared: the same, of a beginning that other conversations share.
        missing: tokens that it is believed to compute.
        at: when it was sent, or handed on, seconds.
        streamed: whether the router sees the first token.
        before: the conversation's engine before it; None: it had none.
        move: how the conversation moves with it; None: it stays, or is new.
        took: seconds of its prefill, as far as a router sees; None: not known.
    """

    __slots__ = (
        *("at", "before", "believed", "conversation", "engine", "expected", "known", "missing", "move", "open", "prompt"),
        *("shared", "streamed", "took", "tokens"),
    )

    def __init__(
        self, engine: int, prompt: Prompt, conversation: Conversation, match: Match, at: float, *, streamed: bool
    ) -> None:
        self.engine, self.prompt, self.conversation, self.at, self.streamed = engine, prompt, conversation, at, streamed
        self.tokens, self.known = match.tokens, match.known
        self.believed = min(match.cached(engine), match.tokens - 1)
        self.shared = min(match.shared(engine), self.believed)
        self.expected = self.believed
        self.missing = match.tokens - self.believed
        self.before = match.engine if match.continues else None
        self.move: Move | None = None
        self.took: float | None = None
        self.open = True
        """Whether its prefill counts as waiting."""


class Speed:
    """Prompt tokens per second of one engine, or of several.

    Attributes:
        tokens_per_s: as measured, or assumed before that.
    """

    __slots__ = ("_measured", "_seconds", "tokens_per_s")

    def __init__(self) -> None:
        self._measured, self._seconds = PrefillSpeed(), 0.0
        self.tokens_per_s = self._measured.tokens_per_s

    @property
    def is_known(self) -> bool:
        """Whether it was measured for `KNOWN_S`."""
        return self._seconds >= KNOWN_S

    def note(self, tokens: int, seconds: float) -> None:
        """Count a prefill."""
        self._measured.note(tokens, seconds)
        self._seconds += seconds
        self.tokens_per_s = self._measured.tokens_per_s


class EngineWork:
    """What a router knows of one engine's work.

    Attributes:
        missing: tokens of its waiting prefill.
        wrong: share of the believed tokens that its answers did not report as cached.
        salt: ranks it by conversation.
        live: number of the conversations that were there last.
        cache: numbers of the conversations that it is believed to hold; None: all that it had last.
        own_speed: its own prompt tokens per second; 0 until they are known to differ from those of all engines.
        due: heap of the estimated ends of requests that are not streamed: time, a number, and the request.
        counted: whether its own count of first tokens shows their ends (`lpc_apps.routing.counted`), so none is estimated.

    Args:
        fleet: speed of all engines together.
    """

    __slots__ = (
        *("_first_at", "_fleet", "_open", "_own"),
        *("cache", "counted", "due", "live", "missing", "own_speed", "salt", "wrong"),
    )

    def __init__(self, name: str, fleet: Speed) -> None:
        self._fleet = fleet
        self.salt = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") | 1
        self.live = 0
        self.cache: Container[object] | None = None
        self._open: set[Sending] = set()
        self.clear()

    def clear(self) -> None:
        """Forget its work and its speed: it is a new process."""
        self._own, self.own_speed = Speed(), 0.0
        for sending in self._open:
            sending.open = False
        self._open.clear()
        self.missing, self.wrong = 0, 0.0
        self._first_at = 0.0
        self.counted = False
        self.due: list[tuple[float, int, Sending]] = []

    @property
    def is_measured(self) -> bool:
        """Whether a speed is known, its own or that of all engines."""
        return self.own_speed > 0.0 or self._fleet.is_known

    def holds(self, conversation: Conversation | None) -> bool:
        """Return whether it is believed not to have evicted a conversation that it had last."""
        return self.cache is None or (conversation is not None and conversation.number in self.cache)

    @property
    def tokens_per_s(self) -> float:
        """The prompt tokens that it computes per second."""
        return self.own_speed or self._fleet.tokens_per_s

    def waiting_s(self, now: float) -> float:
        """Return the seconds of prefill that it has accepted and not yet computed, as far as known."""
        if self.due:
            self.end_due(now)
        return self.missing / self.tokens_per_s

    def end_due(self, now: float) -> None:
        """Count the prefills as done that are not streamed and should have ended."""
        while self.due and self.due[0][0] <= now:
            self.close(heapq.heappop(self.due)[2])

    def add(self, sending: Sending) -> None:
        """Count a request's prefill."""
        sending.missing = self.missing_of(sending)
        self.missing += sending.missing
        self._open.add(sending)

    def missing_of(self, sending: Sending) -> int:
        """Return the tokens that it is believed to compute for a request, and note those that it is believed to hold."""
        sending.expected = sending.believed if self.holds(sending.conversation) else sending.shared
        return sending.tokens - sending.expected + int(sending.expected * self.wrong)

    def handed(self, sending: Sending, missing: int, ahead: int, now: float) -> None:
        """Record that the engine gets a request now. If it is not streamed the end of its prefill is estimated.

        Args:
            missing: tokens that it misses.
            ahead: tokens that those miss which the engine has before it.
        """
        if sending.open:
            self.missing += missing - sending.missing
            sending.missing = missing
        sending.at = now
        if not sending.streamed and not self.counted:
            ends = now + (ahead + missing) / self.tokens_per_s
            heapq.heappush(self.due, (ends, id(sending), sending))

    def close(self, sending: Sending) -> None:
        """Count a request's prefill as done, or as never to be done."""
        if sending.open:
            sending.open = False
            self._open.discard(sending)
            self.missing -= sending.missing

    def first_token(self, sending: Sending, now: float) -> None:
        """Record a request's first token. Prefill is computed one prompt after the other, as far as a router sees.

        An answer that is not streamed begins at its end, so its time says nothing of the prefill.
        """
        if sending.streamed:
            sending.took = now - max(sending.at, self._first_at)
            self._first_at = now
        self.close(sending)

    def computed(self, sending: Sending, now: float) -> float:
        """Return the prompt tokens that it should have computed for the oldest request without a first token."""
        return (now - max(sending.at, self._first_at)) * self.tokens_per_s

    def prefilled(self, sending: Sending, now: float) -> None:
        """Record that its own count shows a request's first token, a part of a second late."""
        took = now - max(sending.at, self._first_at)
        if took >= COUNTED_S:
            sending.took = took
        self._first_at = now
        self.close(sending)

    def answered(self, sending: Sending, tokens: int | None, cached: int | None) -> None:
        """Record an answer: see `Router.answered`."""
        self.close(sending)
        if cached is None:
            return
        if sending.expected:
            wrong = max(sending.expected - cached, 0) / sending.expected
            self.wrong += STEP * (wrong - self.wrong)
        if sending.took is not None and tokens is not None:
            self._own.note(tokens - cached, sending.took)
            self._fleet.note(tokens - cached, sending.took)
            if self._own.is_known:
                own, fleet = self._own.tokens_per_s, self._fleet.tokens_per_s
                self.own_speed = own if abs(own - fleet) > DIFFERS * fleet else 0.0


class Router:
    """Knows engines by number. Times are seconds of any one clock.

    Args:
        names: of the engines: the same in all routers before them.
        weight: W.

    Attributes:
        speed: of all engines together.
    """

    def __init__(self, names: Sequence[str], weight: float = WEIGHT, known: Known | None = None) -> None:
        self.speed = Speed()
        self.engines = [EngineWork(name, self.speed) for name in names]
        self.known = known or Known()
        self.weight = weight
        self._live: dict[int, tuple[float, int]] = {}
        """Time and engine of the last request by number of the conversation, the oldest first."""

    def ranked(self, match: Match, key: int, up: Sequence[int], now: float) -> list[int]:
        """Return the engines that are up, in the order in which a request tries them.

        Args:
            key: 64 bits of the conversation, which rank engines of equal cost.
        """
        costs = self.costs(match, up, now)
        order = sorted(up, key=costs.__getitem__)
        if len(order) < 2:
            return order
        self._forget(now)
        left = None if match.conversation is None else match.conversation.left
        if left is not None and left in costs and self._may_return(match, left, up, now):
            return _first(left, order)
        limit = costs[order[0]] + EQUAL_S
        if match.home is not None and costs.get(match.home, math.inf) <= limit:
            return _first(match.home, order)
        equal = [engine for engine in order if costs[engine] <= limit]
        equal.sort(key=lambda engine: _mixed(key ^ self.engines[engine].salt), reverse=True)
        most = self._most(up)
        first = next((engine for engine in equal if self.engines[engine].live < most), None)
        return _first(min(equal, key=lambda engine: self.engines[engine].live) if first is None else first, order)

    def _most(self, up: Sequence[int]) -> float:
        """Return the live conversations below which an engine gets another one."""
        return max(FULLER * (sum(self.engines[one].live for one in up) + 1) / len(up) - 1, 1)

    def _may_return(self, match: Match, engine: int, up: Sequence[int], now: float) -> bool:
        there = self.engines[engine]
        here_s = self.engines[match.home].waiting_s(now) if match.home is not None and match.home in up else 0.0
        there_s = there.waiting_s(now) + self.missing(match, engine) / there.tokens_per_s
        return there.live < self._most(up) and there_s <= here_s + RETURN_S

    def missing(self, match: Match, engine: int) -> int:
        """Return the tokens of a prompt that an engine is believed to compute."""
        held = match.cached(engine) if self.engines[engine].holds(match.conversation) else match.shared(engine)
        return match.tokens - min(held, match.tokens - 1)

    def missing_everywhere(self, match: Match) -> int:
        """Return the tokens of a prompt that even the engine is believed to compute that holds most of it."""
        own = match.engine is not None and self.engines[match.engine].holds(match.conversation)
        held = max(match.held if own else 0, match.heads[0][1] if match.heads else 0)
        return match.tokens - min(held, match.tokens - 1)

    def costs(self, match: Match, up: Sequence[int], now: float) -> dict[int, float]:
        """Return the cost of a request at each engine, seconds."""
        fleet, engines, weight, most = self.speed.tokens_per_s, self.engines, self.weight, match.tokens - 1
        found = {}
        for engine in up:
            one = engines[engine]
            if one.due:
                one.end_due(now)
            cached = match.held if engine == match.engine else 0
            if cached and not one.holds(match.conversation):
                cached = int(cached * EVICTED)
            for holders, tokens in match.heads:
                if holders >> engine & 1:
                    cached = max(cached, tokens)
                    break
            found[engine] = (one.missing + weight * (match.tokens - min(cached, most))) / (one.own_speed or fleet)
        return found

    def sent(
        self,
        prompt: Prompt,
        match: Match,
        engine: int,
        now: float,
        *,
        streamed: bool = True,
        held: bool = False,
        left: int | None = None,
    ) -> Sending:
        """Record that an engine is sent a request.

        Args:
            streamed: the router sees the first token.
            held: it is held first (`lpc_apps.routing.held`).
            left: the conversation's engine, if that is down.
        """
        move = match.conversation.moves(engine) if match.conversation is not None and match.continues else None
        conversation = self.known.sent(prompt, match, engine)
        if left is not None:
            conversation.left = left
        sending = Sending(engine, prompt, conversation, match, now, streamed=streamed)
        sending.move = move
        self.engines[engine].add(sending)
        if not held:
            one = self.engines[engine]
            one.handed(sending, sending.missing, one.missing - sending.missing, now)
        before = self._live.pop(conversation.number, None)
        if before is not None:
            self.engines[before[1]].live -= 1
        self._live[conversation.number] = now, engine
        self.engines[engine].live += 1
        return sending

    def first_token(self, sending: Sending, now: float) -> None:
        """Record that the first token of an answer has come."""
        self.engines[sending.engine].first_token(sending, now)
        self._is_back(sending)

    def answered(self, sending: Sending, tokens: int | None = None, cached: int | None = None) -> None:
        """Record an answer, with the tokens of the prompt and those of them that were cached, if it reports them."""
        if tokens:
            self.known.counted(sending.conversation, sending.prompt, tokens)
        self.engines[sending.engine].answered(sending, tokens, cached)
        self._is_back(sending)

    def failed(self, sending: Sending, *, refused: bool = False) -> None:
        """Record that an engine has not computed a prompt, so it does not hold it.

        A conversation that an engine has left while that was down still belongs there if it fails again.

        Args:
            refused: another engine would not compute it either.
        """
        self.engines[sending.engine].close(sending)
        if not refused and sending.conversation.engine == sending.engine and not sending.believed:
            sending.conversation.engine = sending.before

    @staticmethod
    def _is_back(sending: Sending) -> None:
        """Forget that a conversation has left the engine that has answered it."""
        if sending.conversation.left == sending.engine:
            sending.conversation.left = None

    def lost(self, engine: int) -> None:
        """Record that an engine has ended: what it held is gone, and what it was sent will not be computed."""
        self.known.lost(engine)
        self.engines[engine].clear()

    def _forget(self, now: float) -> None:
        live = self._live
        while live:
            number, (at, engine) = next(iter(live.items()))
            if at + LIVE_S >= now:
                break
            del live[number]
            self.engines[engine].live -= 1


def _first(engine: int, order: Sequence[int]) -> list[int]:
    return [engine, *(one for one in order if one != engine)]


def _mixed(key: int) -> int:
    """Return a 64-bit hash: the finalizer of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    key = (key ^ key >> 27) * 0x94D049BB133111EB & _MASK
    return key ^ key >> 31
