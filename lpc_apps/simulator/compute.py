"""Floating-point operations of a prompt's prefill, by the configuration of a model.

A hit saves less at the start of a prompt than at its end: a token at position p attends to p + 1 keys. Per token and layer:

- 2 operations per weight: projections and MLP, of a mixture of experts those that a token uses (Kaplan et al. 2020, "Scaling
  Laws for Neural Language Models", 2.1);
- 4 x heads x head size operations per key that it attends to: half for the scores, half for the values (PaLM, Chowdhery et al.
  2022, appendix B, without its factor 3 for training). Windows, chunks counted as such, limit the keys; recurrent layers have
  none.

The embedding, the output layer (it computes one token of a prompt) and the recurrences themselves are left out.
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
from lpc_apps.simulator.model_forms import MAMBA_1, PARALLEL, changes_of, count, inner_of

PLAIN_MLP: Final = frozenset(
    {
        *("gpt2", "gpt_neo", "gpt_neox", "gptj", "gpt_bigcode", "opt", "bloom", "falcon", "mpt", "phi", "starcoder2"),
        *("nemotron", "nemotron_h"),
    }
)
"""Models whose MLP has two matrices instead of three."""

WITHOUT_MLP: Final = frozenset({"mamba", "mamba2", "falcon_mamba"})
"""Models of which a layer is its recurrence alone."""


@dataclass(frozen=True)
class Compute:
    """Operations of a model's prefill.

    Attributes:
        model: its name.
        per_token: operations per token, wherever it is.
        per_key: operations per token and key, of all layers with full attention together.
        windows: layers that attend to the last tokens: (number of these, operations per token and key).
    """

    model: str
    per_token: float
    per_key: float
    windows: tuple[tuple[int, float], ...] = ()

    def of(self, tokens: int) -> float:
        """Return the operations for the first ``tokens`` tokens of a prompt."""
        keys = tokens * (tokens + 1) // 2
        whole = self.per_token * tokens + self.per_key * keys
        for window, per_key in self.windows:
            beyond = max(tokens - window, 0)
            whole += per_key * (keys - beyond * (beyond + 1) // 2)
        return whole


DEFAULT: Final = Compute("Llama 3.1 8B", 2.0 * 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336), 4.0 * 32 * 4096)
"""Compute of logs without a named model."""


def compute_of(model: str) -> Compute:
    """Return the operations of a model.

    Args:
        model: as for `lpc_apps.simulator.model_config.read_config`.

    Raises:
        ModelConfigError: the configuration cannot be read, or has layers that are not modelled.
        OSError: it cannot be read.
    """
    config = read_config(model)
    hidden = count(config, "hidden_size", "n_embd", "d_model")
    weights, full = 0, 0.0
    windows: dict[int, float] = {}
    layers = layers_of(model, config)
    mlp_alone = not WITHOUT_CACHE.isdisjoint(layers)
    other = config.get("attention_other_setting")  # Step 3.5: heads of the layers of one type
    other = other if isinstance(other, dict) else {}
    for number, (kind, changes) in enumerate(zip(layers, changes_of(config, len(layers)), strict=True)):
        layer = {**config, **(other if other and kind == other.get("attention_type") else {}), **changes}
        if kind in WITHOUT_CACHE or not mlp_alone:
            weights += _mlp(layer, kind, hidden, number)
        if kind in WITHOUT_CACHE:
            continue
        if kind in RECURRENT or kind == PARALLEL:
            weights += _recurrent(model, layer, kind, hidden)
        if kind in FULL or kind in WINDOWED or kind == PARALLEL:
            projections, per_key = _attention(layer, hidden)
            weights += projections
            if kind in WINDOWED:
                kept = count(layer, WINDOWED[kind])
                windows[kept] = windows.get(kept, 0.0) + per_key
            else:
                full += per_key
        elif kind not in RECURRENT:
            raise unknown(model, f"it has layers of type {kind!r:.40}")
    return Compute(model_name(model), 2.0 * weights, full, tuple(sorted(windows.items())))


def _attention(config: Mapping[str, Any], hidden: int) -> tuple[int, float]:
    """Return the weights of a layer's projections, and its operations per token and key."""
    if config.get("kv_lora_rank"):  # latent attention, as prefill computes it
        heads = count(config, "num_attention_heads", "n_head", "n_heads")
        latent, rope = count(config, "kv_lora_rank"), count(config, "qk_rope_head_dim")
        nope, value = count(config, "qk_nope_head_dim"), count(config, "v_head_dim")
        queries = heads * (nope + rope)
        down: int = config.get("q_lora_rank") or 0
        of_queries = down * (hidden + queries) if down else hidden * queries
        keys = hidden * (latent + rope) + latent * heads * (nope + value)
        return of_queries + keys + heads * value * hidden, 2.0 * (queries + heads * value)
    heads, kv_heads, head = heads_of(config)
    both = head + (config.get("value_head_dim") or head)
    into = hidden * (config.get("attention_width") or 1)
    values = both - head
    return into * (heads * head + kv_heads * both) + hidden * heads * values, 2.0 * heads * both


def _mlp(config: Mapping[str, Any], kind: str, hidden: int, layer: int) -> int:
    """Return the weights of a layer's MLP that a token uses."""
    if config.get("model_type") in WITHOUT_MLP or (config.get("model_type") == "zamba2" and kind != PARALLEL):
        return 0
    matrices = 2 if config.get("model_type") in PLAIN_MLP else 3
    names = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim")
    inner = count(config, *names) if any(config.get(name) for name in names) else 4 * hidden
    experts = ("num_experts", "num_local_experts", "n_routed_experts")
    period = config.get("expert_layer_period") or 1  # of Jamba
    has_experts = kind != "mlp" and layer % period == (config.get("expert_layer_offset") or 0) % period
    first = config.get("first_k_dense_replace") or 0
    if has_experts and any(config.get(name) for name in experts) and layer >= first:
        used = count(config, "num_experts_per_tok", "num_experts_per_token", "moe_topk")
        each = config.get("moe_intermediate_size") or inner
        shared = config.get("shared_expert_intermediate_size") or config.get("moe_shared_expert_intermediate_size")
        shared = shared or (config.get("n_shared_experts") or config.get("num_shared_experts") or 0) * each
        inner = used * each + shared
    return matrices * hidden * inner


def _recurrent(model: str, config: Mapping[str, Any], kind: str, hidden: int) -> int:
    """Return the weights of a recurrent layer's projections."""
    if kind == CONVOLUTION:
        return 4 * hidden * count(config, "conv_dim")
    if config.get("linear_num_value_heads"):  # gated delta network: queries, keys, values, gate; output
        keys = count(config, "linear_num_key_heads") * count(config, "linear_key_head_dim")
        values = count(config, "linear_num_value_heads") * count(config, "linear_value_head_dim")
        rank = config.get("linear_gate_rank")  # Kimi's delta attention: the gates of keys and of the output
        return hidden * 2 * (keys + values) + (2 * rank * (hidden + values) if rank else hidden * values)
    if config.get("model_type") in MAMBA_1:  # input and gate, output; the rank of the step is a 16th of the width
        inner, rank = inner_of(config), -(-hidden // 16)
        return inner * (3 * hidden + 2 * rank + 2 * count(config, "mamba_d_state"))
    if not config.get("mamba_n_heads"):
        raise unknown(model, "it has recurrent layers of an unknown kind")
    inner = count(config, "mamba_n_heads") * count(config, "mamba_d_head")
    return hidden * (3 * inner + 2 * count(config, "mamba_n_groups") * count(config, "mamba_d_state"))
