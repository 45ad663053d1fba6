"""The shipped prior: how soon blocks are used again, by gap and new tokens, on open logs.

It gives the policy an order from the first request on. Against PRIOR_WEIGHT blocks at risk, a cache's own counts outweigh it
within minutes. `python -m benchmarks prior` writes the file, which names the logs. Their licences allow it: it holds rates.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from eviction_client.policy.features import GAP_CLASSES, NEW_GROUPS
from lpc.model.curve import INTERVALS


class Prior:
    """Hazards [INTERVALS] by cell.

    Args:
        hazards: by gap class and new-token group.
    """

    def __init__(self, hazards: Mapping[tuple[int, int], Sequence[float]]) -> None:
        self._hazards = hazards

    def of(self, gap: int, new: int) -> Sequence[float]:
        """Return the hazards of a cell."""
        return self._hazards[gap, new]


@cache
def shipped() -> Prior:
    """Return the prior in this package."""
    cells = json.loads(files(__package__).joinpath("prior.json").read_text())["hazards"]
    found = {(gap, new): tuple(cells[f"{gap},{new}"]) for gap in range(GAP_CLASSES) for new in range(NEW_GROUPS)}
    assert all(len(hazards) == INTERVALS for hazards in found.values())
    return Prior(found)
