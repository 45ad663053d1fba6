"""`lpc simulate --gpu-gib` against real vLLM: bytes of KV cache for each kind of layer, and tokens as logged at start."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lpc_apps.simulator.kv_memory import kv_memory
from lpc_apps.tiny_llama import build
from testing.engine_internals import avx512

pytestmark = pytest.mark.supports(engine="vLLM", tier="GPU pool", what="bytes of KV cache by the model's configuration")

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, math, sys
from vllm import LLM
dtype = sys.argv[2]
llm = LLM(sys.argv[1], load_format="dummy", dtype="bfloat16", kv_cache_dtype=dtype, enforce_eager=True, max_model_len=4096)
core = llm.llm_engine.engine_core.engine_core
found = core.scheduler.kv_cache_config
groups = []
for group in found.kv_cache_groups:
    spec = group.kv_cache_spec
    kind, layers = type(spec).__name__, len(group.layer_names)
    if kind == "MambaSpec":
        # vLLM makes all states of a CPU with bfloat16 float32. Elsewhere they have the type of the convolution.
        size = sum(math.prod(shape) for shape in spec.shapes) * spec.dtypes[0].itemsize
    else:
        size = spec.unpadded_page_size_bytes / spec.block_size
    groups.append([kind, layers, size, getattr(spec, "sliding_window", None)])
tokens = core.vllm_config.cache_config.kv_cache_size_tokens
page = sum(len(group.layer_names) for group in found.kv_cache_groups) * found.kv_cache_groups[0].kv_cache_spec.page_size_bytes
print(json.dumps({"groups": groups, "tokens": tokens, "bytes": found.num_blocks * page}))
"""
ALWAYS = ("latent", "sliding window in five of six layers")
"""The other configurations are in nightly tests: each starts vLLM."""
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "grouped": {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3},
    "no groups, head size of the hidden size": {"num_attention_heads": 2, "num_key_value_heads": None, "head_dim": None},
    "latent": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "kv_lora_rank": 64,
        "q_lora_rank": None,
        "qk_rope_head_dim": 32,
        "qk_nope_head_dim": 64,
        "v_head_dim": 64,
        "n_routed_experts": 4,
        "first_k_dense_replace": 9,
        "moe_intermediate_size": 64,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "head_dim": None,
    },
    "sliding window in five of six layers": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "num_key_value_heads": 1,
        "sliding_window": 256,
        "query_pre_attn_scalar": 32,
    },
    "gated delta networks in three of four layers": {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_hidden_layers": 4,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
    },
    "Mamba 2 in two of four layers": {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "num_hidden_layers": 4,
        "num_key_value_heads": 1,
        "layer_types": ["mamba", "attention", "mamba", "attention"],
        "num_local_experts": 0,
        "shared_intermediate_size": 64,
        "position_embedding_type": "nope",
        "mamba_n_heads": 4,
        "mamba_d_head": 32,
        "mamba_d_state": 16,
        "mamba_n_groups": 1,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
    },
    "Jamba": {
        "architectures": ["JambaForCausalLM"],
        "model_type": "jamba",
        "num_hidden_layers": 4,
        "num_key_value_heads": 1,
        "attn_layer_period": 4,
        "attn_layer_offset": 2,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": 16,
    },
    "Falcon-H1, attention and Mamba 2 in each layer": {
        "architectures": ["FalconH1ForCausalLM"],
        "model_type": "falcon_h1",
        "num_key_value_heads": 1,
        "mamba_d_ssm": 96,
        "mamba_n_heads": 3,
        "mamba_d_head": 32,
        "mamba_d_state": 16,
        "mamba_n_groups": 1,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
    },
    "Step 3.5, other heads in the layers with a window": {
        "architectures": ["Step3p5ForCausalLM"],
        "model_type": "step3p5",
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_attention_groups": 2,
        "head_dim": 64,
        "max_position_embeddings": 4096,
        "sliding_window": 512,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"],
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "num_attention_heads": 4,
            "num_attention_groups": 1,
            "head_dim": 32,
        },
    },
    "MiniMax-M2": {
        "architectures": ["MiniMaxM2ForCausalLM"],
        "model_type": "minimax_m2",
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rotary_dim": 32,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "scoring_func": "sigmoid",
        "use_qk_norm": True,
        "attn_type_list": [1, 1, 1],
    },
}


def start(model: Path, kv_dtype: str) -> dict[str, Any]:
    """Start vLLM with dummy weights, and return its KV cache."""
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    command = [sys.executable, "-c", PROGRAM, str(model), kv_dtype]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def row(name: str, kv_dtype: str) -> Any:
    """Return a row of the test. A CPU skips it on which vLLM does not run it."""
    marks = [
        pytest.mark.skipif(kv_dtype == "fp8" and not avx512(torch), reason="FP8 takes AVX-512"),
        *([] if name in ALWAYS else [pytest.mark.nightly]),
    ]
    return pytest.param(name, kv_dtype, marks=marks)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "kv_dtype"), [*(row(name, "auto") for name in CONFIGURATIONS), row("grouped", "fp8")])
def test_bytes_are_those_of_vllms_specs(name: str, kv_dtype: str, tmp_path: Path) -> None:
    model = build(tmp_path / "tiny")
    config = json.loads((model / "config.json").read_text()) | CONFIGURATIONS[name]
    given = {key: value for key, value in config.items() if value is not None or key == "q_lora_rank"}
    (model / "config.json").write_text(json.dumps(given))
    found = start(model, kv_dtype)
    full = windowed = state = 0
    windows = set()
    for kind, layers, size, window in found["groups"]:
        if kind == "MambaSpec":
            state += layers * size
        elif kind == "SlidingWindowSpec":
            windowed += layers * size
            windows.add(window)
        else:
            full += layers * size
    kv = kv_memory(str(model), kv_dtype=kv_dtype)
    assert kv.per_token == full and kv.state == state
    assert list(kv.windows) == [(window, windowed) for window in windows]
    if kv.uniform:  # vLLM rounds to whole blocks
        assert kv.tokens(found["bytes"], 4096) == pytest.approx(found["tokens"], rel=0.001)
