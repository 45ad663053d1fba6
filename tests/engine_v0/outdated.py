"""Makes the scheduler and allocator of old vLLM releases importable with current torch, triton and transformers.

It does not change vLLM. It adds names that those packages had at the time, which the tested parts import but never call.
"""

import contextlib
import importlib.util
import sys
from types import ModuleType
from typing import Any, Final

ABSENT: Final = ("vllm._C", "vllm._moe_C", "gguf")
"""vLLM's compiled parts, which are not unpacked, and packages that current vLLM does not require."""


class Absent(ModuleType):
    """A module in which every name exists, each as a separate class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def bring_back() -> None:
    """Install the stubs. Call it once, before vLLM is imported."""
    with contextlib.suppress(ImportError):
        import triton.runtime.cache as cache

        for name in ("default_cache_dir", "default_dump_dir", "default_override_dir"):
            if not hasattr(cache, name):
                setattr(cache, name, lambda: "")
    from transformers import AutoConfig

    stock = AutoConfig.register

    # 0.9 registers models that current transformers has itself
    def register(model_type: str, config: Any, exist_ok: bool = False) -> None:
        stock(model_type, config, exist_ok=True)

    AutoConfig.register = staticmethod(register)  # type: ignore[method-assign]
    for name in ABSENT:
        if name.startswith("vllm.") or importlib.util.find_spec(name) is None:
            sys.modules.setdefault(name, Absent(name))
