"""Sentence encoders: weights, tokenizer and origin."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from lpc.errors import LpcError

WORDS: Final = "embeddings.word_embeddings.weight"
ROWS: Final = 8192
"""Words that are converted at once: each fp32 copy of a whole table of 250,037 words takes up to 384 MB."""


class EncoderError(LpcError):
    """An encoder cannot be loaded. The message says why and what to do."""


@dataclass(frozen=True)
class Encoder:
    """A BERT-like encoder: post-layer normalisation, absolute positions, GELU (the exact one). Or, without layers, its words.

    Attributes:
        weights: arrays by their names in `transformers.BertModel`, fp32; matrices [output features, input features]. Of an
            encoder without layers only WORDS, and the mean of a text's words is its embedding.
        heads: number of attention heads; each has width / heads components.
        epsilon: epsilon of layer normalisation.
        first_position: row of the position embeddings that the first token takes: 0 in BERT, 2 in RoBERTa.
        tokenizer: tokenizer without post-processing; its vocabulary has the special tokens `<s>`, `<pad>`, `</s>`.
        id: source and model.
        sha256: digest of the weights' file, hexadecimal.
        prefix: text before every input, as in training: "query: " for the e5 family.
    """

    weights: Mapping[str, NDArray[np.float32]]
    heads: int
    epsilon: float
    first_position: int
    tokenizer: Tokenizer
    id: str
    sha256: str
    prefix: str = ""

    @property
    def width(self) -> int:
        """Width of the embeddings."""
        return int(self.weights[WORDS].shape[1])

    @property
    def layers(self) -> int:
        """Number of layers."""
        return sum(name.endswith("attention.self.query.weight") for name in self.weights)

    @property
    def positions(self) -> NDArray[np.float32]:
        """Sum of position and token-type embeddings for tokens 0, 1, ..."""
        table = self.weights["embeddings.position_embeddings.weight"][self.first_position :]
        return np.asarray(table + self.weights["embeddings.token_type_embeddings.weight"][0], np.float32)


def digest(weights: Mapping[str, NDArray[np.float32]]) -> str:
    """Return the SHA-256 of the parameters, hexadecimal: the same for every file format and folder they were loaded from."""
    found = hashlib.sha256()
    for name, values in sorted(weights.items()):
        found.update(name.encode())
        found.update(values.tobytes())
    return found.hexdigest()
