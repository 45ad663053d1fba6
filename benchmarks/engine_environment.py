"""How benchmarks run vLLM in their process: as one process, quiet, on one thread. To be settled before it is imported."""

import os
from typing import Final

SETTINGS: Final = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # Requests that end in one step reach the offload tier in the order of a set of their names.
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1",
    # Two layers of 64 are nothing to share out, and threads that wait for each other at every layer stop where cores are busy.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def settle() -> None:
    """Set what the environment does not say already."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
