"""A tiny real model: a random BERT of two layers, exported by the same code as the shipped one, within seconds."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from lpc.model.features import FeatureSettings
from lpc.training.encoders import load_encoder
from lpc.training.export import export
from lpc.training.graph import Precision
from lpc.training.head import Head

LINES = ["hello world", "what is a cache", "thank you", "0 1 2 3 4 5 6 7 8 9", "the quick brown fox jumps over the lazy dog"]


def build_tiny_encoder(folder: Path) -> Path:
    """Write a transformers folder with a random encoder, 32 wide."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(LINES * 10, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(fast), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, pad_token_id=1
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


def build_tiny_artifact(
    models_root: Path,
    *,
    name: str = "tiny",
    version: str | None = "v1",
    precision: Precision = "fp32",
) -> Path:
    """Export a version of the tiny model; versions differ in their heads, so their probabilities differ too."""
    folder = models_root / f".encoder-{name}"
    if not folder.exists():
        build_tiny_encoder(folder)
    torch.manual_seed(sum((version or "").encode()))
    encoder = load_encoder(str(folder))
    head = Head(32, 1, metadata={"name": "random", "features": FeatureSettings().to_dict(), "encoder_sha256": encoder.sha256})
    head_file = models_root / f".head-{version}.safetensors"
    head.save(head_file)
    return export(
        models_root,
        name=name,
        encoder=str(folder),
        head=head_file,
        precision=precision,
        version=version,
    )
