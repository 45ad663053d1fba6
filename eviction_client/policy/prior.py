"""The shipped prior: how soon blocks are used again, by gap and new tokens, on open logs.

It gives the policy an order from the first request on. Against PRIOR_WEIGHT blocks at risk, a cache's own counts outweigh it
within minutes. `python -m benchmarks prior` writes the file, which names the logs. Their licences allow it: it holds rates.
"""

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from eviction_client.policy.request import GAP_CLASSES, NEW_GROUPS
from lpc.model.curve import INTERVALS

Prior = Sequence[Sequence[float]]
"""Hazards [INTERVALS] by cell, in the order of `eviction_client.policy.classes.cell_of`."""


@cache
def shipped() -> Prior:
    """Return the prior in this package."""
    cells = json.loads(files(__package__).joinpath("prior.json").read_text())["hazards"]
    found = [tuple(cells[f"{gap},{new}"]) for gap in range(GAP_CLASSES) for new in range(NEW_GROUPS)]
    assert all(len(hazards) == INTERVALS for hazards in found)
    return found
