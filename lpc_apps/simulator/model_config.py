"""The configuration of a model: its `config.json`, the kinds of its layers, and its numbers.

Models with layers of other kinds are refused by name.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from lpc.distribution import install
from lpc_apps.simulator.model_forms import PARALLEL, ModelConfigError, count, in_one_form

NESTED: Final = ("text_config", "llm_config", "language_config", "thinker_config")
"""Fields in which configurations of models with images or audio have that of the language model."""
FULL: Final = frozenset({"full_attention", "attention", "global_attention"})
WINDOWED: Final = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
"""Types of layers that keep the last tokens, and the key that has the number of these."""
CONVOLUTION: Final = "conv"
RECURRENT: Final = frozenset({"linear_attention", "mamba", CONVOLUTION})
WITHOUT_CACHE: Final = frozenset({"mlp", "moe"})
"""Types of layers that are an MLP alone."""
WITH_STATE: Final = (
    *("mamba_", "ssm_", "rwkv", "lru_width", "conv_L_cache", "attn_layer_", "full_attn_idxs"),
    *("full_attention_interval", "linear_num_", "linear_conv_", "layer_group_size"),
)
"""Beginnings of the keys of models of which some layers are recurrent."""
UNKNOWN: Final = (
    *("compress_ratios", "index_topk", "linear_attn_config", "block_configs", "hybrid_override_pattern", "layers_block_type"),
    *("global_head_dim", "num_kv_shared_layers", "attn_type_list", "cross_attention_layers", "is_encoder_decoder"),
    *("num_key_value_heads_per_layer", "hybrid_layer_pattern", "use_cla"),
    *("swa_num_key_value_heads", "swa_head_dim", "window_size", "interleaved_sliding_window", "total_ut_steps", "loop_num"),
)
"""Keys of models whose layers differ in ways that are not modelled here, or whose layers share a cache or have several."""
LATENT: Final = frozenset(
    {
        *("axk1", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots3_note", "glm4_moe_lite", "glm5_next", "glm5_next_text"),
        *("kimi_k2", "kimi_linear", "longcat_flash", "pangu_ultra_moe", "bailing_hybrid", "hy_v4"),
    }
)
"""Models of which vLLM caches one latent vector. It expands those of others with the same keys, such as MiniCPM3's."""
EVERY_LAYER: Final = frozenset({"mistral", "phi3", "starcoder2"})
"""Models in which ``sliding_window`` applies to each layer."""
MOST_LAYERS: Final = 10_000


def read_config(model: str) -> dict[str, Any]:
    """Return the configuration of a language model.

    Args:
        model: a config.json, a folder with one, or a name on the Hugging Face Hub.

    Raises:
        ModelConfigError: the configuration cannot be read, or has layers that are not modelled.
        OSError: it cannot be read.
    """
    config = in_one_form(_language_model(_read(model)))
    if not isinstance(config.get("model_type"), str):
        config.pop("model_type", None)
    found = next((key for key in UNKNOWN if config.get(key)), None)
    if found is not None:
        raise unknown(model, f"it has {found}")
    is_latent = config.get("kv_lora_rank") and not config.get("expanded_head_dim")
    if is_latent and config.get("model_type", "deepseek_v2") not in LATENT:
        raise unknown(model, "it has kv_lora_rank, and is not of a kind whose latent vectors vLLM caches")
    return config


def model_name(model: str) -> str:
    """Return a short name of a model, which is given as for :func:`read_config`."""
    path = Path(model)
    return path.resolve().parent.name if path.name == "config.json" else path.name if path.is_dir() else model


def _read(model: str) -> dict[str, Any]:
    path = Path(model)
    if path.is_dir():
        path /= "config.json"
    elif not path.is_file():
        if model.endswith(".json"):
            raise ModelConfigError(f"{model:.200}: no such file")
        path = _from_hub(model)
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ModelConfigError(f"{path}: not the configuration of a model: give its config.json")
    return found


