"""A sentence encoder: model, tokenizer, and where they come from."""

from dataclasses import dataclass

from tokenizers import Tokenizer
from torch import nn

from lpc.errors import LpcError


class EncoderError(LpcError):
    """An encoder cannot be loaded. The message says why and what to do."""


@dataclass(frozen=True)
class Encoder:
    """A BERT-like encoder in fp32, evaluation mode.

    Attributes:
        model: called with input_ids and attention_mask [batch, tokens], gives last_hidden_state [batch, tokens, width].
        tokenizer: adds nothing by itself; `<s>`, `<pad>`, `</s>` are special tokens of its vocabulary.
        id: names source and model.
        sha256: of the weights' file, hexadecimal.
        prefix: what its training put before every text: "query: " for the e5 family.
    """

    model: nn.Module
    tokenizer: Tokenizer
    id: str
    sha256: str
    prefix: str = ""
