"""Files of vLLM's tokenizer."""

from typing import Any

from eviction_client.engines.tokenizer_files import finder
from eviction_client.offer import FindFiles


def finder_of(vllm_config: Any) -> FindFiles:
    """Return a thread-safe function that finds the engine's tokenizer files."""
    model, loading = vllm_config.model_config, getattr(vllm_config, "load_config", None)
    return finder(str(model.tokenizer), getattr(model, "tokenizer_revision", None), [getattr(loading, "download_dir", None)])
