"""Brings configurations whose layers are given by keys of their own into one form, as vLLM's model classes read them.

The form has ``num_hidden_layers``, ``layer_types``, and the keys of Mamba (``mamba_...``) or of gated delta networks
(``linear_...``) for recurrent layers. ``state_type`` is the type of a recurrence, if it is not the model's.
``per_layer_config`` has the keys in which a layer differs, by its number. Source: `vllm/model_executor/models`, 0.32, and for
Bamba, which vLLM 0.23 had last, 0.23.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from lpc.errors import LpcError

PARALLEL: Final = "attention and mamba"
"""Type of the layers of Falcon-H1 and Zamba2, which have both next to each other."""
SHARED: Final = "shares_cache"
"""Key of a layer whose keys and values are those of another layer."""
MAMBA_1: Final = frozenset({"jamba", "mamba", "falcon_mamba"})
_OF_OTHER_KINDS: Final = frozenset({"skip", "sliding_window", "attention_chunk_size", "kv_lora_rank"})
"""Keys that make a layer another kind."""
Config = dict[str, Any]


class ModelConfigError(LpcError):
    """The configuration of a model is missing, cannot be read, or is of a model that is not known here."""


def count(config: Mapping[str, Any], *names: str) -> int:
    """Return the first of these values. Raises ModelConfigError."""
    value = next((config[name] for name in names if config.get(name)), None)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 32:
        missing = f"the configuration of the model has {names[0]} {value!r:.40}"
        hint = "an installed transformers adds missing values, or give --cache in tokens"
        raise ModelConfigError(f"{missing}, which is not a positive whole number: {hint}")
    return value


def in_one_form(config: Config) -> Config:
    """Return a configuration in the form of this module. Raises ModelConfigError for values of a wrong type."""
    convert = _CONVERTERS.get(str(config.get("model_type")))
    return config if convert is None else convert(config)


def _without(config: Config, *keys: str) -> Config:
    return {key: value for key, value in config.items() if key not in keys}


def _layers_among(chosen: object, config: Config, inside: str, outside: str) -> list[str]:
    """Return a type for each layer: ``inside`` for those whose number is in ``chosen``."""
    numbers = chosen if isinstance(chosen, list) else []
    return [inside if layer in numbers else outside for layer in range(count(config, "num_hidden_layers"))]


def _nemotron_h(config: Config) -> Config:
    """A character or a word for each layer; MLPs are layers of their own."""
    pattern = config.get("hybrid_override_pattern")
    names = {"M": "mamba", "*": "full_attention", "-": "mlp", "E": "moe"}
    kinds = [names.get(one, one) for one in pattern] if isinstance(pattern, str) else config.get("layers_block_type")
    if not isinstance(kinds, list):
        return config
    heads, head = count(config, "mamba_num_heads"), count(config, "mamba_head_dim")
    return _without(config, "hybrid_override_pattern", "layers_block_type") | {
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
        "mamba_d_ssm": heads * head,
        "mamba_n_heads": heads,
        "mamba_d_head": head,
        "mamba_d_state": config.get("ssm_state_size"),
        "mamba_n_groups": config.get("n_groups") or config.get("mamba_n_groups"),
        "mamba_d_conv": config.get("conv_kernel") or config.get("mamba_d_conv"),
        "state_type": config.get("mamba_ssm_cache_dtype") or "float32",
    }


def _bamba(config: Config) -> Config:
    chosen = config.get("attn_layer_indices")
    kinds = _layers_among(chosen, config, "full_attention", "mamba")
    return _without(config, "attn_layer_indices", "layers_block_type") | {"layer_types": kinds}


def _zamba2(config: Config) -> Config:
    """Attention, where a layer has it, is twice as wide as the model, and next to its Mamba 2."""
    kinds = config.get("layers_block_type")
    if not isinstance(kinds, list):
        return config
    return _without(config, "layers_block_type", "hybrid_layer_ids") | {
        "layer_types": [PARALLEL if kind == "hybrid" else kind for kind in kinds],
        "attention_width": 2,
        "head_dim": 2 * count(config, "hidden_size") // count(config, "num_attention_heads"),
        "mamba_n_heads": config.get("n_mamba_heads"),
        "mamba_d_head": config.get("mamba_headdim") or _expanded(config, "mamba_expand") // count(config, "n_mamba_heads"),
        "mamba_n_groups": config.get("mamba_ngroups"),
    }


def _mamba(config: Config) -> Config:
    """Mamba 1 and Falcon Mamba."""
    layers = count(config, "num_hidden_layers", "n_layer")
    inner = config.get("intermediate_size") or _expanded(config, "expand")
    return config | {
        "num_hidden_layers": layers,
        "layer_types": ["mamba"] * layers,
        "mamba_d_ssm": inner,
        "mamba_d_state": config.get("state_size"),
        "mamba_d_conv": config.get("conv_kernel"),
    }


def _mamba2(config: Config) -> Config:
    layers = count(config, "num_hidden_layers", "n_layer")
    return config | {
        "num_hidden_layers": layers,
        "layer_types": ["mamba"] * layers,
        "mamba_d_ssm": _expanded(config, "expand"),
        "mamba_n_heads": config.get("num_heads"),
        "mamba_d_head": config.get("head_dim"),
        "mamba_d_state": config.get("state_size"),
        "mamba_n_groups": config.get("n_groups"),
        "mamba_d_conv": config.get("conv_kernel"),
    }


def _kimi_linear(config: Config) -> Config:
    """Latent attention, and Kimi's delta attention, whose state is in float32, in the layers with these numbers from 1."""
    linear = config.get("linear_attn_config")
    if not isinstance(linear, dict) or not isinstance(layers := linear.get("kda_layers"), list):
        return config
    heads, head = count(linear, "num_heads"), count(linear, "head_dim")
    kinds = ["linear_attention" if layer + 1 in layers else "full_attention" for layer in range(_number(config))]
    return _without(config, "linear_attn_config") | {
        "layer_types": kinds,
        "linear_num_value_heads": heads,
        "linear_num_key_heads": heads,
        "linear_key_head_dim": head,
        "linear_value_head_dim": head,
        "linear_conv_kernel_dim": linear.get("short_conv_kernel_size"),
        "linear_gate_rank": head,
        "state_type": "float32",
    }


