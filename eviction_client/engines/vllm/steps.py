"""``Scheduler.schedule`` with the plug-in's work before and after a step: the only place that wraps it."""

import math
from collections.abc import Callable
from typing import Any, Final, Protocol

from eviction_client.engines.vllm.waiting import WarmFirstQueue
from eviction_client.engines.vllm.waiting_prefixes import WaitingPrefixes
from eviction_client.plugin import Plugin
from eviction_client.policy.queue.free_queue import RENEWED_S

STEP_S: Final = 1.04 * RENEWED_S
"""Seconds between two runs of the pending work unless requests wait: slightly more than the interval at which values are
renewed."""


class Work(Protocol):
    """The plug-in's work around a step: :class:`eviction_client.engines.vllm.hooks.Hooks`."""

    plugin: Plugin
    keep: WaitingPrefixes

    def step(self) -> bool:
        """Run the pending work; return whether some remains."""

    def started(self, scheduled: Any) -> None:
        """Look at the requests that a step has started."""


class Steps:
    """Runs the plug-in's pending work before a step of the scheduler, and looks at the started requests after it.

    Each step passes here with the processor's caches cold, so without pending work little is read.

    Args:
        stock: the scheduler's own ``schedule``.
        hooks: does the work.

    Attributes:
        waiting: the waiting queue that serves warm first; None: the waiting queue is vLLM's.
    """

    def __init__(self, stock: Callable[..., Any], hooks: Work) -> None:
        self.waiting: WarmFirstQueue | None = None
        self._stock = stock
        self._hooks = hooks
        self._plugin = hooks.plugin
        self._now = hooks.plugin.clock.source
        self._beyond, self._counted = hooks.keep.beyond, hooks.keep.counted
        self._worked_at = self._due_at = -math.inf

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule a step, as ``Scheduler.schedule``."""
        queue = self.waiting
        if queue is not None and not queue.busy:
            queue = None
        if queue is not None:
            queue.step_begins()
        try:
            now = self._now()
        except Exception as error:
            self._plugin.failed(error)
            now = None
        # Without the time, or if the clock was set back, work is due in each step.
        if self._beyond or now is None or not self._worked_at <= now < self._due_at:
            more = self._hooks.step()
            if now is not None:
                self._worked_at, self._due_at = now, now if more else now + STEP_S
        scheduled = self._stock(*args, **kwargs)
        if self._beyond or self._counted:
            self._hooks.started(scheduled)
        if queue is not None:
            queue.step_ends(scheduled)
            self._plugin.seconds += queue.seconds
            queue.seconds = 0.0
        return scheduled
