"""Lets the scheduler and allocator of old vLLM releases be imported beside today's torch, triton and transformers.

Nothing of vLLM's is changed: what is put in are names that those packages had when these releases were made, and that the parts
under test import but never call.
"""

import contextlib
import importlib.util
import sys
from types import ModuleType
from typing import Any, Final

ABSENT: Final = ("vllm._C", "vllm._moe_C", "gguf")
"""Compiled parts, since the wheel is unpacked without them, and packages that vLLM no longer asks for."""


class Absent(ModuleType):
    """A module that has every name, each of a class of its own."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def bring_back() -> None:
    """Do it, once, before vLLM is imported."""
    with contextlib.suppress(ImportError):
        import triton.runtime.cache as cache

        for name in ("default_cache_dir", "default_dump_dir", "default_override_dir"):
            if not hasattr(cache, name):
                setattr(cache, name, lambda: "")
    from transformers import AutoConfig

    stock = AutoConfig.register

    def register(model_type: str, config: Any, exist_ok: bool = False) -> None:  # 0.9: transformers has these models itself now
        stock(model_type, config, exist_ok=True)

    AutoConfig.register = staticmethod(register)  # type: ignore[method-assign]
    for name in ABSENT:
        if name.startswith("vllm.") or importlib.util.find_spec(name) is None:
            sys.modules.setdefault(name, Absent(name))
