"""Opens an ONNX Runtime session on CUDA or the CPU, and reports which one it uses."""

import contextlib
import ctypes
import io
import logging
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal, TypeAlias

from lpc.distribution import install
from lpc.errors import LpcError
from lpc.model.onnx_runtime import ort

log = logging.getLogger(__name__)

MIB: Final = 2**20
Provider: TypeAlias = Literal["cpu", "cuda"]
CUDA: Final = "CUDAExecutionProvider"


class ProviderError(LpcError):
    """The required execution provider is unavailable."""


@dataclass(frozen=True)
class InferenceSettings:
    """Settings of a session. ``threads`` 0: one per core; ``cuda_memory_mib`` limits the CUDA arena."""

    provider: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = 0
    cuda_memory_mib: int = 512


def open_session(graph: Path, settings: InferenceSettings) -> tuple[ort.InferenceSession, Provider]:
    """Return a session and its provider. ``auto`` uses CUDA if possible, else the CPU, and logs the reason.

    Raises:
        ProviderError: CUDA is required but unavailable.
        Exception: the library cannot load the graph.
    """
    if settings.provider != "cpu":
        found = _on_cuda(graph, settings)
        if isinstance(found, ort.InferenceSession):
            return found, "cuda"
        if settings.provider == "cuda":
            raise ProviderError(f"provider is cuda, but {found}; with provider=auto it would run on the CPU")
        log.info("inference runs on the CPU: %s", found)
    options = _options(settings)
    # The thread pool must not spin between batches: the cores belong to the engine and the event loop.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"]), "cpu"


def why_no_cuda() -> str | None:
    """Return one clause on why this process cannot use CUDA; None if no reason is known."""
    if CUDA not in ort.get_available_providers():
        return f"this build of ONNX Runtime has no CUDA: in place of the extra [server], {install('gpu')}"
    # Check the driver first: loading CUDA's libraries takes 200 MB, wasted on a machine without a GPU.
    if (why := _driver_problem()) is not None:
        return why
    missing = _missing_libraries()
    if missing:
        return f"CUDA's libraries {', '.join(missing)} cannot be loaded: {install('gpu')}, which brings them"
    return None


@cache
def _driver_problem() -> str | None:
    """Return one clause on what is wrong with the NVIDIA driver or its devices; None if they work."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver (libcuda.so.1): install it, or give the container a GPU"
    version, needs = ctypes.c_int(), str(ort.cuda_version or "")
    driver.cuDriverGetVersion(ctypes.byref(version))
    if needs and version.value // 1000 < int(needs.split(".")[0]):
        supported = f"{version.value // 1000}.{version.value % 1000 // 10}"
        return f"the NVIDIA driver supports CUDA {supported}, but this ONNX Runtime needs {needs}: update the driver"
    if code := driver.cuInit(0):
        return f"the NVIDIA driver finds no usable device (cuInit: {code}): give the container a GPU"
    return None


@cache
def _missing_libraries() -> tuple[str, ...]:
    """Load CUDA and cuDNN from the packages of the extra `gpu` or from the system; return the names of missing libraries."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):  # preload_dlls prints failures and raises nothing
        ort.preload_dlls()
    return tuple(re.findall(r"^Failed to load (?:.*/)?([^:/]+):", output.getvalue(), re.MULTILINE))


def _on_cuda(graph: Path, settings: InferenceSettings) -> "ort.InferenceSession | str":
    """Return a session on CUDA, or one clause on why there is none."""
    if (why := why_no_cuda()) is not None:
        return why
    arena = {"gpu_mem_limit": settings.cuda_memory_mib * MIB, "arena_extend_strategy": "kSameAsRequested"}
    providers = [(CUDA, arena), "CPUExecutionProvider"]
    try:
        # No fallback: it would switch to the CPU silently at the first failure.
        session = ort.InferenceSession(str(graph), _options(settings), providers=providers, enable_fallback=0)
    except Exception as error:  # the libraries raise their own C++ types
        return f"no CUDA device is usable ({first_line(error)}): check the driver with nvidia-smi"
    if session.get_providers()[0] != CUDA:
        return "ONNX Runtime could not use a CUDA device, see its message above: check the driver with nvidia-smi"
    return session


def _options(settings: InferenceSettings) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = settings.threads
    options.log_severity_level = 3
    return options


def first_line(error: Exception) -> str:
    """Return the first line of a library's error, at most 200 characters."""
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__
