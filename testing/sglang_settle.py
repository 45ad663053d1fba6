"""Makes SGLang importable without a GPU. Imports nothing of this project."""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

TORCHVISION: Final = ("", ".io", ".transforms", ".transforms.functional", ".transforms.v2", ".transforms.v2.functional")


class _Anything(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


def settle() -> None:
    """Install a stub of torchvision if it is missing: SGLang imports it, but its wheel on PyPI needs another PyTorch.

    Call it before SGLang is imported.
    """
    if importlib.util.find_spec("torchvision") is not None:
        return
    import transformers.utils.import_utils as found

    # Transformers caches this check, so it does not mistake the stub for torchvision.
    found.is_torchvision_available()
    found.is_torchvision_v2_available()
    for name in TORCHVISION:
        name = f"torchvision{name}"
        module = ModuleType(name)
        module.__path__ = []
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__dict__["__getattr__"] = lambda attribute, name=name: getattr(_Anything(name, (), {}), attribute)
        sys.modules[name] = module
