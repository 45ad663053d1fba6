"""`python -m benchmarks.scaled_clock SCALE ARGUMENTS`: `lpc ARGUMENTS`, whose seconds last SCALE seconds.

So a program's limits and estimates keep their ratio to engines that serve in scaled time.
"""

import asyncio
import selectors
import sys
import time
from typing import Any


class _Selector(selectors.DefaultSelector):
    scale = 1.0

    def select(self, timeout: float | None = None) -> Any:
        return super().select(None if timeout is None else timeout * self.scale)


class _Loops(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.SelectorEventLoop(_Selector())
        loop.time = time.monotonic  # type: ignore[method-assign]
        return loop


def scale_time(scale: float) -> None:
    """Let monotonic seconds and those of event loops last this many seconds in this process."""
    monotonic = time.monotonic
    time.monotonic = lambda: monotonic() / scale
    _Selector.scale = scale
    asyncio.set_event_loop_policy(_Loops())


if __name__ == "__main__":
    scale_time(float(sys.argv[1]))
    from lpc_cli.start import main

    sys.argv = ["lpc", *sys.argv[2:]]
    main()
