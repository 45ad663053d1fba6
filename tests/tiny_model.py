"""A tiny real model: a random BERT of two layers, exported by the same code as the shipped one, without PyTorch."""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

from lpc.model.features import FeatureSettings
from lpc_apps.training.encoders.encoder import Encoder, digest
from lpc_apps.training.export import export
from lpc_apps.training.graph import Precision
from lpc_apps.training.head_file import HeadFile

LINES = ["hello world", "what is a cache", "thank you", "0 1 2 3 4 5 6 7 8 9", "the quick brown fox jumps over the lazy dog"]
SPECIAL = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
WIDTH, LAYERS, HEADS, WIDER, POSITIONS = 32, 2, 2, 64, 512
EPSILON = 1e-12


def build_tiny_encoder(folder: Path) -> Path:
    """Write a transformers folder with a random encoder, 32 wide."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    names = list(SPECIAL.values())
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=names, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(LINES * 10, trainer)
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL}))
    save_file(_weights(tokenizer.get_vocab_size()), folder / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["BertModel"],
        "hidden_act": "gelu",
        "hidden_size": WIDTH,
        "intermediate_size": WIDER,
        "layer_norm_eps": EPSILON,
        "max_position_embeddings": POSITIONS,
        "model_type": "bert",
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "pad_token_id": 1,
        "type_vocab_size": 2,
        "vocab_size": tokenizer.get_vocab_size(),
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _weights(words: int) -> dict[str, NDArray[np.float32]]:
    """Return the weights by their names in `transformers.BertModel`."""
    random = np.random.default_rng(0)

    def matrix(outputs: int, inputs: int) -> NDArray[np.float32]:
        return random.normal(0.0, 0.02, (outputs, inputs)).astype(np.float32)

    found = {
        "embeddings.word_embeddings.weight": matrix(words, WIDTH),
        "embeddings.position_embeddings.weight": matrix(POSITIONS, WIDTH),
        "embeddings.token_type_embeddings.weight": matrix(2, WIDTH),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in (f"encoder.layer.{number}" for number in range(LAYERS)):
        linear = [(f"{layer}.attention.self.{name}", WIDTH, WIDTH) for name in ("query", "key", "value")]
        linear += [(f"{layer}.attention.output.dense", WIDTH, WIDTH), (f"{layer}.intermediate.dense", WIDER, WIDTH)]
        for name, outputs, inputs in [*linear, (f"{layer}.output.dense", WIDTH, WIDER)]:
            found |= {f"{name}.weight": matrix(outputs, inputs), f"{name}.bias": np.zeros(outputs, np.float32)}
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    for name in norms:
        found |= {f"{name}.weight": np.ones(WIDTH, np.float32), f"{name}.bias": np.zeros(WIDTH, np.float32)}
    return found


def tiny_encoder(folder: Path) -> Encoder:
    """Load what `build_tiny_encoder` wrote, without the import of transformers."""
    weights = load_file(folder / "model.safetensors")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return Encoder(weights, HEADS, EPSILON, 0, tokenizer, folder.name, digest(weights))


def _head(encoder: Encoder, seed: int) -> HeadFile:
    random = np.random.default_rng(seed)
    shapes = {"hidden.0": (128, WIDTH + 1), "hidden.2": (128, 128), "output": (1, 128)}
    parameters = {"scalar_mean": np.zeros(1, np.float32), "scalar_scale": np.ones(1, np.float32)}
    for name, (outputs, inputs) in shapes.items():
        bound = inputs**-0.5
        parameters[f"{name}.weight"] = random.uniform(-bound, bound, (outputs, inputs)).astype(np.float32)
        parameters[f"{name}.bias"] = random.uniform(-bound, bound, outputs).astype(np.float32)
    metadata = {"name": "random", "features": FeatureSettings().to_dict(), "encoder_sha256": encoder.sha256}
    return HeadFile(parameters, metadata)


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
    encoder = tiny_encoder(folder)
    head_file = models_root / f".head-{version}.safetensors"
    _head(encoder, sum((version or "").encode())).save(head_file)
    return export(models_root, name=name, encoder=encoder, head=head_file, precision=precision, version=version)
