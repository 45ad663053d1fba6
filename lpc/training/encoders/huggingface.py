"""An encoder of the e5 family from a transformers folder or, where a hub is reachable, by its name there."""

import hashlib
from pathlib import Path

from torch import nn
from transformers import AutoModel, AutoTokenizer

from lpc.training.encoders.encoder import Encoder, EncoderError

FAMILY = ("bert", "xlm-roberta", "roberta")


def load_huggingface(source: str) -> Encoder:
    """Return the encoder of a folder (config.json, weights, tokenizer.json) or hub name.

    Raises:
        EncoderError: nothing there can be loaded, it is not a BERT-like encoder, or it has no fast tokenizer.
    """
    try:
        model = AutoModel.from_pretrained(source, attn_implementation="eager", add_pooling_layer=False).float().eval()
        tokenizer = AutoTokenizer.from_pretrained(source, use_fast=True)
    except (OSError, ValueError, TypeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise EncoderError(f"cannot load the encoder {source!r}: {reason}") from error
    if model.config.model_type not in FAMILY:
        raise EncoderError(f"{source!r} is a {model.config.model_type} model; encoders of the kinds {FAMILY} are supported")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise EncoderError(f"{source!r} has no fast tokenizer (tokenizer.json)")
    folder = Path(source)
    # A package keeps its model in a folder "model": its own name says more.
    name = source if not folder.is_dir() else folder.parent.name if folder.name == "model" else folder.name
    return Encoder(model, backend, id=name, sha256=_digest(model), prefix="query: " if "e5" in name else "")


def _digest(model: nn.Module) -> str:
    """Hash the parameters themselves: the same for every file format and folder they were loaded from."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()
