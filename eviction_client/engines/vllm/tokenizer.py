"""The files of the tokenizer that a vLLM has loaded."""

from typing import Any

from eviction_client.engines.tokenizer_files import finder
from eviction_client.offer import FindFiles


def finder_of(vllm_config: Any) -> FindFiles:
    """Return what finds the files of an engine's tokenizer, in whatever thread."""
    model, loading = vllm_config.model_config, getattr(vllm_config, "load_config", None)
    return finder(str(model.tokenizer), getattr(model, "tokenizer_revision", None), [getattr(loading, "download_dir", None)])
