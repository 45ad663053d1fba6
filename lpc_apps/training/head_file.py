"""A head's file, and the packaged heads. An export reads them without PyTorch."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from lpc.errors import LpcError
from lpc.files import writing

FORMAT: Final = "lpc-head-2"
RecipeName = Literal["default", "lpc"]
SHIPPED_HEADS: Final = Path(__file__).parent / "heads"
"""Folder of the packaged heads in the layout of `lpc train`: ``<name>/head.safetensors`` and a card."""
DEFAULT_HEAD: Final = SHIPPED_HEADS / "default" / "head.safetensors"
MODELS: Final[Mapping[RecipeName, str]] = {"default": "default", "lpc": "e5-small"}
"""Names in the model repository of the packaged heads on their encoders."""


class HeadError(LpcError):
    """A head cannot be trained or read."""


@dataclass(frozen=True)
class HeadFile:
    """The parameters of `lpc_apps.training.head.Head` by name, fp32, and its metadata."""

    parameters: Mapping[str, NDArray[np.float32]]
    metadata: Mapping[str, Any]

    @property
    def scalars(self) -> int:
        """Number of scalar inputs."""
        return len(self.parameters["scalar_mean"])

    @property
    def width(self) -> int:
        """Width of the embedding."""
        return int(self.parameters["hidden.0.weight"].shape[1]) - self.scalars

    def digest(self) -> str:
        """Return the SHA-256 of the parameters, hexadecimal."""
        digest = hashlib.sha256()
        for name, values in sorted(self.parameters.items()):
            digest.update(name.encode())
            digest.update(values.tobytes())
        return digest.hexdigest()

    def save(self, path: Path) -> None:
        """Write the head and its metadata atomically. Raises OSError."""
        # One metadata entry, because safetensors writes several in random order, and equal heads must be equal files.
        parameters = {name: np.ascontiguousarray(values) for name, values in self.parameters.items()}
        data = save(parameters, {FORMAT: json.dumps(self.metadata, sort_keys=True)})
        with writing(path, 0o644) as file:  # not safetensors' own writer, whose error of a full disk is not an OSError
            file.write(data)

    @classmethod
    def load(cls, path: Path) -> "HeadFile":
        """Read a head. Raises HeadError if the file is missing or is not a head."""
        try:
            with safe_open(path, "np") as file:
                header = file.metadata() or {}
                parameters = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except FileNotFoundError as error:
            raise HeadError(f"no head at {path}: train one with `lpc train`") from error
        except (OSError, SafetensorError) as error:
            raise HeadError(f"{path} is not a readable head: {error}; train one with `lpc train`") from error
        try:
            metadata = json.loads(header[FORMAT])
        except (KeyError, ValueError, RecursionError):
            metadata = None
        if not isinstance(metadata, dict):
            raise HeadError(f"{path} is not a head of format {FORMAT}: train one with `lpc train`")
        return cls(parameters, metadata)
