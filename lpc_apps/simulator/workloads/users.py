"""A chat service whose users differ as published, and one whose users are all alike; the same with tenants instead of users.

Published of a service's chats (*KVCache Cache in the Wild*, Wang et al., USENIX ATC 2025, arXiv 2506.02634, trace A):

- 54% of the conversations have one turn, 90% at most 5, the longest 232.
- The busiest tenth of the users has 8.9 times the mean number of turns.
- A user hardly ever hits what another one left. 80% of the reuses follow within ten minutes.
- Requests are text, search, image or file.

How the workload has these properties:

- **Turns.** After each turn the conversation continues with the share p, which has a Beta distribution. The parameters fit the
  three figures above.
- **Skew.** Each user begins conversations as a Poisson process. Busy users have 89% of them; rates are lognormal within both.
- **Gaps** are lognormal. A third of the variance is between users, as in the Mooncake trace (FAST 2025).
- **Types.** Each conversation has a type, usually its user's most frequent one. A file is often the one that the user
  asked about before, and nobody else has it. Every user has instructions of their own after the system prompt, which all share.

In `users`, p, gaps and type belong to the user. That is an assumption: the paper publishes how turns differ between users, not
how far one user's conversations resemble each other. In `alike` they are drawn for each conversation from the same
distributions, so no user differs from another except in the rate, and knowing the user must neither gain nor lose. Shares of
types, and the tokens of images, searches and files, are assumptions. Blocks of 16 tokens.

`tenants` are twelve applications on one engine, each with a cache salt and habits of its own, drawn from the same
distributions; requests name no user. A service's few largest clients send most of its requests, and differ (*ServeGen*,
arXiv 2505.09999). In `tenants-alike` each conversation draws its habits.
"""

from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from lpc_apps.simulator.workload import Workload
from lpc_apps.simulator.workloads.chat import FIRST_PROMPT, LATER_PROMPT, REPLY, SYSTEM_PROMPT, Floats, lognormal, tokens_at
from lpc_apps.simulator.workloads.timeline import Prefix, Timeline

BLOCK_TOKENS: Final = 16
REQUESTS: Final = 8_000
USERS: Final = 360
TENANTS: Final = 12
BUSY: Final = 30
"""Busy users, fewer than a tenth of all, because many of the others do not appear in five hours."""
OF_BUSY: Final = 0.89
"""Share of the conversations that busy users begin."""
CONVERSATION_EVERY_S: Final = 3.0
CONTINUES: Final = (1.84, 2.16)
"""Parameters of the Beta distribution of p: 54% of the conversations end after turn 1, 12% reach turn 5, 8% turn 6."""
MAX_TURNS: Final = 232
RATE_SIGMA: Final = 0.8
"""Standard deviation of the logarithm of a user's rate, within the busy ones and within the others."""
EVENLY: Final = 101
"""Draws per user of which one is kept, so that a few busy users have the distribution's mean."""
GAP_S: Final = 100.0
"""Median gap, seconds."""
GAP_SIGMA: Final = 2.1
"""Standard deviation of the logarithm of a gap: 80% are below ten minutes."""
BETWEEN_USERS: Final = 1 / 3
WITHIN: Final = GAP_SIGMA * (1.0 - BETWEEN_USERS) ** 0.5
TYPES: Final = {"text": 0.7, "search": 0.15, "image": 0.05, "file": 0.1}
USUAL: Final = 0.8
"""Share of conversations with the user's most frequent type."""
INSTRUCTIONS: Final = 256
"""Median tokens of a user's own instructions."""
ADDED: Final = {"text": 0.0, "search": 1_500.0, "image": 800.0, "file": 4_000.0}
"""Median tokens that come with the first prompt; those of a search with every prompt."""
SAME_FILE: Final = 0.5
MAX_TOKENS: Final = 32_768


@dataclass(slots=True)
class _Habits:
    """What a user's, or a conversation's, turns have in common. ``gap``: median, seconds."""

    continues: float
    gap: float
    kind: str


class _User:
    """``text``: system prompt and instructions, ``tokens`` long; ``file`` continues it. ``system``: None: nobody else's."""

    def __init__(self, timeline: Timeline, name: str, system: Prefix | None, habits: _Habits) -> None:
        self.name = name
        self.text = timeline.text(system, SYSTEM_PROMPT)
        self.tokens = SYSTEM_PROMPT + round(float(lognormal(timeline.random, INSTRUCTIONS, 0.7, 1)[0]))
        self.habits = habits
        self.file: tuple[Prefix, int] | None = None


@dataclass(frozen=True, slots=True)
class TrueUser:
    """True habits of a user, for bounds.

    Attributes:
        rate: conversations per second.
        continues: probability of another turn.
        gap: median gap, seconds.
        files: share of the conversations that are about a file.
    """

    rate: float
    continues: float
    gap: float
    files: float


