"""Generated traffic through the policy, a queue and its ghost caches, with exact results.

`tests/unit/test_golden_replay.py` compares the results with `tests/golden_replay.json`. A change of the code that is meant to
keep the behaviour keeps them all. For a change that is meant to alter it, write the file again and say so in the commit:

    python -m tests.golden_replay

The results are counts and orders, never fractions. Blocks are integers, which all Pythons hash alike. Times are multiples of
1/64 s, so sums of them are exact, and random numbers come from `random.random` alone, whose sequence Python guarantees. The
fits use `math.log1p` and `expm1`, whose last bit may differ between platforms; no result here depends on it (tried with each
value of these functions moved by one or two units in the last place, at random).
"""

import heapq
import json
import random
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from eviction_client.policy.ghosts import IN_USE_FOLLOWS
from eviction_client.policy.policy import Policy
from eviction_client.policy.queue.floors import FlooredQueue
from eviction_client.policy.queue.free_list import Block
from eviction_client.policy.queue.free_queue import FreeQueue
from eviction_client.policy.request import GAP_CLASSES, TrackedRequest
from eviction_client.policy.rules import AUTO
from eviction_client.policy.tier import Tier
from lpc.model.curve import INTERVALS
from tests.clock import Clock

RESULTS: Final = Path(__file__).with_name("golden_replay.json")
LISTED: Final = 500
"""Evictions that the results list one by one."""
REFIT_S: Final = 90.0
"""Less often than in an engine: a fit costs as much as 300 requests."""
TICK_S: Final = 1.0 / 64.0
BLOCK_TOKENS: Final = 256
CURVES: Final = {
    "first": {group: [group / 64.0] * INTERVALS for group in (1, 2, 3)},
    "second": {group: [(4 - group) / 128.0] * INTERVALS for group in (1, 2)},
}
"""The sidecar's hazards by epoch and group."""


@dataclass
class Request:
    """A request of the traffic. Times in ticks.

    Attributes:
        prompt, reply: its blocks.
        takes: from its start to its end.
        waits: before its start.
        computed: number of blocks that are computed when it ends; None: all.
        more: further arguments of `Policy.finished`, and the tenant.
    """

    prompt: Sequence[int]
    reply: Sequence[int]
    takes: int
    waits: int = 0
    computed: int | None = None
    more: dict[str, Any] = field(default_factory=dict)


Course = Iterator[Request | int]
"""Requests, one after the other ends, and the ticks between them."""


class Dice:
    """Random choices with the same results on all platforms."""

    def __init__(self, seed: int) -> None:
        self._next: Callable[[], float] = random.Random(seed).random

    def below(self, most: int) -> int:
        return int(self._next() * most)

    def one_of(self, choices: Sequence[Any]) -> Any:
        return choices[self.below(len(choices))]

    def happens(self, percent: int) -> bool:
        return self.below(100) < percent


