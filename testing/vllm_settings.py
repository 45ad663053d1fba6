"""Settings with which vLLM is a quiet process with one thread."""

import os
from typing import Final

SETTINGS: Final = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # Requests that end in the same step reach the offload tier in the order of a set of their names.
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1",
    "PYTHONHASHSEED": "0",
    # Two layers of 64 are too small to parallelise: threads that synchronise at every layer are slow on busy cores.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def settle() -> None:
    """Make vLLM a quiet process with one thread. Variables that are set stay. Call it before vLLM is imported."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
