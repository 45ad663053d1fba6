"""How many tokens a batch may have: what is fastest where it runs, as far as the memory that is given holds it.

Nobody can say beforehand what a batch takes: 64 conversations of 512 tokens took 4.2 GB on a CPU, and another precision,
provider or release takes something else. So it is measured when a model is loaded, with the model itself: batches of the
longest input, 1, 2, 4 ... at a time, each only if the ones before say that it will fit.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from lpc.model.features import Features
from lpc.model.inference import Model
from lpc.model.session import Provider
from predictor_service.batching.memory import MIB, MemoryGiven, peak_during, resident

log = logging.getLogger(__name__)

BATCH_TOKENS: Final[dict[Provider, int]] = {"cpu": 512, "cuda": 32768}
"""Most tokens that are of use. On a CPU a larger batch is slower, not faster: 200 ShareGPT conversations took 3.9 s at 512, 4.3
s at 1024, 5.2 s at 2048 and 6.7 s at 4096 tokens (two cores, int8), as more padding is computed and less stays in cache."""
RESERVE_SHARE: Final = 0.1
RESERVE: Final = 64 * MIB
"""Of the memory given, what no batch may have, a share and bytes: requests on their way, buffers of gRPC, what fragments."""


class TokenBudget:
    """Tokens that a batch may have now, padding counted. Whoever forms batches and whoever tells of the limit read it here.

    Args:
        setting: the operator's number of tokens; 0: measured.
        given: memory that the process may have; None: only what fails is too much.
        held: bytes that the process will hold later and does not hold yet.
    """

    def __init__(self, setting: int = 0, given: MemoryGiven | None = None, held: int = 0) -> None:
        self.tokens = setting or BATCH_TOKENS["cpu"]
        self._setting = setting
        self._given = given
        self._held = held

    def measure(self, model: Model) -> None:
        """Find the budget for a model that nobody uses yet. Runs it, unless the operator has set the number.

        Where not even one of the longest inputs fits beside the reserve, it is one and the log says so.
        """
        if self._setting:
            return
        most = BATCH_TOKENS[model.provider]
        if self._given is None and model.provider == "cpu":
            self.tokens = most
            return
        features = model.manifest.features
        longest = Features([0] * features.token_budget, (1.0,) * len(features.scalars))
        self.tokens = measured(lambda items: model.run([longest] * items), features.token_budget, most, self._room())

    def shrink(self, tokens: int) -> None:
        """A batch of so many tokens did not fit: from now on half of it at most."""
        self.tokens = max(1, min(self.tokens, tokens // 2))

    def _room(self) -> int | None:
        if self._given is None:
            return None
        return int(self._given.bytes * (1 - RESERVE_SHARE)) - RESERVE - self._held


def measured(
    run: Callable[[int], object],
    length: int,
    most: int,
    room: int | None,
    *,
    now: Callable[[], int] = resident,
    peak: Callable[[Callable[[], object]], int] = peak_during,
) -> int:
    """Return the tokens of the largest batch, at most ``most``, that runs while the process stays within ``room`` bytes.

    Args:
        run: runs a batch of so many of the longest inputs. Raises MemoryError where that does not fit.
        length: tokens of the longest input.
        most: more is of no use.
        room: None: whatever does not fail fits.
        now: bytes that the process holds.
        peak: runs something, and returns the most bytes that were held meanwhile.
    """
    base, each, fits, items = now(), 0.0, 0, 1
    while items == 1 or items * length <= most:
        if fits and room is not None and base + each * items > room:
            # Nothing between the two: a size that never ran may take far more, as the runtime's arena grows by doubling.
            break
        try:
            top = peak(partial(run, items))
        except MemoryError as error:
            log.info("%s", error)
            break
        each = max(each, (top - base) / items)
        if room is not None and top > room:
            break
        fits, items = items, 2 * items
    tokens = min(most, max(1, fits) * length)
    may = "no limit is set" if room is None else f"{room / MIB:,.0f} MiB may be used"
    if fits:
        text = "batches of at most %d tokens: %.0f MiB without one, %.1f MiB for each conversation of %d tokens, and %s"
        log.info(text, tokens, base / MIB, each / MIB, length, may)
    else:
        text = (
            "one conversation of %d tokens takes this process to %.0f MiB, and %s: raise the memory limit, or let the sidecar "
            "remember less (LPC_LABEL_MEMORY_TURNS, LPC_RETURNS_TURNS)"
        )
        log.warning(text, length, (base + each) / MIB, may)
    return tokens
