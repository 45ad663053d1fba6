"""Knowledge of a router about its engines: what their caches hold, how much prefill waits, and how many requests are in flight.

Every router knows what it has sent, which of it has had its first token, and which has been answered. A kind of knowledge adds
what the caches hold:

- `all`: exactly, at once; and the exact prefill that waits.
- `sent`: the last engine of a session is believed to hold its last prompt and reply. Engines say nothing.
- `corrected`: the same, and the cached tokens that answers report correct the prefill that waits.
- `text`: as `sent`, by the text of messages alone, without roles, tools and arguments.
- `gateway`: what `lpc gateway` knows, by its own code (`lpc_apps.routing`): as `corrected`, bounded, and it learns the speed.
  `gateway:SHARE`: it takes caches to have this share of their size at first.
- `lru:SHARE`: an LRU cache of its own for each engine, of this share of the engine's cache.
- `events:SECONDS`: the engines' KV events, this much later. A restart clears an engine's blocks at once, as in `vllm-router`.
- `numbered-events:SECONDS`: as in NVIDIA Dynamo, an engine that restarts numbers its events from the start again. Its old
  blocks stay in the index, and its events are ignored until their numbers pass the old ones.
"""

import heapq
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from hashlib import blake2b
from itertools import chain
from typing import ClassVar, Final, Literal

from lpc_apps.routing import router as routing
from lpc_apps.routing.held import Held
from lpc_apps.routing.known import Known, Match
from lpc_apps.routing.prompt import Prompt
from lpc_apps.routing.router import Sending
from lpc_apps.simulator.amounts import SimulationError
from lpc_apps.simulator.blocks import Piece
from lpc_apps.simulator.cache import BlockCache
from lpc_apps.simulator.engine import Engine
from lpc_apps.simulator.policies.lru import LruPolicy
from lpc_apps.simulator.policy import PolicySettings
from lpc_apps.simulator.segments import Path
from lpc_apps.simulator.workload import Turn, Workload

FirstTokensOf = Literal["seen", "counted", "estimated"]
"""How `lpc gateway` learns of first tokens: it sees those of streams. Those of other answers are counted or estimated."""
MOST_SHARE: Final = 10.0
"""Largest share of an engine's cache, for `lru`."""


class Knowledge:
    """What a router knows of its engines. Subclasses say what the caches hold.

    Args:
        engines: the engines by number; replaced when one restarts.
        number: what stands after the colon of its name.
    """

    name: ClassVar[str]
    rule: ClassVar[str]
    takes: ClassVar[str] = ""
    """Meaning of the number after a colon; empty: there is none."""
    usual: ClassVar[float | None] = None
    """The number if there is no colon; None: it must be given."""

    def __init__(self, workload: Workload, engines: Sequence[Engine], prompt_token_s: float, number: float = 0.0) -> None:
        self.prompt_token_s: Final = prompt_token_s
        self.up: list[int] = list(range(len(engines)))
        """Numbers of the engines that answer."""
        self.held: Sequence[Iterable[Turn]] = [()] * len(engines)
        """Requests that the router has chosen an engine for and still holds, by engine."""
        self._workload = workload
        self._engines = engines
        self._number = number
        self._in_flight: list[dict[Turn, int]] = [{} for _ in engines]
        """Requests without an answer, and the prompt tokens that each was believed to miss."""
        self._before_first: list[dict[Turn, int]] = [{} for _ in engines]
        """Those of them without a first token."""
        self._missing = [0] * len(engines)
        """Sum of the latter."""
        self._due: list[deque[tuple[float, Turn]]] = [deque() for _ in engines]
        """First tokens to come, which the router sees at their time."""

    def holds(self, held: Sequence[Iterable[Turn]]) -> None:
        """Record that the router holds requests, by engine."""
        self.held = held

    def cached(self, engine: int, turn: Turn, now: float) -> int:
        """Return the tokens of a prompt that an engine is believed to hold."""
        raise NotImplementedError

    def missing(self, engine: int, turn: Turn, now: float) -> int:
        """Return the tokens of a prompt that an engine is believed to have to compute."""
        return turn.input_tokens - self.cached(engine, turn, now)

    def waiting_s(self, engine: int, now: float) -> float:
        """Return the seconds of prefill that an engine has accepted and not yet computed, as far as known."""
        due = self._due[engine]
        while due and due[0][0] <= now:
            self._missing[engine] -= self._before_first[engine].pop(due.popleft()[1], 0)
        return self._missing[engine] * self.prompt_token_s

    def in_flight(self, engine: int) -> int:
        """Return the number of requests that an engine was sent and has not answered."""
        return len(self._in_flight[engine])

    def sent(self, engine: int, turn: Turn, now: float) -> None:
        """Record that a request is about to be sent."""
        missing = self.missing(engine, turn, now)
        self._in_flight[engine][turn] = missing
        self._before_first[engine][turn] = missing
        self._missing[engine] += missing

    def handed(self, engine: int, turn: Turn, now: float) -> None:
        """Record that an engine gets a request: at once after :meth:`sent`, unless the router holds it."""

    def first_token_due(self, engine: int, turn: Turn, at: float) -> None:
        """Announce when the router will see a request's first token. An engine sends them in the order of announcement."""
        if turn in self._before_first[engine]:
            self._due[engine].append((at, turn))

    def answered(self, engine: int, turn: Turn, now: float) -> None:
        """Record an answer."""
        self._in_flight[engine].pop(turn, None)

    def failed(self, engine: int) -> None:
        """Record that an engine has failed; all its requests are lost."""
        self.up.remove(engine)
        self._in_flight[engine] = {}
        self._before_first[engine] = {}
        self._missing[engine] = 0
        self._due[engine].clear()

    def returned(self, engine: int) -> None:
        """Record that an engine is back, with an empty cache."""
        self.up = sorted((*self.up, engine))

    def started(self, engine: int, turn: Turn, now: float, hits: int) -> None:
        """Called when an engine starts a request. ``hits``: tokens of its prompt in the cache."""

    def evicted(self, engine: int, now: float, contents: Sequence[int]) -> None:
        """Called when an engine has evicted blocks: their content ids."""


