"""KV cache of models with layers of their own, against the specs of vLLM's model classes, built without weights."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lpc_apps.simulator.kv_memory import kv_memory

pytestmark = pytest.mark.supports(engine="vLLM", tier="GPU pool", what="bytes of KV cache by the model's configuration")

PROGRAM = """
import json, math, sys
import torch
torch.cpu._is_avx512_bf16_supported = lambda: False  # with it, a CPU has other types of states than a GPU
from vllm.config import set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models import registry
from vllm.utils.torch_utils import set_default_torch_dtype

registry._LazyRegisteredModel.inspect_model_cls = lambda self: registry._ModelInfo.from_model_cls(self.load_model_cls())
shared = dict(skip_tokenizer_init=True, dtype="bfloat16", enforce_eager=True, max_model_len=1024, enable_prefix_caching=False)
started = False
for folder in sys.argv[2:]:
    config = EngineArgs(model=folder, **shared).create_engine_config()
    with set_current_vllm_config(config):
        if not started:
            init_distributed_environment(1, 0, f"file://{sys.argv[1]}", 0, "gloo")
            ensure_model_parallel_initialized(1, 1)
            started = True
        with set_default_torch_dtype(torch.bfloat16), torch.device("meta"):
            initialize_model(vllm_config=config)
    full = state = 0
    windows = {}
    for layer in config.compilation_config.static_forward_context.values():
        if not isinstance(layer, AttentionLayerBase) or getattr(layer, "kv_sharing_target_layer_name", None):
            continue
        spec = layer.get_kv_cache_spec(config)
        if type(spec).__name__ == "MambaSpec":
            state += sum(math.prod(shape) * dtype.itemsize for shape, dtype in zip(spec.shapes, spec.dtypes))
            continue
        size = spec.unpadded_page_size_bytes / spec.block_size
        if window := getattr(spec, "sliding_window", None):
            windows[window] = windows.get(window, 0) + size
        else:
            full += size
    print(json.dumps([full, sorted(windows.items()), state]), flush=True)
