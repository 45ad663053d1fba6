"""Bytes of KV cache by the configuration of a model, as vLLM computes them, and the tokens that a memory holds.

Layers are of three kinds. Full attention keeps every token: with grouped heads a key and a value per KV head, with latent
attention (MLA) one vector. Sliding-window and chunked attention keep the last tokens of a conversation. Recurrent layers keep
one state. A test compares them with the KV cache specs of real vLLM.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from lpc_apps.simulator.amounts import SimulationError

GIB: Final = 1 << 30
GPU, BOTH, TWICE = "GPU", "GPU + CPU", "twice that"
"""Names of the sizes to show."""
NESTED: Final = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where configurations of models with images or audio have that of the language model."""
FULL: Final = frozenset({"full_attention", "attention", "global_attention"})
WINDOWED: Final = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
"""Types of layers that keep the last tokens, and the key that has the number of these."""
RECURRENT: Final = frozenset({"linear_attention", "mamba"})
UNKNOWN: Final = (
    *("compress_ratios", "index_topk", "linear_attn_config", "block_configs", "hybrid_override_pattern", "layers_block_type"),
    *("global_head_dim", "num_kv_shared_layers", "attn_type_list", "cross_attention_layers", "is_encoder_decoder"),
)
"""Keys of models whose layers differ in ways that are not modelled here."""
EVERY_LAYER: Final = frozenset({"mistral", "phi3", "starcoder2"})
"""Models in which ``sliding_window`` applies to each layer."""
MOST_LAYERS: Final = 10_000
BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1}


@dataclass(frozen=True)
class KvMemory:
    """KV cache of one model, bytes on each GPU.

    Attributes:
        model: its name.
        gpus: ranks of tensor parallelism.
        per_token: of all layers that keep every token.
        windows: of layers that keep the last tokens: (number of these, bytes per token).
        state: of all recurrent layers, per conversation.
    """

    model: str
    gpus: int
    per_token: int
    windows: tuple[tuple[int, int], ...] = ()
    state: int = 0

    @property
    def uniform(self) -> bool:
        """Whether all tokens of a conversation take the same memory."""
        return not self.windows and not self.state

    def conversation(self, tokens: int) -> int:
        """Return the bytes of a cached conversation."""
        return tokens * self.per_token + sum(min(tokens, window) * size for window, size in self.windows) + self.state

    def tokens(self, size: float, conversation: int) -> int:
        """Return the tokens that ``size`` bytes hold, in conversations of this many tokens."""
        return int(size * conversation / self.conversation(conversation))


@dataclass(frozen=True)
class Mark:
    """A size of the cache, in tokens, with a name."""

    name: str
    size: int


@dataclass(frozen=True)
class Memory:
    """Memory for KV blocks.

    Attributes:
        gpu: bytes on each GPU; ``cpu``: bytes of the CPU tier, of all GPUs together.
        gpu_hour_price: of one GPU; None: unknown.
    """

    kv: KvMemory
    gpu: float
    cpu: float
    gpu_hour_price: float | None = None

    def marks(self, conversation: int) -> list[Mark]:
        """Return the sizes to show: of the GPUs, with the CPU tier, and twice that. ``conversation``: its tokens."""
        both = self.gpu + self.cpu / self.kv.gpus
        sizes = {GPU: self.gpu, **({BOTH: both} if self.cpu else {}), TWICE: 2 * both}
        return [Mark(name, self.kv.tokens(size, conversation)) for name, size in sizes.items()]


def kv_memory(model: str, *, tensor_parallel: int = 1, kv_dtype: str = "auto") -> KvMemory:
    """Return the KV cache of a model.

    Args:
        model: a config.json, a folder with one, or a name on the Hugging Face Hub.
        kv_dtype: one of `BYTES`, or auto: that of the model (in float32, as in engines, bfloat16).

    Raises:
        SimulationError: the configuration cannot be read, or has layers that are not modelled.
        OSError: it cannot be read.
    """
    config = _language_model(_read(model))
    found = next((key for key in UNKNOWN if config.get(key)), None)
    if found is not None:
        raise _unknown(model, f"it has {found}")
    size = BYTES.get(kv_dtype, 2)
    windows: dict[int, int] = {}
    full = recurrent = 0
    layers = _layers(model, config)
    attention = 0 if RECURRENT.issuperset(layers) else _attention_bytes(config, tensor_parallel, size)
    for kind in layers:
        if kind in FULL:
            full += attention
        elif kind in WINDOWED:
            kept = _count(config, WINDOWED[kind])
            windows[kept] = windows.get(kept, 0) + attention
        elif kind in RECURRENT:
            recurrent += _state_bytes(model, config, tensor_parallel)
        else:
            raise _unknown(model, f"it has layers of type {kind!r:.40}")
    if not full + sum(windows.values()) + recurrent:
        raise SimulationError(f"{model:.200}: the sizes of this configuration leave no KV cache")
    return KvMemory(_name(model), tensor_parallel, full, tuple(sorted(windows.items())), recurrent)


def _name(model: str) -> str:
    path = Path(model)
    return path.resolve().parent.name if path.name == "config.json" else path.name if path.is_dir() else model


