"""Bytes of KV cache by the configuration of a model, as vLLM computes them, and the tokens that a memory holds.

Layers are of three kinds. Full attention keeps every token: with grouped heads a key and a value per KV head, with latent
attention (MLA) one vector. Sliding-window and chunked attention keep the last tokens of a conversation. Recurrent layers keep
one state. A test compares them with the KV cache specs of real vLLM.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lpc_apps.simulator.model_config import (
    CONVOLUTION,
    FULL,
    RECURRENT,
    WINDOWED,
    WITHOUT_CACHE,
    heads_of,
    layers_of,
    model_name,
    read_config,
    unknown,
)
from lpc_apps.simulator.model_forms import MAMBA_1, PARALLEL, SHARED, ModelConfigError, changes_of, count, inner_of

GIB: Final = 1 << 30
GPU, BOTH, TWICE = "GPU", "GPU + CPU", "twice that"
"""Names of the sizes to show."""
BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1}


@dataclass(frozen=True)
class KvMemory:
    """KV cache of one model, bytes on each GPU.

    Attributes:
        model: its name.
        gpus: ranks of tensor parallelism.
        per_token: bytes per token of all layers that keep every token.
        windows: layers that keep the last tokens: (number of these, bytes per token).
        state: bytes of all recurrent layers per conversation.
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


DEFAULT: Final = KvMemory("Llama 3.1 8B", 1, per_token=32 * 2 * 8 * 128 * 2)
"""KV cache of logs without a named model: 128 KiB per token."""


@dataclass(frozen=True)
class Mark:
    """A size of the cache, in tokens, with a name."""

    name: str
    size: int


PREDICTOR_TIMES: Final = (0, 1, 2, 4)
"""Multiples of the predictor's memory by which the cache is made smaller: Figure 8 of Learned Prefix Caching (NeurIPS 2025)."""


@dataclass(frozen=True)
class Memory:
    """Memory for KV blocks.

    Attributes:
        gpu: bytes on each GPU; ``cpu``: bytes of the CPU tier, of all GPUs together.
        gpu_hour_price: price of one GPU for an hour; None: unknown.
        predictor: bytes on each GPU that the sidecar's model takes from ``gpu``; 0: it runs elsewhere.
    """

    kv: KvMemory
    gpu: float
    cpu: float
    gpu_hour_price: float | None = None
    predictor: float = 0.0

    def left_by_predictor(self, conversation: int) -> dict[int, int]:
        """Return the tokens that the GPUs hold next to the predictor, by PREDICTOR_TIMES its memory; empty without one.

        Multiples that leave room for less than a conversation of ``conversation`` tokens are left out.
        """
        left = {times: self.kv.tokens(self.gpu - times * self.predictor, conversation) for times in PREDICTOR_TIMES}
        return {times: size for times, size in left.items() if self.predictor and size >= conversation}

    def marks(self, conversation: int) -> list[Mark]:
        """Return the sizes to show: of the GPUs, with the CPU tier, and twice that. ``conversation``: its tokens."""
        both = self.gpu + self.cpu / self.kv.gpus
        sizes = {GPU: self.gpu, **({BOTH: both} if self.cpu else {}), TWICE: 2 * both}
        return [Mark(name, self.kv.tokens(size, conversation)) for name, size in sizes.items()]


def kv_memory(model: str, *, tensor_parallel: int = 1, kv_dtype: str = "auto") -> KvMemory:
    """Return the KV cache of a model.

    Args:
        model: a config.json, a folder with one, or a name on the Hugging Face Hub.
        kv_dtype: one of `BYTES`, or auto: that of the model (in float32, as in engines, bfloat16), or that of the cache which a
            quantised checkpoint names.

    Raises:
        ModelConfigError: the configuration cannot be read, or has layers that are not modelled.
        OSError: it cannot be read.
    """
    config = read_config(model)
    size = BYTES.get(kv_dtype, 2) if kv_dtype != "auto" else _size_of_checkpoint(model, config)
    windows: dict[int, int] = {}
    full = recurrent = 0
    layers = layers_of(model, config)
    other = config.get("attention_other_setting")  # Step 3.5: heads of the layers of one type
    other = other if isinstance(other, dict) else {}
    for kind, changes in zip(layers, changes_of(config, len(layers)), strict=True):
        layer = {**config, **(other if other and kind == other.get("attention_type") else {}), **changes}
        if kind in WITHOUT_CACHE:
            continue
        if kind in RECURRENT or kind == PARALLEL:
            recurrent += _state_bytes(model, layer, kind, tensor_parallel)
        if kind in FULL or kind == PARALLEL:
            full += _attention_bytes(layer, tensor_parallel, size)
        elif kind in WINDOWED:
            kept = count(layer, WINDOWED[kind])
            windows[kept] = windows.get(kept, 0) + _attention_bytes(layer, tensor_parallel, size)
        elif kind not in RECURRENT:
            raise unknown(model, f"it has layers of type {kind!r:.40}")
    windows = {kept: bytes_ for kept, bytes_ in windows.items() if bytes_}
    if not full + sum(windows.values()) + recurrent:
        raise ModelConfigError(f"{model:.200}: the sizes of this configuration leave no KV cache")
    return KvMemory(model_name(model), tensor_parallel, full, tuple(sorted(windows.items())), recurrent)


