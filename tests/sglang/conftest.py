"""What SGLang imports and these tests do not need: torchvision, whose wheel on PyPI goes with another build of PyTorch."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import transformers.utils.import_utils as found

# Asked once and remembered, so that transformers does not take the stand-in for the real one.
found.is_torchvision_available()
found.is_torchvision_v2_available()


class Anything(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


def stand_in(name: str) -> None:
    module = ModuleType(name)
    module.__path__ = []
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    module.__getattr__ = lambda attribute: getattr(Anything(name, (), {}), attribute)  # type: ignore[method-assign]
    sys.modules[name] = module


for name in ("torchvision", "torchvision.io", "torchvision.transforms", "torchvision.transforms.functional"):
    stand_in(name)
for name in ("torchvision.transforms.v2", "torchvision.transforms.v2.functional"):
    stand_in(name)