def _read(model: str) -> dict[str, Any]:
    path = Path(model)
    if path.is_dir():
        path /= "config.json"
    elif not path.is_file():
        if model.endswith(".json"):
            raise SimulationError(f"{model:.200}: no such file")
        path = _from_hub(model)
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise SimulationError(f"{path}: not the configuration of a model: give its config.json")
    return found


def _from_hub(name: str) -> Path:
    """Return a model's configuration from the local cache, or fetch it."""
    try:
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ModuleNotFoundError:
        raise SimulationError(
            f"{name!r:.80} is not a file, and huggingface_hub, which finds models by name, is not installed: give a config.json"
        ) from None
    try:
        cached = try_to_load_from_cache(name, "config.json")
        return Path(cached if isinstance(cached, str) else hf_hub_download(name, "config.json"))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = type(error).__name__
        raise SimulationError(f"{name!r:.80}: no config.json by this name ({reason}): give the file's path") from error


def _language_model(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of the language model. Transformers, if installed, adds its defaults for missing keys."""
    nested = next((config[key] for key in NESTED if isinstance(config.get(key), dict)), None)
    if nested is not None:
        return _language_model(nested)
    given = {key: value for key, value in config.items() if value is not None}
    kind = given.get("model_type")
    try:
        from transformers import CONFIG_MAPPING
    except ImportError:
        return given
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        return given
    try:
        complete = CONFIG_MAPPING[kind](**{key: value for key, value in given.items() if key != "model_type"}).to_dict()
    except Exception:  # Transformers checks what it reads in many ways
        return given
    return {**complete, **given}


def _layers(model: str, config: Mapping[str, Any]) -> Sequence[str]:
    """Return the type of each layer."""
    count = _count(config, "num_hidden_layers", "n_layer", "n_layers")
    if count > MOST_LAYERS:
        raise SimulationError(f"{model:.200}: {count:,} layers are more than {MOST_LAYERS:,}")
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        if len(kinds) < count or not all(isinstance(kind, str) for kind in kinds):
            raise SimulationError(f"{model:.200}: layer_types has not a type for each of {count} layers")
        return cast(list[str], kinds[:count])
    if config.get("attention_chunk_size"):
        raise _unknown(model, "it has attention_chunk_size and no layer_types")
    if not config.get("sliding_window") or config.get("use_sliding_window") is False:
        return ["full_attention"] * count
    if config.get("model_type") not in EVERY_LAYER:
        raise _unknown(model, "it has sliding_window and no layer_types")
    return ["sliding_attention"] * count


def _attention_bytes(config: Mapping[str, Any], tensor_parallel: int, size: int) -> int:
    """Return the bytes per token of one layer with attention."""
    if config.get("kv_lora_rank"):
        return (_count(config, "kv_lora_rank") + _count(config, "qk_rope_head_dim")) * size  # the same on each GPU
    heads = _count(config, "num_attention_heads", "n_head", "n_heads")
    names = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num")
    kv_heads = _count(config, *names) if any(config.get(name) for name in names) else heads
    head = _count(config, "head_dim") if config.get("head_dim") else _count(config, "hidden_size", "n_embd", "d_model") // heads
    return 2 * max(kv_heads // tensor_parallel, 1) * head * size


def _state_bytes(model: str, config: Mapping[str, Any], ranks: int) -> int:
    """Return the bytes of one recurrent layer's state: of its convolution, and of its recurrence."""
    if config.get("linear_num_value_heads"):  # gated delta network
        heads, keys = _count(config, "linear_num_value_heads"), _count(config, "linear_num_key_heads")
        key, value = _count(config, "linear_key_head_dim"), _count(config, "linear_value_head_dim")
        channels, kernel = 2 * keys * key + heads * value, _count(config, "linear_conv_kernel_dim")
        cells = heads * value * key
    elif config.get("mamba_n_heads"):  # Mamba 2
        heads, states = _count(config, "mamba_n_heads"), _count(config, "mamba_d_state")
        groups, kernel = _count(config, "mamba_n_groups"), _count(config, "mamba_d_conv")
        groups += 0 if groups % ranks == 0 else ranks - groups
        cells = heads * _count(config, "mamba_d_head") * states
        channels = _count(config, "mamba_expand") * _count(config, "hidden_size") + 2 * groups * states
    else:
        raise _unknown(model, "it has recurrent layers of an unknown kind")
    wide = BYTES.get(str(config.get("mamba_ssm_dtype") or config.get("mamba_ssm_cache_dtype")), 2)
    return channels // ranks * (kernel - 1) * 2 + cells // ranks * wide


def _count(config: Mapping[str, Any], *names: str) -> int:
    """Return the first of these values. Raises SimulationError."""
    value = next((config[name] for name in names if config.get(name)), None)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 32:
        missing = f"the configuration of the model has {names[0]} {value!r:.40}"
        hint = "an installed transformers adds missing values, or give --cache in tokens"
        raise SimulationError(f"{missing}, which is not a positive whole number: {hint}")
    return value


def _unknown(model: str, reason: str) -> SimulationError:
    hint = "give --cache in tokens, as vLLM logs it at start (GPU KV cache size)"
    return SimulationError(f"{model:.200}: the KV cache of this model is not known here, because {reason}: {hint}")