def _size_of_checkpoint(model: str, config: Mapping[str, Any]) -> int:
    """Return the bytes of a number of the cache that a checkpoint names, as vLLM reads it. Raises ModelConfigError."""
    quantized = config.get("quantization_config")
    if not isinstance(quantized, dict):
        return 2
    inner = quantized.get("quantization")
    named = {**quantized, **inner} if isinstance(inner, dict) else quantized
    found = named.get("kv_cache_scheme") or named.get("kv_cache_quant_algo")
    if isinstance(found, dict):
        found = "fp8" if (found.get("num_bits"), found.get("type")) == (8, "float") else "other numbers than fp8"
    if not found or str(found).lower() in ("auto", "none"):
        return 2
    if str(found).lower() != "fp8":
        raise unknown(model, f"its checkpoint has a KV cache in {found!r:.40}")
    return BYTES["fp8"]


def _attention_bytes(config: Mapping[str, Any], tensor_parallel: int, size: int) -> int:
    """Return the bytes per token of one layer with attention."""
    if config.get(SHARED):
        return 0
    if config.get("expanded_head_dim"):
        return 2 * max(count(config, "num_attention_heads") // tensor_parallel, 1) * count(config, "expanded_head_dim") * size
    if config.get("kv_lora_rank"):
        return (count(config, "kv_lora_rank") + count(config, "qk_rope_head_dim")) * size  # the same on each GPU
    _, kv_heads, head = heads_of(config)
    both = head + (count(config, "value_head_dim") if config.get("value_head_dim") else head)
    return max(kv_heads // tensor_parallel, 1) * both * size


def _state_bytes(model: str, config: Mapping[str, Any], kind: str, ranks: int) -> int:
    """Return the bytes of one recurrent layer's state: of its convolution, and of its recurrence."""
    if kind == CONVOLUTION:
        return count(config, "conv_dim") // ranks * (count(config, "conv_L_cache") - 1) * 2
    of_qwen = str(config.get("model_type")).startswith("qwen3_5")  # vLLM reads the key of no other model that is known here
    wide = BYTES.get(str(config.get("mamba_ssm_dtype") if of_qwen else config.get("state_type")), 2)
    if config.get("linear_num_value_heads"):  # gated delta network
        heads, keys = count(config, "linear_num_value_heads"), count(config, "linear_num_key_heads")
        key, value = count(config, "linear_key_head_dim"), count(config, "linear_value_head_dim")
        channels, kernel = 2 * keys * key + heads * value, count(config, "linear_conv_kernel_dim")
        cells = heads * value * key
    elif config.get("mamba_n_heads"):  # Mamba 2
        heads, states = count(config, "mamba_n_heads"), count(config, "mamba_d_state")
        groups, kernel = count(config, "mamba_n_groups"), count(config, "mamba_d_conv")
        groups += 0 if groups % ranks == 0 else ranks - groups
        cells = heads * count(config, "mamba_d_head") * states
        channels = inner_of(config) + 2 * groups * states
    elif config.get("model_type") in MAMBA_1:
        channels, kernel = inner_of(config), count(config, "mamba_d_conv")
        cells = channels * count(config, "mamba_d_state")
    else:
        raise unknown(model, "it has recurrent layers of an unknown kind")
    return channels // ranks * (kernel - 1) * 2 + cells // ranks * wide