def _number(config: Config) -> int:
    return count(config, "num_hidden_layers")


def _lfm2(config: Config) -> Config:
    """Convolutions in the layers without attention. Those of the mixture of experts are as wide as the model."""
    kinds = config.get("layer_types")
    if not isinstance(kinds, list):
        if not isinstance(config.get("full_attn_idxs"), list):
            return config
        kinds = _layers_among(config["full_attn_idxs"], config, "full_attention", "conv")
    is_wide = config.get("model_type") == "lfm2" and config.get("conv_dim")
    inner = config.get("intermediate_size") or config.get("block_ff_dim")
    if config.get("block_auto_adjust_ff_dim"):
        inner = 2 * count(config, "intermediate_size", "block_ff_dim") // 3
        unit = count(config, "block_multiple_of")
        inner = -(-int(inner * float(config.get("block_ffn_dim_multiplier") or 1)) // unit) * unit
    return _without(config, "full_attn_idxs") | {
        "layer_types": kinds,
        "intermediate_size": inner,
        "conv_dim": config["conv_dim"] if is_wide else config.get("hidden_size"),
    }


def _chatglm(config: Config) -> Config:
    """Heads are parts of the model's width, whatever ``kv_channels`` is."""
    grouped = bool(config.get("multi_query_attention"))
    return _without(config, "multi_query_group_num", "kv_channels", "head_dim") | {
        "num_hidden_layers": config.get("num_layers"),
        "num_key_value_heads": config.get("multi_query_group_num" if grouped else "num_attention_heads"),
    }


def _longcat(config: Config) -> Config:
    """Each layer has two attentions and two MLPs, with one mixture of experts next to them."""
    used, inner = count(config, "moe_topk", "num_experts_per_tok"), count(config, "expert_ffn_hidden_size")
    return _without(config, "n_routed_experts", "num_local_experts") | {
        "num_hidden_layers": 2 * count(config, "num_layers"),
        "intermediate_size": count(config, "ffn_hidden_size") + used * inner // 2,
    }


def _minicpm3(config: Config) -> Config:
    """vLLM caches keys and values of each head, not the latent vector, and pads values to the size of keys."""
    return config | {"expanded_head_dim": count(config, "qk_nope_head_dim") + count(config, "qk_rope_head_dim")}


def _mimo_v2(config: Config) -> Config:
    """Other heads in the layers with a window; values are smaller than keys."""
    pattern = config.get("hybrid_layer_pattern")
    if not isinstance(pattern, list):
        return config | {"hybrid_layer_pattern": "missing"}
    of_window = {
        "num_attention_heads": config.get("swa_num_attention_heads"),
        "num_key_value_heads": config.get("swa_num_key_value_heads"),
        "head_dim": config.get("swa_head_dim"),
        "value_head_dim": config.get("swa_v_head_dim") or config.get("swa_head_dim"),
    }
    gone = ("hybrid_layer_pattern", "swa_num_key_value_heads", "swa_head_dim", "attention_chunk_size")
    return _without(config, *gone) | {
        "layer_types": ["sliding_attention" if windowed else "full_attention" for windowed in pattern],
        "sliding_window": config.get("sliding_window_size") or config.get("sliding_window"),
        "value_head_dim": config.get("v_head_dim") or config.get("head_dim"),
        "per_layer_config": {layer: of_window for layer, windowed in enumerate(pattern) if windowed},
    }


def _gemma(config: Config) -> Config:
    """The last layers share the cache of earlier ones; Gemma 4's layers with full attention have other heads."""
    kinds = config.get("layer_types")
    if not isinstance(kinds, list):
        return config
    changes = {layer: dict(more) for layer, more in (_by_layer(config.get("per_layer_config")) or {}).items()}
    if not changes and config.get("global_head_dim"):
        of_global = {"head_dim": config["global_head_dim"]}
        if config.get("num_global_key_value_heads") and config.get("attention_k_eq_v"):
            of_global["num_key_value_heads"] = config["num_global_key_value_heads"]
        changes = {layer: dict(of_global) for layer, kind in enumerate(kinds) if kind == "full_attention"}
    shared = config.get("num_kv_shared_layers") or 0
    if shared:
        for layer in range(_number(config) - count(config, "num_kv_shared_layers"), _number(config)):
            changes[layer] = {**changes.get(layer, {}), SHARED: True}
    return _without(config, "num_kv_shared_layers", "global_head_dim") | {"per_layer_config": changes}


def _by_layer(found: object) -> dict[int, Config] | None:
    """Return the keys in which layers differ, by number; None: they are of another form."""
    if not isinstance(found, dict) or not all(isinstance(more, dict) for more in found.values()):
        return None
    if not all(str(layer).isascii() and str(layer).isdigit() for layer in found):
        return None
    return {int(layer): more for layer, more in found.items()}


def _minimax_m2(config: Config) -> Config:
    """Full attention in each layer, if all are of type 1."""
    return _without(config, "attn_type_list") if set(config.get("attn_type_list") or ()) == {1} else config


_CONVERTERS: Final[dict[str, Callable[[Config], Config]]] = {
    "nemotron_h": _nemotron_h,
    "bamba": _bamba,
    "zamba2": _zamba2,
    "mamba": _mamba,
    "falcon_mamba": _mamba,
    "mamba2": _mamba2,
    "kimi_linear": _kimi_linear,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "chatglm": _chatglm,
    "longcat_flash": _longcat,
    "minicpm3": _minicpm3,
    "mimo_v2_flash": _mimo_v2,
    "gemma3n_text": _gemma,
    "gemma4_text": _gemma,
    "minimax_m2": _minimax_m2,
}


def inner_of(config: Mapping[str, Any]) -> int:
    """Return the channels of a layer of Mamba. Raises ModelConfigError."""
    return count(config, "mamba_d_ssm") if config.get("mamba_d_ssm") else _expanded(config, "mamba_expand")


def _expanded(config: Mapping[str, Any], factor: str) -> int:
    return count(config, factor) * count(config, "hidden_size")


def changes_of(config: Mapping[str, Any], layers: int) -> list[Mapping[str, Any]]:
    """Return the keys in which each layer differs from the model. Raises ModelConfigError."""
    found = config.get("per_layer_config")
    if not found:
        return [{}] * layers
    by_layer = _by_layer(found)
    if by_layer is None or any(not _OF_OTHER_KINDS.isdisjoint(more) for more in by_layer.values()):
        raise ModelConfigError("per_layer_config has layers that are not modelled: give --cache in tokens")
    return [by_layer.get(layer, {}) for layer in range(layers)]