class Everything(Knowledge):
    """Exact contents of all caches, and the exact prefill that waits."""

    name = "all"
    rule = "what each cache holds, and the prefill that waits, exactly"

    def __init__(self, workload: Workload, engines: Sequence[Engine], prompt_token_s: float, number: float = 0.0) -> None:
        super().__init__(workload, engines, prompt_token_s, number)
        self._queued: list[int | None] = [None] * len(engines)
        """Prompt tokens that the waiting requests of an engine miss; None: not known since its cache or queue has changed."""

    def cached(self, engine: int, turn: Turn, now: float) -> int:
        """Return the tokens of a prompt that an engine holds."""
        return self._engines[engine].hit_tokens(turn)

    def waiting_s(self, engine: int, now: float) -> float:
        """Return the seconds of prefill that an engine has accepted and not yet computed."""
        one = self._engines[engine]
        queued = self._queued[engine]
        if queued is None:
            queued = self._queued[engine] = sum(map(one.missing_tokens, chain(one.waiting, self.held[engine])))
        return max(one.prefilled_at - now, 0.0) + queued * self.prompt_token_s

    def sent(self, engine: int, turn: Turn, now: float) -> None:
        """Record that a request is about to be sent."""
        self._in_flight[engine][turn] = 0
        self._queued[engine] = None

    def started(self, engine: int, turn: Turn, now: float, hits: int) -> None:
        """Called when an engine starts a request. ``hits``: tokens of its prompt in the cache."""
        self._queued[engine] = None

    def failed(self, engine: int) -> None:
        """Record that an engine has failed."""
        super().failed(engine)
        self._queued[engine] = None