def _from_hub(name: str) -> Path:
    """Return a model's configuration from the local cache, or fetch it."""
    try:
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ModuleNotFoundError:
        raise ModelConfigError(
            f"{name!r:.80} is not a file, and huggingface_hub, which finds models by name, is not installed: give a "
            f"config.json, or {install('server')}"
        ) from None
    try:
        cached = try_to_load_from_cache(name, "config.json")
        return Path(cached if isinstance(cached, str) else hf_hub_download(name, "config.json"))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = type(error).__name__
        raise ModelConfigError(f"{name!r:.80}: no config.json by this name ({reason}): give the file's path") from error


def _language_model(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of the language model. Transformers, if installed, adds its defaults for missing keys."""
    nested = next((config[key] for key in NESTED if isinstance(config.get(key), dict)), None)
    if nested is not None:
        outer = config.get("quantization_config")
        return _language_model(nested if outer is None else {"quantization_config": outer} | nested)
    given = {key: value for key, value in config.items() if value is not None or key in WINDOWED.values()}
    kind = given.get("model_type")
    if not isinstance(kind, str):
        return given
    try:
        from transformers import CONFIG_MAPPING
    except ImportError:
        return given
    if kind not in CONFIG_MAPPING:
        return given
    try:
        complete = CONFIG_MAPPING[kind](**{key: value for key, value in given.items() if key != "model_type"}).to_dict()
    except Exception:  # Transformers checks what it reads in many ways
        return given
    return {**complete, **given}


def layers_of(model: str, config: Mapping[str, Any]) -> Sequence[str]:
    """Return the type of each layer: of FULL, WINDOWED, RECURRENT or WITHOUT_CACHE, or PARALLEL. Raises ModelConfigError."""
    number = count(config, "num_hidden_layers", "n_layer", "n_layers")
    if number > MOST_LAYERS:
        raise ModelConfigError(f"{model:.200}: {number:,} layers are more than {MOST_LAYERS:,}")
    kinds = config.get("layer_types")
    if config.get("model_type") == "falcon_h1":
        return [PARALLEL] * number
    if config.get("model_type") == "jamba":
        period, offset = count(config, "attn_layer_period"), config.get("attn_layer_offset")
        if not isinstance(offset, int) or not 0 <= offset < period:
            raise unknown(model, "it has no attn_layer_offset below attn_layer_period")
        return ["attention" if layer % period == offset else "mamba" for layer in range(number)]
    if isinstance(kinds, list):
        if len(kinds) < number or not all(isinstance(kind, str) for kind in kinds):
            raise ModelConfigError(f"{model:.200}: layer_types has not a type for each of {number} layers")
        return cast(list[str], kinds[:number])
    if (key := next((key for key in config if key.startswith(WITH_STATE) and config[key]), None)) is not None:
        raise unknown(model, f"it has {key} and no layer_types")
    if config.get("attention_chunk_size"):
        raise unknown(model, "it has attention_chunk_size and no layer_types")
    if not config.get("sliding_window") or config.get("use_sliding_window") is False:
        return ["full_attention"] * number
    if config.get("model_type") not in EVERY_LAYER:
        raise unknown(model, "it has sliding_window and no layer_types")
    return ["sliding_attention"] * number


def unknown(model: str, reason: str) -> ModelConfigError:
    """Return the error for a model that is not modelled."""
    hint = "leave out --model, and give --cache in tokens, as vLLM logs it at start (GPU KV cache size)"
    return ModelConfigError(f"{model:.200}: the KV cache of this model is not known here, because {reason}: {hint}")


def heads_of(config: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the heads of a layer with attention, its KV heads, and the size of a head. Raises ModelConfigError."""
    heads = count(config, "num_attention_heads", "n_head", "n_heads")
    names = ("num_attention_groups", "n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "kv_n_heads")
    inner = config.get("attn_config")  # of DBRX and MPT
    known = {**inner, **config} if isinstance(inner, dict) else config
    kv_heads = count(known, *names) if any(known.get(name) for name in names) else heads
    if config.get("multi_query") and not config.get("new_decoder_architecture"):  # Falcon 7B, StarCoder
        kv_heads = 1
    head = count(config, "head_dim") if config.get("head_dim") else count(config, "hidden_size", "n_embd", "d_model") // heads
    return heads, kv_heads, head
