"""What SGLang needs to be imported where there is no GPU. It imports nothing of this project."""

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
    """Put a stand-in where torchvision is not installed: SGLang imports it, and its wheel on PyPI goes with another PyTorch.

    Call it before SGLang is imported.
    """
    if importlib.util.find_spec("torchvision") is not None:
        return
    import transformers.utils.import_utils as found

    # Asked once and remembered, so that transformers does not take the stand-in for the real one.
    found.is_torchvision_available()
    found.is_torchvision_v2_available()
    for name in TORCHVISION:
        name = f"torchvision{name}"
        module = ModuleType(name)
        module.__path__ = []
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__dict__["__getattr__"] = lambda attribute, name=name: getattr(_Anything(name, (), {}), attribute)
        sys.modules[name] = module
