"""The grid of similarities on which evidence is counted: fine near 1, where sentence encoders have all that matters.

Level 0 is the top; a similarity is on level j where 1 - (j / 64)^2 is the highest edge that it reaches. Ten levels lie
above .975, twenty-two above .88; an encoder whose vectors lie less close together uses the lower ones.
"""

import math
from typing import Final

LEVELS: Final = 64


def level_of(similarity: float) -> int:
    """Return the level, 0 to LEVELS - 1, of a cosine similarity; what lies above 1 by rounding is on level 0."""
    distance = max(0.0, 1.0 - similarity - 1e-6)  # fp16 vectors of unit length: equal texts give 1 - 1e-7 or so
    return min(LEVELS - 1, max(0, math.ceil(math.sqrt(distance) * LEVELS) - 1))


def edge(level: int) -> float:
    """Return the lowest similarity of a level, as :func:`level_of` has it."""
    return 1.0 - ((level + 1) / LEVELS) ** 2 - 1e-6