"""
SHAPE = {"vocab_size": 512, "max_position_embeddings": 4096, "intermediate_size": 128, "hidden_size": 256}
SHAPE |= {"num_attention_heads": 8, "num_key_value_heads": 2}
NEMOTRON = SHAPE | {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "num_hidden_layers": 6,
    "hybrid_override_pattern": "M-M*-M",
    "head_dim": 48,
    "mamba_num_heads": 8,
    "mamba_head_dim": 32,
    "n_groups": 2,
    "ssm_state_size": 16,
    "conv_kernel": 4,
    "chunk_size": 128,
}
LFM2 = SHAPE | {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "num_hidden_layers": 3,
    "conv_L_cache": 3,
    "conv_dim": 128,
    "conv_dim_out": 256,
    "conv_bias": False,
    "block_dim": 256,
    "block_ff_dim": 512,
    "block_multiple_of": 64,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": True,
    "rope_theta": 1e6,
    "norm_eps": 1e-5,
}
CHATGLM = {
    "architectures": ["ChatGLMModel"],
    "model_type": "chatglm",
    "num_layers": 3,
    "hidden_size": 256,
    "ffn_hidden_size": 128,
    "kv_channels": 128,
    "num_attention_heads": 8,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "seq_length": 8192,
    "padded_vocab_size": 512,
    "vocab_size": 512,
    "original_rope": True,
    "tie_word_embeddings": False,
}
LATENT = {"kv_lora_rank": 64, "q_lora_rank": 96, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64, "v_head_dim": 64}
GEMMA4 = SHAPE | {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "num_hidden_layers": 6,
    "head_dim": 64,
    "sliding_window": 512,
    "layer_types": [*["sliding_attention"] * 2, "full_attention"] * 2,
}
MODELS: dict[str, dict[str, Any]] = {
    "Nemotron-H": NEMOTRON,
    "Nemotron-H, which names the type of its states": NEMOTRON | {"mamba_ssm_cache_dtype": "bfloat16"},
    "Zamba2": SHAPE
    | {
        "architectures": ["Zamba2ForCausalLM"],
        "model_type": "zamba2",
        "num_hidden_layers": 3,
        "layers_block_type": ["mamba", "hybrid", "mamba"],
        "num_key_value_heads": 8,
        "n_mamba_heads": 8,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_ngroups": 1,
    },
    "Mamba": {
        "architectures": ["MambaForCausalLM"],
        "model_type": "mamba",
        "num_hidden_layers": 3,
        "hidden_size": 64,
        "intermediate_size": 128,
        "state_size": 16,
        "conv_kernel": 4,
        "vocab_size": 512,
    },
    "Mamba 2": {
        "architectures": ["Mamba2ForCausalLM"],
        "model_type": "mamba2",
        "num_hidden_layers": 3,
        "hidden_size": 64,
        "num_heads": 8,
        "head_dim": 16,
        "expand": 2,
        "state_size": 16,
        "n_groups": 2,
        "conv_kernel": 4,
        "vocab_size": 512,
    },
    "LFM2": LFM2 | {"layer_types": ["conv", "full_attention", "conv"]},
    "LFM2 by its layers with attention": LFM2 | {"full_attn_idxs": [1]},
    "LFM2 with experts": SHAPE
    | {
        "architectures": ["Lfm2MoeForCausalLM"],
        "model_type": "lfm2_moe",
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
        "conv_L_cache": 3,
        "conv_bias": False,
        "moe_intermediate_size": 64,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_dense_layers": 2,
        "rope_theta": 1e6,
        "norm_eps": 1e-5,
    },
    "ChatGLM": CHATGLM,
    "ChatGLM without groups": CHATGLM | {"multi_query_attention": False},
    "LongCat-Flash": SHAPE
    | LATENT
    | {
        "architectures": ["LongcatFlashForCausalLM"],
        "model_type": "longcat_flash",
        "num_layers": 3,
        "ffn_hidden_size": 128,
        "expert_ffn_hidden_size": 64,
        "n_routed_experts": 4,
        "zero_expert_num": 2,
        "zero_expert_type": "identity",
        "moe_topk": 2,
        "routed_scaling_factor": 6.0,
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
        "attention_bias": False,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e7,
    },
    "MiniCPM3": SHAPE
    | LATENT
    | {
        "architectures": ["MiniCPM3ForCausalLM"],
        "model_type": "minicpm3",
        "num_hidden_layers": 3,
        "num_key_value_heads": 8,
    },
    "Gemma 4": GEMMA4 | {"global_head_dim": 128},
    "Gemma 4 with other KV heads": GEMMA4 | {"global_head_dim": 128, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
    "Gemma 4 as Transformers saves it": GEMMA4 | {"per_layer_config": {"2": {"head_dim": 128}, "5": {"head_dim": 128}}},
    "Gemma 4 with layers that share a cache": GEMMA4 | {"global_head_dim": 128, "num_kv_shared_layers": 3},
    "MiMo-V2-Flash": SHAPE
    | {
        "architectures": ["MiMoV2FlashForCausalLM"],
        "model_type": "mimo_v2_flash",
        "num_hidden_layers": 3,
        "head_dim": 64,
        "v_head_dim": 32,
        "swa_num_attention_heads": 8,
        "swa_num_key_value_heads": 4,
        "swa_head_dim": 64,
        "swa_v_head_dim": 32,
        "hybrid_layer_pattern": [0, 1, 1],
        "sliding_window": 128,
        "sliding_window_size": 128,
        "attention_chunk_size": 128,
        "moe_layer_freq": [0, 0, 0],
        "layernorm_epsilon": 1e-5,
        "rope_theta": 1e6,
        "swa_rope_theta": 1e4,
        "partial_rotary_factor": 0.5,
        "attention_value_scale": 0.7,
        "add_swa_attention_sink_bias": True,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "hidden_act": "silu",
    },
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """Return the configuration of each model, and its bytes in vLLM: per token, per token in windows, of states."""
    root = tmp_path_factory.mktemp("models")
    folders = []
    for number, config in enumerate(MODELS.values()):
        folder = root / f"{number}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        folders.append(folder)
    command = [sys.executable, "-c", PROGRAM, str(root / "rendezvous"), *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert done.returncode == 0, f"{list(MODELS)[len(lines)]}: {done.stderr[-3000:]}"
    return dict(zip(MODELS, zip(folders, lines, strict=True), strict=True))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_bytes_are_those_of_vllms_model(
    name: str, installed: bool, built: dict[str, tuple[Path, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, (full, windows, state) = built[name]
    if not installed:
        monkeypatch.setitem(sys.modules, "transformers", None)
    kv = kv_memory(str(folder))
    assert (kv.per_token, [list(window) for window in kv.windows], kv.state) == (full, windows, state)
