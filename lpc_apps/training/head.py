"""The head: computes the log-odds that a conversation continues from an embedding and a few scalars.

Paper (Learned Prefix Caching, NeurIPS 2025, section 3.3): an MLP of three layers with 128 hidden units over the embedding
and the number of turns.
"""

from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from lpc_apps.training.head_file import HeadFile

HIDDEN: Final = 128


class Head(nn.Module):
    """Embedding [batch, width] and scalars [batch, n] to log-odds [batch].

    Scalars are counts and lengths; their logarithms are standardised inside. The embedding is not scaled: unit components or
    standardisation increased the validation loss.

    Attributes:
        metadata: name, encoder, feature settings, data and metrics of the head.
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
        """Return the log-odds, [batch]. ``dropout`` applies to the embedding and each hidden layer, in training."""
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

    def to_file(self) -> HeadFile:
        """Return the contents of the head's file."""
        return HeadFile({name: tensor.detach().numpy() for name, tensor in self.state_dict().items()}, self.metadata)

    def save(self, path: Path) -> None:
        """Write the head and its metadata atomically."""
        self.to_file().save(path)

    @classmethod
    def load(cls, path: Path) -> "Head":
        """Read a head. Raises HeadError if the file is missing or is not a head."""
        file = HeadFile.load(path)
        head = cls(file.width, file.scalars, len(file.parameters["hidden.0.bias"]), dict(file.metadata))
        head.load_state_dict({name: torch.from_numpy(values.copy()) for name, values in file.parameters.items()})
        return head.eval()

    def digest(self) -> str:
        """Return the SHA-256 of the parameters, hexadecimal."""
        return self.to_file().digest()