class Sent(Knowledge):
    """What the router has sent: the last engine of a session is believed to hold its last prompt and reply.

    A block that several sessions have is believed to be at the last engine of each of them: an engine would not evict a shared
    system prompt. A block of one session is believed to be at one engine, because the copy that it left behind goes unused.
    """

    name = "sent"
    rule = "the last engine of each session holds the session's blocks; waiting prefill by first tokens"

    def __init__(self, workload: Workload, engines: Sequence[Engine], prompt_token_s: float, number: float = 0.0) -> None:
        super().__init__(workload, engines, prompt_token_s, number)
        self._owner: dict[Hashable, str | None] = {}
        """The session of each block run; None: several have it."""
        self._holders: dict[Hashable, int] = {}
        """The engines that are believed to hold it, a bit each."""
        self._latest: tuple[Turn, Sequence[tuple[Hashable, int]]] | None = None

    def cached(self, engine: int, turn: Turn, now: float) -> int:
        """Return the tokens up to the deepest block of a prompt that the engine is believed to hold."""
        holders = self._holders
        for run, tokens in reversed(self._known_runs(turn)):
            if holders.get(run, 0) >> engine & 1:
                return min(tokens, turn.servable(self._workload.block_tokens) * self._workload.block_tokens)
        return 0

    def sent(self, engine: int, turn: Turn, now: float) -> None:
        """Record that a request is about to be sent: its prompt, and its reply, will be there."""
        super().sent(engine, turn, now)
        owner, holders, session = self._owner, self._holders, turn.conversation
        for run, _ in self._known_runs(turn):
            if owner.setdefault(run, session) == session:
                holders[run] = 1 << engine
            else:
                owner[run] = None
                holders[run] |= 1 << engine

    def failed(self, engine: int) -> None:
        """Record that an engine has failed: it holds nothing."""
        super().failed(engine)
        self._holders = {run: mask & ~(1 << engine) for run, mask in self._holders.items()}

    def _known_runs(self, turn: Turn) -> Sequence[tuple[Hashable, int]]:
        if self._latest is None or self._latest[0] is not turn:
            self._latest = turn, self._runs(turn)
        return self._latest[1]

    def _runs(self, turn: Turn) -> Sequence[tuple[Hashable, int]]:
        """Return what identifies the blocks of a request, in order, each with the prompt tokens up to its end."""
        size = self._workload.block_tokens
        return [(segment, (segment.depth + segment.size) * size) for segment in self._workload.paths.of(turn)]


class Corrected(Sent):
    """As `sent`; how many believed tokens were not cached corrects the waiting prefill.

    An engine that evicts what a router believes in has more work than the router knows. Without the correction it goes on
    sending sessions there.
    """

    name = "corrected"
    rule = "as sent; where answers report fewer cached tokens than believed, more prefill is taken to wait"

    STEP: Final = 0.05
    """Weight of the latest answer in an engine's average."""

    def __init__(self, workload: Workload, engines: Sequence[Engine], prompt_token_s: float, number: float = 0.0) -> None:
        super().__init__(workload, engines, prompt_token_s, number)
        self._wrong = [0.0] * len(engines)
        """Share of the believed tokens that its answers did not report as cached, by engine."""
        self._believed: dict[Turn, tuple[int, int]] = {}
        """Believed tokens of a request in flight, and those that its answer will report as cached."""

    def sent(self, engine: int, turn: Turn, now: float) -> None:
        """Record that a request is about to be sent."""
        believed = self.cached(engine, turn, now)
        super().sent(engine, turn, now)
        more = int(believed * self._wrong[engine])
        self._before_first[engine][turn] += more
        self._missing[engine] += more
        self._believed[turn] = believed, 0

    def started(self, engine: int, turn: Turn, now: float, hits: int) -> None:
        """Keep what the answer will report."""
        believed, _ = self._believed.get(turn, (0, 0))
        if believed:
            self._believed[turn] = believed, hits

    def answered(self, engine: int, turn: Turn, now: float) -> None:
        """Record an answer, and what it reports as cached."""
        super().answered(engine, turn, now)
        believed, hits = self._believed.pop(turn, (0, 0))
        if believed:
            self._wrong[engine] += self.STEP * (max(believed - hits, 0) / believed - self._wrong[engine])

    def failed(self, engine: int) -> None:
        """Record that an engine has failed."""
        for turn in self._in_flight[engine]:
            self._believed.pop(turn, None)
        super().failed(engine)
        self._wrong[engine] = 0.0


