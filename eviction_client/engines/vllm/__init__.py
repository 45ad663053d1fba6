"""The adapter to vLLM: ``--scheduler-cls eviction_client.engines.vllm.LearnedScheduler``.

The scheduler is loaded when it is first asked for: `lpc doctor` reads the releases below where there is no vLLM.
"""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from eviction_client.engines.vllm.scheduler import LearnedScheduler

__all__ = ["TESTED", "LearnedScheduler"]

TESTED: Final = ("0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
"""Releases against which the tests of queue and hooks were run (`make engine-versions`)."""


def __getattr__(name: str) -> Any:
    if name == "LearnedScheduler":
        from eviction_client.engines.vllm.scheduler import LearnedScheduler

        globals()[name] = LearnedScheduler
        return LearnedScheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
