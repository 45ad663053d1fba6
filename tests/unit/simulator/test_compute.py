"""Operations of a prompt's prefill, against counts of published models and sums over tokens."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpc_apps.simulator.compute import DEFAULT, Compute, compute_of
from lpc_apps.simulator.model_forms import ModelConfigError
from lpc_apps.simulator.workload import Cost, Turn
from tests.unit.simulator.replay import BLOCK_TOKENS, make, workload

LLAMA_8B = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
MIXTRAL = LLAMA_8B | {"num_local_experts": 8, "num_experts_per_tok": 2}
QWEN3_30B = {
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}
DEEPSEEK_V3 = {
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
JAMBA = LLAMA_8B | {
    "model_type": "jamba",
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
NEMOTRON_H = {
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "num_hidden_layers": 52,
    "hidden_size": 4096,
    "intermediate_size": 21504,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
}
NEMOTRON_3_NANO = NEMOTRON_H | {
    "hybrid_override_pattern": "ME" * 23 + "*" * 6,
    "hidden_size": 2688,
    "num_key_value_heads": 2,
    "mamba_num_heads": 64,
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856,
    "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 3712,
}
LFM2 = {
    "model_type": "lfm2",
    "num_hidden_layers": 16,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "conv_dim": 2048,
    "conv_L_cache": 3,
    "block_ff_dim": 12288,
    "block_auto_adjust_ff_dim": True,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 256,
}
CHATGLM3 = {
    "model_type": "chatglm",
    "num_layers": 28,
    "hidden_size": 4096,
    "ffn_hidden_size": 13696,
    "kv_channels": 128,
    "num_attention_heads": 32,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
}
GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The configurations are complete, so no defaults of transformers are needed, whose import takes seconds."""
    monkeypatch.setitem(sys.modules, "transformers", None)


def compute(tmp_path: Path, config: dict[str, Any]) -> Compute:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    return compute_of(str(file))


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (LLAMA_8B, 8.03 - 2 * 128256 * 4096 / 1e9),
        (MIXTRAL, 12.9 - 2 * 32000 * 4096 / 1e9),
        (QWEN3_30B, 3.3 - 2 * 151936 * 2048 / 1e9),
        (DEEPSEEK_V3, 37 - 2 * 129280 * 7168 / 1e9),
        (JAMBA, 12.1 - 2 * 65536 * 4096 / 1e9),
        (NEMOTRON_H, 8.1 - 2 * 131072 * 4096 / 1e9),
        (NEMOTRON_3_NANO, 3.2 - 131072 * 2688 / 1e9),
        (LFM2, 1.17 - 65536 * 2048 / 1e9),
        (CHATGLM3, 6.24 - 2 * 65024 * 4096 / 1e9),
        (GPT2, 0.124 - (50257 + 1024) * 768 / 1e9),
    ],
)
def test_a_token_takes_two_operations_per_published_active_parameter_without_embeddings(
    tmp_path: Path, config: dict[str, Any], billions: float
) -> None:
    assert compute(tmp_path, config).per_token == pytest.approx(2e9 * billions, rel=0.02)


def test_the_default_model_is_llama_3_1_8b(tmp_path: Path) -> None:
    found = compute(tmp_path, LLAMA_8B)
    assert (found.per_token, found.per_key) == (DEFAULT.per_token, DEFAULT.per_key) == (2 * 6_979_321_856, 4 * 32 * 4096)


@given(
    st.integers(0, 300),
    st.lists(st.tuples(st.integers(1, 350), st.integers(1, 9)), max_size=2),
)
def test_the_operations_are_the_sum_over_tokens(tokens: int, windows: list[tuple[int, int]]) -> None:
    model = Compute("m", 7.0, 3.0, tuple((size, float(each)) for size, each in windows))
    one_by_one = sum(7.0 + 3.0 * (p + 1) + sum(each * min(p + 1, size) for size, each in windows) for p in range(tokens))
    assert model.of(tokens) == pytest.approx(one_by_one)


def test_windows_limit_the_keys_and_recurrent_layers_have_none(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention", "linear_attention"]
    gated = {f"linear_num_{name}_heads": 2 for name in ("key", "value")}
    gated |= {f"linear_{name}_head_dim": 8 for name in ("key", "value")}
    config = {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "layer_types": kinds, "sliding_window": 10}
    found = compute(tmp_path, config | gated)
    assert (found.per_key, found.windows) == (4.0 * 64, ((10, 4.0 * 64),))
    mlp, attention, delta = 3 * 64 * 256, 4 * 64 * 64, 64 * 5 * 16
    assert found.per_token == 2 * (3 * mlp + 2 * attention + delta)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LLAMA_8B | {"hidden_size": "big"}, "hidden_size"),
        (MIXTRAL | {"num_experts_per_tok": None}, "num_experts_per_tok"),
        (LLAMA_8B | {"layer_types": ["convolution"] * 32}, "leave out --model"),
    ],
)
def test_a_configuration_without_its_sizes_is_one_error(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        compute(tmp_path, config)


def test_a_hit_of_half_a_prompt_saves_less_than_half_of_its_compute() -> None:
    from lpc_apps.simulator.engine import simulate

    blocks = tuple(range(100))
    first = Turn("a", 1, "", 50 * BLOCK_TOKENS, 0, blocks[:50], blocks[:50])
    second = Turn("a", 2, "", 100 * BLOCK_TOKENS, 0, blocks, blocks, arrival=100.0)
    made = workload([first, second])
    made.count_from = 50.0
    only_keys = Cost(compute=Compute("m", 0.0, 1.0))
    found = simulate(made, 1000 * BLOCK_TOKENS, lambda n: make("lru", n), cost=only_keys).figures()
    assert found["hit_rate"] == 0.5
    assert found["compute_saved"] == pytest.approx(0.25, abs=0.001)


ONLY_KV = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8}


@pytest.mark.parametrize(
    ("config", "weights"),
    [
        (
            {  # values that are smaller than keys, and other heads in the layer with a window
                "model_type": "mimo_v2_flash",
                "num_hidden_layers": 2,
                "hybrid_layer_pattern": [0, 1],
                "num_key_value_heads": 2,
                "head_dim": 64,
                "v_head_dim": 32,
                "swa_num_attention_heads": 4,
                "swa_num_key_value_heads": 1,
                "swa_head_dim": 64,
                "sliding_window": 128,
            },
            256 * ((8 * 96 + 2 * 96) + (4 * 128 + 1 * 128)) + 2 * 3 * 256 * 512,
        ),
        (
            {"model_type": "falcon_mamba", "num_hidden_layers": 3, "state_size": 16, "conv_kernel": 4},
            3 * 512 * (3 * 256 + 2 * 16 + 2 * 16),
        ),
        (
            {  # attention next to Mamba 2
                "model_type": "falcon_h1",
                "num_hidden_layers": 1,
                "mamba_n_heads": 8,
                "mamba_d_head": 16,
                "mamba_n_groups": 1,
                "mamba_d_state": 4,
            },
            4 * 256 * 256 + 256 * (3 * 128 + 2 * 4) + 3 * 256 * 512,
        ),
    ],
    ids=["MiMo-V2", "Falcon Mamba", "Falcon-H1"],
)
def test_layers_of_their_own_have_their_weights(config: dict[str, Any], weights: int, tmp_path: Path) -> None:
    assert compute(tmp_path, ONLY_KV | config).per_token == 2 * weights
