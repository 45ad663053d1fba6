"""Generated workloads that can refute the plug-in: on each of them some eviction rule loses.

`WORKLOADS[name](seed)` returns the same requests for the same seed. `requests=` sets their number; ValueError is raised if the
generator's parameters yield fewer. A cache of 1% to 50% of the working set is under pressure, and a replay takes seconds. To
add one, write a module here, enter it below, and add a row to docs/reference/policies.md.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from lpc_apps.simulator.workload import Workload
from lpc_apps.simulator.workloads import (
    adversary,
    agents,
    applications,
    batch_scan,
    chat,
    day,
    documents,
    few_shot,
    loop,
    production,
    users,
)

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
        "adversary": adversary.adversary,
        "loop": loop.loop,
        "users": users.users,
        "users-alike": users.alike,
        "tenants": users.tenants,
        "tenants-alike": users.tenants_alike,
        "applications": applications.applications,
    }
)
"""Generators by name, in the order of the tables."""

EVERYDAY: Final[Mapping[str, Callable[..., Workload]]] = MappingProxyType({"production": production.production})
"""Generators by name. These refute nothing, so the tables leave them out."""
