"""An encoder of the e5 family from a transformers folder or, where a hub is reachable, by its name there."""

from pathlib import Path

from transformers import AutoModel, AutoTokenizer

from lpc_apps.training.encoders.encoder import Encoder, EncoderError, digest

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
    if model.config.hidden_act != "gelu":
        raise EncoderError(f"{source!r} computes {model.config.hidden_act!r}; encoders with gelu are supported")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise EncoderError(f"{source!r} has no fast tokenizer (tokenizer.json)")
    folder = Path(source)
    # A package keeps its model in a folder "model": its own name says more.
    name = source if not folder.is_dir() else folder.parent.name if folder.name == "model" else folder.name
    weights = {key: parameter.detach().numpy() for key, parameter in model.named_parameters()}
    return Encoder(
        weights,
        heads=model.config.num_attention_heads,
        epsilon=model.config.layer_norm_eps,
        first_position=0 if model.config.model_type == "bert" else model.config.pad_token_id + 1,
        tokenizer=backend,
        id=name,
        sha256=digest(weights),
        prefix="query: " if "e5" in name else "",
    )
