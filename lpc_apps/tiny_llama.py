"""A two-layer Llama with random weights and a byte-level tokenizer, enough to start vLLM."""

import json
import string
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lpc.errors import UsageError
from lpc.files import naming

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
BLOCK: Final = 32
"""Tokens per block of an engine with this model: vLLM's minimum on a CPU."""
SPECIAL = ("<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>")


def write(folder: Path) -> None:
    """Write a model with weights into a new folder, whole or not at all.

    Raises:
        UsageError: the folder exists.
        ModuleNotFoundError: tokenizers, PyTorch or transformers is missing.
        OSError: it cannot be written; ``folder`` is its file.
    """
    if folder.exists() or folder.is_symlink():
        raise UsageError(f"{folder} exists: serve it if it is a model, or name a new folder")
    with naming(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch,
            naming(folder, Path(scratch)),
        ):
            build(Path(scratch) / folder.name, weights=True).replace(folder)


def build(
    folder: Path,
    *,
    layers: int = 2,
    sliding_window: int | None = None,
    weights: bool = False,
    shape: Mapping[str, Any] | None = None,
) -> Path:
    """Write config and tokenizer; with ``weights`` also weights for which the next token depends on the whole text.

    The likeliest next token is always a letter, so that a reply is text that a client can send back.

    Args:
        shape: entries of the config in place of the tiny model's.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<|bos|>",
                "eos_token": "<|eos|>",
                "chat_template": CHAT_TEMPLATE,
            }
        )
    )
    config: dict[str, Any] = {
        "architectures": ["MistralForCausalLM" if sliding_window else "LlamaForCausalLM"],
        "model_type": "mistral" if sliding_window else "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_hidden_layers": layers,
        "vocab_size": len(vocabulary),
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        **({"sliding_window": sliding_window} if sliding_window else {}),
        **(shape or {}),
    }
    (folder / "config.json").write_text(json.dumps(config))
    if weights:
        import torch
        from safetensors.torch import save
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        spread = 0.3 * (64 / config["hidden_size"]) ** 0.5  # of wide and narrow layers, outputs are equally large
        made = LlamaForCausalLM(LlamaConfig(**config, initializer_range=spread))
        letters = torch.tensor([vocabulary[letter] for letter in string.ascii_letters])
        others = torch.ones(config["vocab_size"], dtype=torch.bool).index_fill(0, letters, False)
        made.lm_head.weight.data[others] = 0
        stored = made.to(getattr(torch, config["torch_dtype"])).state_dict()
        (folder / "model.safetensors").write_bytes(save(stored, {"format": "pt"}))  # save_pretrained's is for the owner only
    return folder