class Text(Sent):
    """As `sent`, but requests are compared by the text of their messages alone."""

    name = "text"
    rule = "as sent, by the text of messages alone, without roles, tools and arguments (smg 1.13.0's text tree)"

    def _runs(self, turn: Turn) -> Sequence[tuple[Hashable, int]]:
        """Return the blocks of the messages' text. Its share of the prompt is taken to be everywhere the same."""
        blocks = turn.text_blocks
        return [(block, turn.input_tokens * place // len(blocks)) for place, block in enumerate(blocks, 1)]


class Gateway(Knowledge):
    """What `lpc gateway` knows, by its own code."""

    name = "gateway"
    rule = (
        "as corrected, by the code of `lpc gateway`: speeds are learned, and caches' sizes known only with a queue "
        "(0.8: at first it takes them to have this share of their size)"
    )
    takes = "SHARE"
    usual = 1.0

    def __init__(self, workload: Workload, engines: Sequence[Engine], prompt_token_s: float, number: float = 1.0) -> None:
        super().__init__(workload, engines, prompt_token_s, number)
        names = [f"engine-{engine}" for engine in range(len(engines))]
        self.router = routing.Router(names, known=Known(tokens_per_size=1.0))
        size = workload.block_tokens
        self._tokens = [max(int(number * one.cache.capacity * size), 1) for one in engines]
        self.queues: list[Held] = []
        """What each engine is believed to hold, if the router holds requests; else it knows no cache's size."""
        self.hands_on = False
        """Whether these queues hold the requests themselves, and their own code hands them on."""
        self.first_tokens: FirstTokensOf = "seen"
        """How it learns of first tokens."""
        self.prefilled: list[list[float]] = [[] for _ in engines]
        """Heap of the first tokens to come that it does not see, by engine."""
        self._counts = [0] * len(engines)
        self._sendings: dict[Turn, Sending] = {}
        """Requests without an answer."""
        self._first: list[deque[tuple[float, Turn, Sending]]] = [deque() for _ in engines]
        """First tokens to come."""
        self._hits: dict[Turn, int] = {}
        self._ended: set[Turn] = set()
        """Requests that have been answered before their first token: in open traffic they take blocks from their arrival on."""
        self._latest: tuple[Turn, Prompt, Match] | None = None

    def holds(self, held: Sequence[Iterable[Turn]]) -> None:
        """Record that the router holds requests, by engine."""
        super().holds(held)
        self.queues = [Held(one, tokens) for one, tokens in zip(self.router.engines, self._tokens, strict=True)]

    def prompt(self, turn: Turn) -> tuple[Prompt, Match]:
        """Return a request's prompt, and what is known of it."""
        if self._latest is None or self._latest[0] is not turn:
            size, path = self._workload.block_tokens, self._workload.paths.of(turn)
            sizes = [min((segment.depth + segment.size) * size, turn.input_tokens) for segment in path]
            name = blake2b(turn.conversation.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            ids = [hash(segment) & 2**64 - 1 for segment in path]
            prompt = Prompt(tuple(ids) or (0,), tuple(sizes) or (turn.input_tokens,), (False,) * max(len(ids), 1), name)
            self._latest = turn, prompt, self.router.known.match(prompt)._replace(tokens=turn.input_tokens)
        return self._latest[1:]

    def cached(self, engine: int, turn: Turn, now: float) -> int:
        """Return the tokens of a prompt that the router believes an engine to hold."""
        return min(self.prompt(turn)[1].cached(engine), turn.input_tokens - 1)

    def missing(self, engine: int, turn: Turn, now: float) -> int:
        """Return the tokens that the router believes an engine to compute: of a request that it holds, if it got it now."""
        if (sending := self._sendings.get(turn)) is not None and sending.engine == engine and self.queues:
            return self.queues[engine].missing(sending)
        return self.router.missing(self.prompt(turn)[1], engine)

    def waiting_s(self, engine: int, now: float) -> float:
        """Return the seconds of prefill that the router believes to wait."""
        self.see(engine, now)
        return self.router.engines[engine].waiting_s(now)

    def sent(self, engine: int, turn: Turn, now: float) -> None:
        """Record that a request is about to be sent."""
        super().sent(engine, turn, now)
        self.see(engine, now)
        prompt, match = self.prompt(turn)
        self._sendings[turn] = self.router.sent(
            prompt, match, engine, now, streamed=self.first_tokens == "seen", held=bool(self.queues)
        )
        self._latest = None

    def sending(self, turn: Turn) -> Sending:
        """Return what the router knows of a request without an answer."""
        return self._sendings[turn]

    def handed(self, engine: int, turn: Turn, now: float) -> None:
        """Record that an engine gets a request."""
        if (sending := self._sendings.get(turn)) is not None and self.queues and not self.hands_on:
            self.queues[engine].hand(sending, now)

    def first_token_due(self, engine: int, turn: Turn, at: float) -> None:
        """Announce when the router will see a request's first token."""
        super().first_token_due(engine, turn, at)
        if (sending := self._sendings.get(turn)) is None:
            return
        if sending.streamed:
            self._first[engine].append((at, turn, sending))
        else:
            heapq.heappush(self.prefilled[engine], at)

    def started(self, engine: int, turn: Turn, now: float, hits: int) -> None:
        """Keep what the answer will report."""
        self._hits[turn] = hits

    def answered(self, engine: int, turn: Turn, now: float) -> None:
        """Record an answer, and what it reports."""
        super().answered(engine, turn, now)
        self.see(engine, now)
        sending = self._sendings.get(turn)
        if sending is not None and sending.open and sending.streamed:
            self._ended.add(turn)
        else:
            self._report(engine, turn)

    def failed(self, engine: int) -> None:
        """Record that an engine has failed."""
        for turn in self._in_flight[engine]:
            self._sendings.pop(turn, None)
        for _, turn, _ in self._first[engine]:
            self._sendings.pop(turn, None)
            self._ended.discard(turn)
        super().failed(engine)
        self._first[engine].clear()
        self.prefilled[engine].clear()
        self._counts[engine] = 0
        self.router.lost(engine)
        if self.queues:
            self.queues[engine] = Held(self.router.engines[engine], self._tokens[engine])

    def count(self, engine: int, now: float) -> None:
        """Let the router read how many first tokens an engine has counted."""
        prefilled = self.prefilled[engine]
        while prefilled and prefilled[0] <= now:
            heapq.heappop(prefilled)
            self._counts[engine] += 1
        self.queues[engine].first_tokens.read(self._counts[engine], now)

    def see(self, engine: int, now: float) -> None:
        """Let the router see the first tokens until now."""
        first = self._first[engine]
        while first and first[0][0] <= now:
            at, turn, sending = first.popleft()
            self.router.first_token(sending, at)
            if turn in self._ended:
                self._ended.remove(turn)
                self._report(engine, turn)

    def _report(self, engine: int, turn: Turn) -> None:
        """Let the router see an answer's usage."""
        hits = self._hits.pop(turn, 0)
        if (sending := self._sendings.pop(turn, None)) is not None:
            if self.queues:
                if not sending.streamed:
                    self.queues[engine].first_tokens.first(sending)
                self.queues[engine].answered(sending, hits)
            self.router.answered(sending, turn.input_tokens, hits)


class OwnLru(Knowledge):
    """An LRU cache of its own for each engine, which the requests fill that the router hands on."""

    name = "lru"
    rule = "an LRU cache of its own per engine, of this share of the engine's, which the requests handed on fill"
    takes = "SHARE"

    def __init__(self, workload: Workload, engines: Sequence[Engine], prompt_token_s: float, number: float = 0.0) -> None:
        super().__init__(workload, engines, prompt_token_s, number)
        self._caches = [self._empty(engine) for engine in range(len(engines))]
        self._placed: dict[Turn, Path] = {}
        """The blocks of each request in flight."""

    def cached(self, engine: int, turn: Turn, now: float) -> int:
        """Return the tokens of a prompt that the engine's LRU cache has here."""
        size = self._workload.block_tokens
        return min(self._caches[engine].hit_blocks(self._workload.paths.of(turn)), turn.servable(size)) * size

    def handed(self, engine: int, turn: Turn, now: float) -> None:
        """Put a request's blocks into the engine's cache here."""
        self._place(engine, turn, now)

    def answered(self, engine: int, turn: Turn, now: float) -> None:
        """Release the request's blocks."""
        super().answered(engine, turn, now)
        if turn not in self._placed:  # there was no room while others ran, or the router has restarted
            self._place(engine, turn, now)
        placed = self._placed.pop(turn, None)
        if placed is not None:
            self._caches[engine].release(placed, 0, turn, now)

    def failed(self, engine: int) -> None:
        """Record that an engine has failed: it holds nothing."""
        for turn in self._in_flight[engine]:
            self._placed.pop(turn, None)
        super().failed(engine)
        self._caches[engine] = self._empty(engine)

    def _place(self, engine: int, turn: Turn, now: float) -> None:
        cache = self._caches[engine]
        placed = cache.placed(self._workload.paths.of(turn), turn.servable(self._workload.block_tokens))
        if cache.allocate(placed, 0, now) is not None:
            self._placed[turn] = placed

    def _empty(self, engine: int) -> BlockCache[Piece]:
        blocks = max(int(self._number * self._engines[engine].cache.capacity), 1)
        return BlockCache(blocks, LruPolicy(blocks, self._workload, PolicySettings()))


Event = tuple[float, int, bool, Sequence[int]]
"""When the router reads it, its number, whether blocks are stored (else removed), and their content ids."""


class Events(Knowledge):
    """The engines' KV events, some seconds late; a restarted engine's blocks are cleared at once."""

    name = "events"
    rule = "the engines' KV events, this much later; a restart clears an engine's blocks at once (vllm-router 0.1.17)"
    takes = "SECONDS"

    def __init__(self, workload: Workload, engines: Sequence[Engine], prompt_token_s: float, number: float = 0.0) -> None:
        super().__init__(workload, engines, prompt_token_s, number)
        self._held: list[set[int]] = [set() for _ in engines]
        self._events: list[deque[Event]] = [deque() for _ in engines]
        self._numbers = [0] * len(engines)
        """Number of the last event that each engine has sent."""

    def cached(self, engine: int, turn: Turn, now: float) -> int:
        """Return the tokens of a prompt that the index has for an engine."""
        self._read(engine, now)
        held, size = self._held[engine], self._workload.block_tokens
        count = 0
        for segment in self._workload.paths.of(turn):
            if held.issuperset(segment.contents):
                count += segment.size
                continue
            count += next(place for place, content in enumerate(segment.contents) if content not in held)
            break
        return min(count, turn.servable(size)) * size

    def started(self, engine: int, turn: Turn, now: float, hits: int) -> None:
        """Called when an engine starts a request. ``hits``: tokens of its prompt in the cache."""
        self._send(engine, now, True, turn.all_contents)

    def evicted(self, engine: int, now: float, contents: Sequence[int]) -> None:
        """Called when an engine has evicted blocks."""
        self._send(engine, now, False, contents)

    def failed(self, engine: int) -> None:
        """Record that an engine has failed: its events that are on their way are lost."""
        super().failed(engine)
        self._events[engine].clear()
        self._held[engine].clear()

    def _send(self, engine: int, now: float, stored: bool, contents: Sequence[int]) -> None:
        self._numbers[engine] += 1
        self._events[engine].append((now + self._number, self._numbers[engine], stored, contents))

    def _read(self, engine: int, now: float) -> None:
        events = self._events[engine]
        while events and events[0][0] <= now:
            _, number, stored, contents = events.popleft()
            if self._takes(engine, number):
                held = self._held[engine]
                if stored:
                    held.update(contents)
                else:
                    held.difference_update(contents)

    def _takes(self, engine: int, number: int) -> bool:
        """Return whether an event is read."""
        del engine, number
        return True


class NumberedEvents(Events):
    """As `events`, but the old blocks of a restarted engine stay until its new events' numbers pass the old ones."""

    name = "numbered-events"
    rule = "the same; a restarted engine's old blocks stay until its event numbers pass the old ones (NVIDIA Dynamo 1.6.1)"

    def __init__(self, workload: Workload, engines: Sequence[Engine], prompt_token_s: float, number: float = 0.0) -> None:
        super().__init__(workload, engines, prompt_token_s, number)
        self._passed = [0] * len(engines)
        """Highest number of an event that was read."""

    def failed(self, engine: int) -> None:
        """Record that an engine has failed: the index keeps its blocks."""
        Knowledge.failed(self, engine)
        self._events[engine].clear()
        self._numbers[engine] = 0

    def _takes(self, engine: int, number: int) -> bool:
        takes = number > self._passed[engine]
        self._passed[engine] = max(number, self._passed[engine])
        return takes


KINDS: Final[tuple[type[Knowledge], ...]] = (Everything, Sent, Corrected, Text, Gateway, OwnLru, Events, NumberedEvents)
KNOWLEDGE: Final = {kind.name: kind for kind in KINDS}


def _form(kind: type[Knowledge]) -> str:
    """Return how a kind is written."""
    number = f":{kind.takes}" if kind.takes else ""
    return f"{kind.name}{number}" if kind.usual is None else f"{kind.name}[{number}]"


def parse_knowledge(text: str) -> tuple[type[Knowledge], float]:
    """Return the kind of knowledge by its name, and the number after its colon: `sent`, `lru:0.9`, `events:5`.

    Raises:
        SimulationError: the text is none of these.
    """
    name, colon, rest = text.partition(":")
    kind = KNOWLEDGE.get(name)
    forms = ", ".join(map(_form, KNOWLEDGE.values()))
    if kind is None or (colon and not kind.takes):
        raise SimulationError(f"{text!r:.40} is not a knowledge of routers: choose from {forms}")
    try:
        number = float(rest) if colon or (kind.takes and kind.usual is None) else kind.usual or 0.0
    except ValueError:
        number = -1.0
    if kind.takes == "SHARE" and not 0 < number <= MOST_SHARE:
        need = f"a share of the engine's cache, above 0 and at most {MOST_SHARE:g}"
        raise SimulationError(f"{text!r:.40} needs {need}: {name}:0.9")
    if not 0 <= number < float("inf"):
        raise SimulationError(f"{text!r:.40} needs a number of seconds from 0 on: {name}:5")
    return kind, number