@dataclass(frozen=True)
class Truth:
    """The laws of workload `users`, for bounds.

    Attributes:
        users: users by name.
        gap, sigma: median gap of all users, seconds, and standard deviation of its logarithm.
        within: standard deviation of the logarithm of one user's gaps.
        same_file: share of the conversations about a file that are about the previous one.
    """

    users: dict[str, TrueUser]
    gap: float = GAP_S
    sigma: float = GAP_SIGMA
    within: float = WITHIN
    same_file: float = SAME_FILE

    @staticmethod
    def continues(turn: int) -> float:
        """Return the share of the turns with this number that have another one: the Beta distribution's mean by then."""
        a, b = CONTINUES
        return (a + turn - 1) / (a + b + turn - 1)


def truth(seed: int = 0) -> Truth:
    """Return the laws of `users`."""
    found, share = _service(Timeline(seed, BLOCK_TOKENS))
    return Truth(
        {
            user.name: TrueUser(
                float(of_all) / CONVERSATION_EVERY_S,
                user.habits.continues,
                user.habits.gap,
                (1.0 - USUAL) * TYPES["file"] + USUAL * (user.habits.kind == "file"),
            )
            for user, of_all in zip(found, share, strict=True)
        }
    )


def users(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Generate chats whose users differ in how often their conversations continue, in gaps and in types."""
    return _chats("users", seed, requests, alike=False)


def alike(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Generate the same chats, but each conversation draws habits of its own."""
    return _chats("users-alike", seed, requests, alike=True)


def tenants(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Generate chats of a few tenants who differ as the users of `users` do."""
    return _chats("tenants", seed, requests, alike=False, tenants=TENANTS)


def tenants_alike(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Generate the same chats, but each conversation draws habits of its own."""
    return _chats("tenants-alike", seed, requests, alike=True, tenants=TENANTS)


def _chats(name: str, seed: int, requests: int, *, alike: bool, tenants: int = 0) -> Workload:
    timeline = Timeline(seed, BLOCK_TOKENS)
    random = timeline.random
    found, share = _service(timeline, tenants)
    at = 0.0
    # Twice as many conversations as the requests need on average: the last ones have not ended when the workload does.
    for _ in range(requests):
        at += float(random.exponential(CONVERSATION_EVERY_S))
        user = found[int(random.choice(len(found), p=share))]
        _converse(timeline, at, user, _habits(random, 1)[0] if alike else user.habits, tenant=bool(tenants))
    return timeline.workload(name, requests)


def _service(timeline: Timeline, tenants: int = 0) -> tuple[list[_User], Floats]:
    """Return the users, or this number of tenants, and the share of the conversations that each one begins."""
    random = timeline.random
    system = None if tenants else timeline.text()
    groups = [(tenants, 1.0)] if tenants else [(BUSY, OF_BUSY), (USERS - BUSY, 1.0 - OF_BUSY)]
    found: list[_User] = []
    shares: list[Floats] = []
    for number, of_all in groups:
        habits = _habits(random, number, EVENLY)
        found += [_User(timeline, f"user-{len(found) + n}", system, one) for n, one in enumerate(habits)]
        rates = lognormal(random, 1.0, RATE_SIGMA, number)
        shares.append(of_all * rates / rates.sum())
    return found, np.concatenate(shares)


def _habits(random: np.random.Generator, number: int, evenly: int = 1) -> list[_Habits]:
    """Return habits, p and gaps spread over their distributions: each one the median of ``evenly`` neighbouring draws."""
    kept = slice(evenly // 2, None, evenly)
    continues = random.permutation(np.sort(random.beta(*CONTINUES, evenly * number))[kept])
    gaps = random.permutation(np.sort(lognormal(random, GAP_S, GAP_SIGMA * BETWEEN_USERS**0.5, evenly * number))[kept])
    return [_Habits(p, gap, _kind(random)) for p, gap in zip(continues.tolist(), gaps.tolist(), strict=True)]


def _kind(random: np.random.Generator) -> str:
    return str(random.choice(list(TYPES), p=list(TYPES.values())))


def _converse(timeline: Timeline, at: float, user: _User, habits: _Habits, *, tenant: bool) -> None:
    random = timeline.random
    kind = habits.kind if random.random() < USUAL else _kind(random)
    turns = min(int(random.geometric(1.0 - habits.continues)), MAX_TURNS)
    z = random.standard_normal((2, turns))
    prompts = np.concatenate([tokens_at(FIRST_PROMPT, z[0, :1]), tokens_at(LATER_PROMPT, z[0, 1:])])
    text, tokens = user.text, user.tokens
    added = partial(lognormal, random, ADDED[kind], 0.7)
    if kind == "search":
        prompts += added(turns).round().astype(np.int64)
    elif kind == "image":
        prompts[0] += round(float(added(1)[0]))
    elif kind == "file":
        if user.file is None or random.random() >= SAME_FILE:
            user.file = timeline.text(text, tokens), tokens + round(float(added(1)[0]))
        text, tokens = user.file
    timeline.converse(
        at,
        prompts.tolist(),
        tokens_at(REPLY, z[1]).tolist(),
        lognormal(random, habits.gap, WITHIN, turns).tolist(),
        after=text,
        tokens=tokens,
        max_tokens=MAX_TOKENS,
        category=kind,
        user="" if tenant else user.name,
        tenant=user.name if tenant else "",
    )
