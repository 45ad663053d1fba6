"""Workloads that can refute the plug-in: generated from a seed, each made so that some rule of eviction loses on it.

`WORKLOADS[name](seed)` returns the same requests for the same seed; `requests=` says how many, and raises ValueError if the
generator's parameters do not give so many. Sizes are set so that 1% to 50% of the working set is a cache under pressure, and a
replay takes some seconds. To add one: a module here, entered below, and a row of docs/reference/policies.md.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from lpc.simulator.workload import Workload
from lpc.simulator.workloads import adversary, agents, batch_scan, chat, day, documents, few_shot, loop, production

WORKLOADS: Final[Mapping[str, Callable[..., Workload]]] = MappingProxyType(
    {
        "chat-exponential": chat.exponential,
        "chat-lognormal": chat.heavy_tailed,
        "chat-bimodal": chat.bimodal,
        "documents": documents.documents,
        "few-shot": few_shot.few_shot,
        "agents": agents.agents,
        "cliff": agents.cliff,
        "batch-scan": batch_scan.batch_scan,
        "day": day.day,
        "adversary": adversary.regular,
        "adversary-irregular": adversary.irregular,
        "loop": loop.loop,
        "herd": adversary.herd,
        "night": chat.night,
    }
)
"""By name, in the order of tables."""

EVERYDAY: Final[Mapping[str, Callable[..., Workload]]] = MappingProxyType({"production": production.production})
"""By name; not made to refute anything, so not in the tables."""