class Names:
    """Numbers of blocks. A block is its content and all blocks before it."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, Hashable], int] = {}

    def chain(self, before: Sequence[int], *contents: Hashable) -> list[int]:
        found = list(before)
        for content in contents:
            found.append(self._numbers.setdefault((found[-1] if found else 0, content), len(self._numbers) + 1))
        return found


SECONDS: Final = 64
THINKING: Final = [seconds * SECONDS for seconds in (2, 5, 8, 12, 20, 30, 45, 60, 90, 150, 400)]


def chats(dice: Dice, names: Names, user: int) -> Course:
    """Yield the conversations of a user with one of three applications, each with a system prompt."""
    yield dice.below(400 * SECONDS)
    conversation = 0
    while True:
        conversation += 1
        stays = dice.one_of((20, 50, 80, 95))
        chain = names.chain((), *(("system", dice.one_of((0, 0, 0, 1, 2)), depth) for depth in range(6)))
        for turn in range(40):
            asked = [(user, conversation, turn, n) for n in range(1 + dice.below(3) + 30 * dice.happens(4))]
            prompt = names.chain(chain, *asked)
            chain = names.chain(prompt, *((user, conversation, turn, "reply", n) for n in range(1 + dice.below(4))))
            more: dict[str, Any] = {"reply_end": dice.one_of((".", ".", "```"))}
            if user % 3:
                more["log_odds"] = (stays - 50) / 16 + (dice.below(3) - 1) * 0.75
                more["group"] = 1 + user % 2
            yield Request(prompt, chain[len(prompt) :], SECONDS + dice.below(6 * SECONDS), more=more)
            if not dice.happens(stays):
                break
            yield dice.one_of(THINKING)
        yield dice.below(60 * SECONDS)


def agents(dice: Dice, names: Names, agent: int) -> Course:
    """Yield the tasks of an agent of one of twelve tenants: tool calls that return within seconds, and documents."""
    yield dice.below(60 * SECONDS)
    tenant = min(dice.below(12), dice.below(12))
    task = 0
    while True:
        task += 1
        chain = names.chain((), *(("tools", tenant, depth) for depth in range(12 + tenant)))
        if dice.happens(30):
            document = min(dice.below(40), dice.below(40), dice.below(40))
            chain = names.chain(chain, *(("document", document, depth) for depth in range(20)))
        steps = 1 + dice.below(12)
        for step in range(steps):
            prompt = names.chain(chain, *((agent, task, step, n) for n in range(1 + dice.below(4))))
            chain = names.chain(prompt, *((agent, task, step, "call", n) for n in range(dice.below(3))))
            last = step == steps - 1
            more: dict[str, Any] = {"reply_end": "." if last else "</tool>", "tenant": f"tenant {tenant}" if tenant else ""}
            if agent % 2:
                more.update(group=1 + last, log_odds=(dice.below(3) - 1 - last) * 0.75)
            if last and dice.happens(50):
                more["done_from"] = len(chain) - dice.below(len(chain) - len(prompt) + 4)
            computed = None
            if dice.happens(3):
                computed, more["reply_end"] = dice.below(len(prompt) + 1), None
                more.pop("done_from", None)
            waits = SECONDS * (1 + dice.below(5)) if dice.happens(15) else 0
            yield Request(prompt, chain[len(prompt) :], 8 + dice.below(4 * SECONDS), waits, computed, more)
            yield 16 + dice.below(4 * SECONDS) + (200 * SECONDS if dice.happens(5) else 0)
        yield dice.below(90 * SECONDS)


class Cache:
    """A cache in the order of the queue. ``shares``: floors of tenants."""

    def __init__(self, capacity: int, classes: int, clock: Clock, shares: dict[str, float]) -> None:
        self.queue: FlooredQueue[Block] = FlooredQueue(Block(-1), Block(-1), classes, clock=clock)
        self.queue.set_floors(shares, capacity)
        self.queue.prepend_n([Block(number) for number in range(capacity)])
        self.capacity = capacity
        self.hits = self.asked = self.evicted = self.order = 0
        self._clock = clock
        self._held: dict[int, Block] = {}
        self._content: dict[int, int] = {}
        self._users: Counter[int] = Counter()

    @property
    def in_use(self) -> int:
        return self.capacity - self.queue.num_free_blocks

    def wait(self, request: Hashable, prompt: Sequence[int]) -> None:
        self.queue.wait(request, [self._held[content].block_id for content in self._hit(prompt)])

    def start(self, request: Hashable, prompt: Sequence[int]) -> None:
        self.hits += len(self._hit(prompt))
        self.asked += len(prompt)
        self.use(prompt)
        self.queue.release(request)

    def _hit(self, prompt: Sequence[int]) -> Sequence[int]:
        depth = next((depth for depth, content in enumerate(prompt) if content not in self._held), len(prompt))
        return prompt[:depth]

    def use(self, contents: Sequence[int]) -> None:
        new = []
        for content in contents:
            if content not in self._held:
                new.append(content)
            elif not self._users[content]:
                self.queue.remove(self._held[content])
            self._users[content] += 1
        for content, block in zip(new, self.queue.popleft_n(len(new)), strict=True):
            if block.block_id in self._content:
                self._evict(block)
            self._content[block.block_id] = content
            self._held[content] = block

    def _evict(self, block: Block) -> int:
        content = self._content.pop(block.block_id)
        del self._held[content]
        self.evicted += 1
        self.order = zlib.crc32(b"%d " % content, self.order)
        return content

    def free(self, finished: TrackedRequest[int]) -> None:
        """Free the blocks of a request."""
        chain = finished.blocks
        self.queue.own((self._held[content] for content in chain), finished.tenant)
        self._users.subtract(chain)
        parts = []
        for span in reversed(finished.spans):
            part = [self._held[content] for content in reversed(chain[span.start : span.end]) if not self._users[content]]
            parts.append((part, span.reuse_class))
        run = self.queue.insert_chain(parts, self._clock())
        depth = next((depth for depth, content in enumerate(chain) if not self._users[content]), 0)
        if run is not None and depth:
            self.queue.continues(self._held[chain[depth - 1]], run)

    def forget(self, contents: Sequence[int]) -> None:
        """Free blocks that were not computed."""
        for content in contents:
            self._users[content] -= 1
            if not self._users[content]:
                block = self._held.pop(content)
                del self._content[block.block_id]
                self.queue.disown([block])
                self.queue.prepend_n([block])

    def next_evictions(self, most: int) -> list[int]:
        """Evict and return this many blocks."""
        blocks: list[Block] = []
        while len(blocks) < most:
            blocks += (block for block in self.queue.popleft_n(7) if block.block_id in self._content)
        return [self._evict(block) for block in blocks[:most]]


class Replay:
    """Requests through a policy, its ghost caches, those of a tier, and a queue."""

    def __init__(
        self,
        course: Callable[[Dice, Names, int], Course],
        *,
        clients: int,
        capacity: int,
        tier: int = 0,
        rule: str = AUTO,
        seed: int = 1,
        shares: dict[str, float] | None = None,
    ) -> None:
        self.clock = Clock(0.0)
        self.policy: Policy[int] = Policy(capacity, block_tokens=BLOCK_TOKENS, clock=self.clock, rule=rule, sample=_sample)
        self.cache = Cache(capacity, self.policy.classes, self.clock, shares or {})
        self.tiers: list[Tier[Block]] = []
        if tier:
            queue = FreeQueue(Block(-1), Block(-1), self.policy.classes, copies=True, clock=self.clock)
            self.tiers.append(Tier(queue, self.policy, blocks=tier, prompts_only=True))
        self.requests = self.classes = 0
        self.in_force = [(0, self.policy.in_force)]
        self.of_tier = [(0, tier.rule) for tier in self.tiers]
        self._in_use = 0.0
        self._numbers = 0
        self._fitted_at = 0.0
        names, dice = Names(), Dice(seed)
        self._due: list[tuple[int, int, str, Any]] = []
        for client in range(clients):
            self._next(0, course(dice, names, client))

    def run(self, requests: int) -> dict[str, Any]:
        """Return the results of the first ``requests`` ends."""
        while self.requests < requests:
            at, _, what, data = heapq.heappop(self._due)
            self.clock.now = at * TICK_S
            getattr(self, f"_{what}")(at, *data)
        policy, cache = self.policy, self.cache
        return {
            "requests": requests,
            "hits": {"asked": policy.ghosts.asked, **policy.ghosts.hits},
            "in_force": self.in_force,
            "tiers": [{"asked": tier.ghosts.asked, **tier.ghosts.hits} for tier in self.tiers],
            "in_force_in_tiers": self.of_tier,
            "reused": policy.reused,
            "known_classes": policy.known_classes,
            "classes_crc": self.classes,
            "cache": {"asked": cache.asked, "hits": cache.hits, "evicted": cache.evicted, "order_crc": cache.order},
            "next_evictions": cache.next_evictions(LISTED),
        }

    def _plan(self, at: int, what: str, *data: Any) -> None:
        self._numbers += 1
        heapq.heappush(self._due, (at, self._numbers, what, data))

    def _next(self, at: int, course: Course) -> None:
        event = next(course)
        if isinstance(event, int):
            self._plan(at + event, "next", course)
        elif event.waits:
            self.policy.ghosts.wait(id(event), event.prompt)
            above = self.policy.ghosts.caches[self.policy.in_force]
            for tier in self.tiers:
                tier.ghosts.wait(id(event), event.prompt, above=above)
            self.cache.wait(id(event), event.prompt)
            self._plan(at + event.waits, "start", course, event, self._tracked(event))
        else:
            self._start(at, course, event, None)

    def _tracked(self, request: Request) -> TrackedRequest[int]:
        tracked = TrackedRequest(id(request), request.prompt, started_at=self.clock.now, tenant=request.more.pop("tenant", ""))
        self.policy.started(tracked)
        return tracked

    def _start(self, at: int, course: Course, request: Request, tracked: TrackedRequest[int] | None) -> None:
        if tracked is None:
            tracked = self._tracked(request)
            self.policy.ghosts.start(id(request), request.prompt)
        self.cache.queue.step()
        self.cache.start(id(request), request.prompt)
        self._plan(at + request.takes, "end", course, request, tracked)

    def _end(self, at: int, course: Course, request: Request, finished: TrackedRequest[int]) -> None:
        policy, now = self.policy, self.clock.now
        chain = [*request.prompt, *request.reply]
        done = chain if request.computed is None else chain[: request.computed]
        if request.computed is None:
            self.cache.use(request.reply)
        policy.finished(
            finished,
            done,
            min(len(request.prompt), len(done)),
            now,
            retain=(lambda number, block, _: number if block % 97 else GAP_CLASSES) if self.requests > 200 else None,
            **request.more,
        )
        for span in finished.spans:
            self.classes = zlib.crc32(b"%d %d " % (span.end, span.reuse_class), self.classes)
        self.cache.free(finished)
        if request.computed is not None:
            self.cache.forget(request.prompt[request.computed :])
        self._in_use += IN_USE_FOLLOWS * (self.cache.in_use - self._in_use)
        above = policy.ghosts.caches[policy.in_force]
        for tier in self.tiers:
            tier.learn(finished, above)
        policy.learn(finished)
        for ghosts in (policy.ghosts, *(tier.ghosts for tier in self.tiers)):
            ghosts.release(id(request))
        self.requests += 1
        if now - self._fitted_at >= REFIT_S:
            self._fitted_at = now
            epoch = "first" if now < 400.0 else "second"
            policy.set_sidecar_curves(epoch, CURVES[epoch])
            policy.ghosts.resize(self.cache.capacity, in_use=self._in_use)
            policy.refit(now)
            for tier in self.tiers:
                tier.refitted()
        self._follow()
        self._next(at, course)

    def _follow(self) -> None:
        queue = self.cache.queue
        if queue.tables is not self.policy.tables:
            queue.set_tables(self.policy.tables)
        if self.in_force[-1][1] != self.policy.in_force:
            self.in_force.append((self.requests, self.policy.in_force))
        for tier in self.tiers:
            if self.of_tier[-1][1] != tier.rule:
                self.of_tier.append((self.requests, tier.rule))


def _sample(blocks: Sequence[Any], every: int) -> list[Any]:
    return [block for block in blocks if not (block * 2654435761 >> 9) & (every - 1)]


TRAFFIC: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "chats": lambda: Replay(chats, clients=220, capacity=2200).run(2000),
    "agents": lambda: Replay(agents, clients=150, capacity=4200, tier=3000, shares={"tenant 3": 0.1, "tenant 5": 0.05}).run(
        1600
    ),
    "chats under lpc": lambda: Replay(chats, clients=220, capacity=1400, rule="lpc", seed=2).run(500),
    "agents under wa": lambda: Replay(agents, clients=60, capacity=1300, rule="wa", seed=2).run(500),
}


def differences(name: str) -> dict[str, tuple[Any, Any]]:
    """Replay a traffic; return by name the results that differ from the file's: (those of the file, of the code)."""
    before, after = json.loads(RESULTS.read_text())[name], json.loads(json.dumps(TRAFFIC[name]()))
    return {key: (before.get(key), after.get(key)) for key in {**before, **after} if before.get(key) != after.get(key)}


if __name__ == "__main__":
    rows = [f"{json.dumps(name)}: {json.dumps(replay())}" for name, replay in TRAFFIC.items()]
    RESULTS.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    sys.stdout.write(f"wrote {RESULTS}\n")
