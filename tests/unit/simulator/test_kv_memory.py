"""Bytes of KV cache by a model's configuration. A test in `tests/engine` compares them with real vLLM's."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lpc_apps.simulator.kv_memory import GIB, KvMemory, Mark, Memory, kv_memory
from lpc_apps.simulator.model_forms import ModelConfigError

LLAMA_8B = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
}


def of(config: Any, tmp_path: Path, **more: Any) -> KvMemory:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return kv_memory(str(tmp_path / "config.json"), **more)


@pytest.mark.parametrize(("kind", "size"), [("qwen3_5_text", 4), ("qwen3_5_moe_text", 4), ("qwen3_next", 2)])
def test_only_qwen3_5_names_the_type_of_its_states(kind: str, size: int, tmp_path: Path) -> None:
    """vllm/model_executor/models/config.py of 0.32 reads the key for Qwen3.5; other states have the type of the model."""
    config = LLAMA_8B | {
        "model_type": kind,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
    }
    assert of(config, tmp_path).state == (2 * 2 * 32 + 4 * 16) * 3 * 2 + 4 * 32 * 16 * size


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize(
    ("config", "more", "per_token"),
    [
        (LLAMA_8B, {}, 128 * 1024),  # 2 * 8 heads * 128 * 2 bytes * 32 layers
        (LLAMA_8B, {"kv_dtype": "fp8"}, 64 * 1024),
        (LLAMA_8B, {"tensor_parallel": 4}, 32 * 1024),
        (LLAMA_8B, {"tensor_parallel": 32}, 16 * 1024),  # a head is copied
        (LLAMA_8B | {"head_dim": 64}, {}, 64 * 1024),
        (DEEPSEEK_V3, {}, 61 * 576 * 2),
        (DEEPSEEK_V3, {"tensor_parallel": 8}, 61 * 576 * 2),  # each GPU has the whole vector
        ({"model_type": "llava", "text_config": LLAMA_8B}, {}, 128 * 1024),
        ({"n_layer": 12, "n_head": 12, "n_embd": 768}, {}, 12 * 2 * 768 * 2),
        (LLAMA_8B | {"model_type": "mistral", "sliding_window": None}, {}, 128 * 1024),  # null: not Transformers' default
    ],
)
def test_bytes_per_token_with_and_without_transformers(
    config: Any, more: Any, per_token: int, installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not installed:
        monkeypatch.setitem(sys.modules, "transformers", None)
    kv = of(config, tmp_path, **more)
    assert (kv.per_token, kv.windows, kv.state, kv.uniform) == (per_token, (), 0, True)
    assert kv.tokens(GIB, 12_345) == GIB // per_token


def test_a_missing_layer_pattern_comes_from_transformers_or_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gemma = {
        "model_type": "gemma3",
        "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 6, "sliding_window": 512},
    }
    kv = of(gemma, tmp_path)
    assert kv.windows == ((512, 5 * kv.per_token),)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelConfigError, match="sliding_window and no layer_types"):
        of(gemma, tmp_path)
    assert of(LLAMA_8B | {"model_type": "mistral", "sliding_window": 4096}, tmp_path).windows == ((4096, 128 * 1024),)
    assert of(LLAMA_8B | {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, tmp_path).uniform


def test_windows_and_states_are_paid_once_per_conversation() -> None:
    kv = KvMemory("m", 1, per_token=100, windows=((1000, 500),), state=10_000)
    assert kv.conversation(200) == 200 * 600 + 10_000
    assert kv.conversation(5_000) == 500_000 + 500_000 + 10_000
    assert kv.tokens(10 * kv.conversation(5_000), 5_000) == 50_000


def test_marks_are_gpu_with_the_tier_and_twice_that() -> None:
    kv = KvMemory("m", 2, per_token=1024)
    assert Memory(kv, 1024 * 1000, 1024 * 600).marks(100) == [
        Mark("GPU", 1000),
        Mark("GPU + CPU", 1300),  # each of two GPUs has half of the tier
        Mark("twice that", 2600),
    ]
    assert [mark.size for mark in Memory(kv, 1024 * 1000, 0).marks(100)] == [1000, 2000]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ([], "not the configuration"),
        ({}, "num_hidden_layers None"),
        (LLAMA_8B | {"num_hidden_layers": "32"}, "num_hidden_layers '32'"),
        (LLAMA_8B | {"num_hidden_layers": True}, "num_hidden_layers True"),
        (LLAMA_8B | {"num_hidden_layers": 10**9}, "layers are more than"),
        (LLAMA_8B | {"num_hidden_layers": 10**99}, "not a positive whole number"),
        (LLAMA_8B | {"num_key_value_heads": -8}, "not a positive whole number"),
        (LLAMA_8B | {"num_key_value_heads": {"a": 1}}, "not a positive whole number"),
        (LLAMA_8B | {"hidden_size": 1}, "leave no KV cache"),
        (LLAMA_8B | {"layer_types": ["full_attention"]}, "not a type for each of 32 layers"),
        (LLAMA_8B | {"layer_types": [["x"]] * 32}, "not a type for each of 32 layers"),
        (LLAMA_8B | {"layer_types": ["odd"] * 32}, "layers of type 'odd'"),
        (LLAMA_8B | {"layer_types": ["mamba"] * 32}, "recurrent layers of an unknown kind"),
        (LLAMA_8B | {"layer_types": ["sliding_attention"] * 32}, "sliding_window None"),
        (LLAMA_8B | {"model_type": "unknown", "attention_chunk_size": 8192}, "attention_chunk_size and no layer_types"),
        (DEEPSEEK_V3 | {"index_topk": 2048}, "it has index_topk"),
        (LLAMA_8B | {"model_type": ["x"]}, None),
    ],
)
def test_a_configuration_that_is_odd_or_not_modelled_is_one_error(config: Any, reason: str | None, tmp_path: Path) -> None:
    if reason is None:
        assert of(config, tmp_path).per_token == 128 * 1024
        return
    with pytest.raises(ModelConfigError, match=reason):
        of(config, tmp_path)


def test_nested_brackets_are_one_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(ModelConfigError, match="not the configuration"):
        kv_memory(str(tmp_path))
    with pytest.raises(ModelConfigError, match="no such file"):
        kv_memory(str(tmp_path / "none.json"))


def test_a_name_is_read_from_the_local_cache_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda name, file: str(tmp_path / file))
    monkeypatch.setattr(hub, "hf_hub_download", lambda *_: pytest.fail("a file at hand is not fetched"))
    kv = kv_memory("someone/llama")
    assert (kv.model, kv.per_token) == ("someone/llama", 128 * 1024)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelConfigError, match="huggingface_hub, which finds models by name, is not installed"):
        kv_memory("someone/llama")


JAMBA = LLAMA_8B | {
    "model_type": "jamba",
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
FALCON_H1 = LLAMA_8B | {
    "model_type": "falcon_h1",
    "num_hidden_layers": 4,
    "mamba_d_ssm": 1024,
    "mamba_n_heads": 16,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
STEP = {
    "model_type": "step3p5",
    "num_hidden_layers": 4,
    "hidden_size": 4096,
    "head_dim": 128,
    "sliding_window": 512,
    "num_attention_heads": 64,
    "num_attention_groups": 8,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"],
    "attention_other_setting": {
        "attention_type": "sliding_attention",
        "num_attention_heads": 96,
        "num_attention_groups": 4,
        "head_dim": 64,
    },
}
MINIMAX_M2 = {
    "model_type": "minimax_m2",
    "num_hidden_layers": 62,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 3072,
    "attn_type_list": [1] * 62,
}


BAMBA = LLAMA_8B | {
    "model_type": "bamba",
    "num_hidden_layers": 3,
    "attn_layer_indices": [1],
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
KIMI_LINEAR = {
    "model_type": "kimi_linear",
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "hidden_size": 2304,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "linear_attn_config": {
        "kda_layers": [1, 2, 3],
        "full_attn_layers": [4],
        "num_heads": 32,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
    },
}
OWN_LAYERS = LLAMA_8B | {"per_layer_config": {"03": {"num_key_value_heads": 16}, "30": {"head_dim": 256}}}


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize(
    ("config", "per_token", "windows", "state"),
    [
        (BAMBA, 4096, (), 2 * ((8192 + 2 * 128) * 3 * 2 + 128 * 64 * 128 * 2)),
        (KIMI_LINEAR, 576 * 2, (), 3 * (3 * 32 * 128 * 3 * 2 + 32 * 128 * 128 * 4)),
        (OWN_LAYERS, 34 * 4096, (), 0),
        (JAMBA, 4 * 4096, (), 28 * (8192 * 3 * 2 + 8192 * 16 * 2)),
        (FALCON_H1, 4 * 4096, (), 4 * ((1024 + 2 * 128) * 3 * 2 + 16 * 64 * 128 * 2)),
        (STEP, 2 * 8 * 128 * 2, ((512, 3 * 2 * 4 * 64 * 2),), 0),
        (MINIMAX_M2, 62 * 4096, (), 0),
    ],
    ids=["Bamba", "Kimi-Linear", "layers of their own", "Jamba", "Falcon-H1", "Step-3.5-Flash", "MiniMax-M2"],
)
def test_models_that_name_their_layers_by_other_keys(
    config: Any, per_token: int, windows: Any, state: int, installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not installed:
        monkeypatch.setitem(sys.modules, "transformers", None)
    kv = of(config, tmp_path)
    assert (kv.per_token, kv.windows, kv.state) == (per_token, windows, state)


@pytest.mark.parametrize(
    "config",
    [
        LLAMA_8B | {"model_type": "other", "mamba_d_state": 16},
        LLAMA_8B | {"model_type": "other", "attn_layer_indices": [1, 2]},
        LLAMA_8B | {"model_type": "bailing_moe_linear", "layer_group_size": 5},
        JAMBA | {"attn_layer_offset": 8},
        MINIMAX_M2 | {"attn_type_list": [0] + [1] * 61},
        LLAMA_8B | {"per_layer_config": {"3": {"skip": ["attention"]}}},
        LLAMA_8B | {"per_layer_config": {"3": {"sliding_window": 512}}},
        LLAMA_8B | {"model_type": "nemotron_h", "hybrid_override_pattern": "MX*", "mamba_num_heads": 8, "mamba_head_dim": 8},
        LLAMA_8B | {"per_layer_config": {"full_attention": {"head_dim": 256}}},
    ],
)
def test_layers_that_are_told_by_unknown_keys_are_refused(config: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError):
        of(config, tmp_path)


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize(
    ("more", "per_token"),
    [
        ({"model_type": "falcon", "multi_query": True, "num_key_value_heads": None}, 32 * 2 * 128 * 2),
        ({"model_type": "falcon", "multi_query": True, "num_kv_heads": 8, "new_decoder_architecture": True}, 128 * 1024),
        ({"model_type": "gpt_bigcode", "multi_query": True, "num_key_value_heads": None}, 32 * 2 * 128 * 2),
        ({"model_type": "mpt", "attn_config": {"kv_n_heads": 8}, "num_key_value_heads": None}, 128 * 1024),
        ({"quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}}, 64 * 1024),
        ({"quantization_config": {"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}}, 64 * 1024),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False},
                }
            },
            64 * 1024,
        ),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, 128 * 1024),
    ],
)
def test_heads_and_numbers_of_the_cache_are_those_of_vllms_converters(
    more: Any, per_token: int, installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not installed:
        monkeypatch.setitem(sys.modules, "transformers", None)
    assert of(LLAMA_8B | more, tmp_path).per_token == per_token
    assert of(LLAMA_8B | more, tmp_path, kv_dtype="bfloat16").per_token in (per_token, 2 * per_token)


def test_the_checkpoint_of_a_model_with_images_names_the_numbers_of_its_cache(tmp_path: Path) -> None:
    fp8 = {"quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}}
    assert of({"model_type": "llava", "text_config": LLAMA_8B, **fp8}, tmp_path).per_token == 64 * 1024


@pytest.mark.parametrize(
    "more",
    [
        {"model_type": "other", "kv_lora_rank": 256, "qk_rope_head_dim": 32},
        {"model_type": "ouro", "total_ut_steps": 4},
        {"model_type": "iquestloopcoder", "loop_num": 2},
        {"model_type": "hunyuan", "use_cla": True},
        {"model_type": "mimo_v2_flash", "swa_num_key_value_heads": 4},
        {"model_type": "mimo", "hybrid_layer_pattern": [0, 1], "swa_num_key_value_heads": 4},
        {"model_type": "plamo3", "window_size": 2048},
        {"model_type": "deci", "num_key_value_heads_per_layer": [4] * 32},
        {"quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "NVFP4"}},
    ],
)
def test_models_whose_cache_is_told_by_other_keys_are_refused(more: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match="is not known here, because it"):
        of(LLAMA_8B | more, tmp_path)


def test_a_model_of_linear_layers_without_their_types_is_refused_without_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Qwen3-Next's configuration, whose types of layers follow from ``full_attention_interval``."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelConfigError, match="full_attention_interval"):
        of(LLAMA_8B | {"model_type": "qwen3_next", "full_attention_interval": 4, "linear_num_value_heads": 32}, tmp_path)
