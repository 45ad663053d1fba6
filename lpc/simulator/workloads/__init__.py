"""Workloads that can refute us: generated from a seed, each made so that some rule of eviction loses on it.

`WORKLOADS[name](seed)` returns the same requests for the same seed. Sizes are set so that 1% to 50% of the working set is a
cache under pressure, and a replay takes some seconds. To add one: a module here, entered below.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from lpc.simulator.workload import Workload
from lpc.simulator.workloads import (
    adversary,
    agents,
    batch_scan,
    chat,
    cliff,
    day,
    documents,
    few_shot,
    herd,
    loop,
    night,
    production,
)

__all__ = ["EVERYDAY", "WORKLOADS", "Generator"]


@dataclass(frozen=True)
class Generator:
    """A workload that can be drawn.

    Attributes:
        draw: called with the seed, and perhaps with `requests`.
        description: one line for tables.
        linked: share of its conversations that could be recognised by name, about: 1, some, none.
    """

    draw: Callable[..., Workload]
    description: str
    linked: str = "all"

    def __call__(self, seed: int = 0, **size: int) -> Workload:
        """Draw it. ``requests``: how many. Raises ValueError if the generator's parameters do not give so many."""
        return self.draw(seed, **size)


WORKLOADS: Final[Mapping[str, Generator]] = MappingProxyType(
    {
        "chat-exponential": Generator(chat.exponential, "ShareGPT's lengths, think times exponential, mean 100 s"),
        "chat-lognormal": Generator(chat.heavy_tailed, "ShareGPT's lengths, think times lognormal, mean 100 s, sigma 1.3"),
        "chat-bimodal": Generator(chat.bimodal, "ShareGPT's lengths; users read for 25 s, or are away for an hour"),
        "documents": Generator(
            documents.documents, "several users ask about the same long documents while these are hot", "some"
        ),
        "few-shot": Generator(few_shot.few_shot, "API calls of one turn behind their application's long instructions", "none"),
        "agents": Generator(agents.agents, "coding agents: tool pauses of seconds, human pauses of minutes, growing prompts"),
        "cliff": Generator(
            cliff.cliff, "agents in a closed loop, their live context 0.5, 1.2 and 5 times a cache of 20, 8 and 2%"
        ),
        "batch-scan": Generator(
            batch_scan.batch_scan, "chats, some with long documents, and jobs that scan such documents once", "some"
        ),
        "day": Generator(
            day.day, "night jobs, fast chats, one-shot questions, slow chats, documents, agents: 25 minutes each", "some"
        ),
        "adversary": Generator(adversary.regular, "which of two kinds returns is turned around every 10 minutes"),
        "adversary-irregular": Generator(adversary.irregular, "the same, turned around after 1 to 12 minutes"),
        "loop": Generator(loop.loop, "suites of prompts run round and round, larger than the cache, and chats", "some"),
        "herd": Generator(herd.herd, "classes whose members all return at the same instant, and single users"),
        "night": Generator(night.night, "chats, eight silent hours, then the next day with other habits"),
    }
)
"""By name, in the order of tables."""

EVERYDAY: Final[Mapping[str, Generator]] = MappingProxyType(
    {"production": Generator(production.production, "an hour of chat in the shape of a real trace (Mooncake)")}
)
"""By name; not made to refute anything, so not in the tables."""
