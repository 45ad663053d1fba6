"""The head: from an embedding and a few scalars to the log-odds that the conversation continues.

Paper (Learned Prefix Caching, NeurIPS 2025, section 3.3): an MLP of three layers with 128 hidden units over the embedding
and the number of turns.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from lpc.errors import LpcError

HIDDEN: Final = 128
FORMAT: Final = "lpc-head-2"
SHIPPED_HEADS: Final = Path(__file__).parent / "heads"
"""Where the package keeps the heads that it ships, as `lpc train` lays them out: ``<name>/head.safetensors`` and a card."""
DEFAULT_HEAD: Final = SHIPPED_HEADS / "default" / "head.safetensors"


class HeadError(LpcError):
    """A head's file cannot be used. The message says why and what to do."""


class Head(nn.Module):
    """Embedding [batch, width] and scalars [batch, n] to log-odds [batch].

    Scalars are counts and lengths: their logarithms are standardised inside. The embedding is taken as it is: scaling it up
    to unit components (and standardising it) made the validation loss worse.

    Attributes:
        metadata: what the head was trained for and on: name, encoder, feature settings, figures.
    """

    scalar_mean: Tensor
    scalar_scale: Tensor

    def __init__(self, width: int, scalars: int, hidden: int = HIDDEN, metadata: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.metadata: dict[str, Any] = metadata or {}
        self.width = width
        self.register_buffer("scalar_mean", torch.zeros(scalars))
        self.register_buffer("scalar_scale", torch.ones(scalars))
        self.hidden = nn.Sequential(nn.Linear(width + scalars, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.output = nn.Linear(hidden, 1)

    def forward(self, embedding: Tensor, scalars: Tensor, dropout: float = 0.0) -> Tensor:
        """Return the log-odds, [batch]. ``dropout``: of the embedding and of each hidden layer, in training."""
        standardised = (torch.log1p(scalars) - self.scalar_mean) / self.scalar_scale
        if not dropout:
            return self.output(self.hidden(torch.cat((embedding, standardised), dim=1))).squeeze(1)  # type: ignore[no-any-return]
        dropped = torch.cat((nn.functional.dropout(embedding, dropout), standardised), dim=1)
        for layer in self.hidden:
            dropped = layer(dropped)
            if isinstance(layer, nn.ReLU):
                dropped = nn.functional.dropout(dropped, dropout)
        return self.output(dropped).squeeze(1)  # type: ignore[no-any-return]

    def calibrate(self, slope: float, offset: float) -> None:
        """Fold a calibration of the log-odds, ``slope · z + offset``, into the last layer."""
        with torch.no_grad():
            self.output.weight.mul_(slope)
            self.output.bias.mul_(slope).add_(offset)

    def save(self, path: Path) -> None:
        """Write the head and its metadata, whole or not at all."""
        # One entry of metadata: safetensors writes several in no fixed order, and the same head shall be the same file.
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        tensors = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        save_file(tensors, partial, {FORMAT: json.dumps(self.metadata, sort_keys=True)})
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Head":
        """Read a head. Raises HeadError when the file is missing or is not a head."""
        try:
            with safe_open(path, "pt") as file:
                header = file.metadata() or {}
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except FileNotFoundError as error:
            raise HeadError(f"no head at {path}: train one with `lpc train`") from error
        except (OSError, SafetensorError) as error:
            raise HeadError(f"{path} is not a readable head: {error}; train one with `lpc train`") from error
        if FORMAT not in header:
            raise HeadError(f"{path} is not a head of format {FORMAT}: train one with `lpc train`")
        scalars = state["scalar_mean"].numel()
        hidden, inputs = state["hidden.0.weight"].shape
        head = cls(inputs - scalars, scalars, hidden, json.loads(header[FORMAT]))
        head.load_state_dict(state)
        return head.eval()

    def digest(self) -> str:
        """Return the SHA-256 of the parameters, hexadecimal."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()
