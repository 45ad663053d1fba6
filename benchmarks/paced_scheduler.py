"""vLLM's scheduler with the time of a GPU: a step lasts as long as a larger model would take.

So seats are held by time, not by this machine's processors, and what LMCache moves meanwhile has its effect.
"""

import time
from typing import Any, Final

from vllm.v1.core.sched.scheduler import Scheduler

STEP_S: Final = 0.018
"""Least seconds of a step."""
TOKEN_S: Final = 1.5e-4
"""Seconds per prompt token that a step computes."""


class PacedScheduler(Scheduler):  # type: ignore[misc]
    """Lets a step with work last longer."""

    def schedule(self, *arguments: Any, **named: Any) -> Any:
        """Return the plan of the next step, after the time that it takes."""
        plan = super().schedule(*arguments, **named)
        if plan.total_num_scheduled_tokens:
            prefilled = sum(tokens for tokens in plan.num_scheduled_tokens.values() if tokens > 1)
            time.sleep(STEP_S + TOKEN_S * prefilled)
        return plan
